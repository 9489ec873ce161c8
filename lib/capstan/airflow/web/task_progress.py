"""How far the tasks are that have runs made, from Airflow's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select, tuple_

from capstan.airflow.tasks.run_progress import FINISHED, KnownTask, TaskPlace, inform, progress_of
from capstan.reporting.activity import TaskProgress
from capstan.reporting.run_view import RunView

_RUN = (DagRun.dag_id, DagRun.run_id)
_TASK = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)


def informed(views: Sequence[RunView]) -> list[RunView]:
    """Runs with the progress of the tasks that have them made, where Airflow knows those."""
    return inform(views, _look)


def _look(places: set[TaskPlace]) -> Mapping[TaskPlace, KnownTask]:
    """Those tasks and DAG runs that are there."""
    tasks = [astuple(place) for place in places if place.task]
    runs = [(place.dag, place.dag_run) for place in places if not place.task]
    of_tasks = select(*_TASK, TaskInstance.state, TaskInstance.try_number).where(
        tuple_(*_TASK).in_(tasks)
    )
    of_runs = select(*_RUN, DagRun.state).where(tuple_(*_RUN).in_(runs))
    with create_session() as session:
        known = {
            TaskPlace(*row[:-2]): KnownTask(progress_of(row[-2]), row[-1])
            for row in session.execute(of_tasks)
        }
        # One that goes on may have a task at work, or not.
        ended = [TaskPlace(*row[:-1]) for row in session.execute(of_runs) if row[-1] in FINISHED]
    return {**known, **dict.fromkeys(ended, KnownTask(TaskProgress.OVER))}
