"""How far the tasks are that have runs made, from Airflow's database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState
from sqlalchemy import select, tuple_

from capstan.reporting.activity import UNFINISHED, TaskProgress
from capstan.reporting.run_view import RunView
from capstan.storage.ledger.made_by import MadeBy

_RUN = (DagRun.dag_id, DagRun.run_id)
_TASK = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)


def informed(views: Sequence[RunView]) -> list[RunView]:
    """Runs with the progress of the tasks that have them made, where Airflow knows those."""
    makers = {view.run: view.made_by for view in views if view.state in UNFINISHED}
    places = {run: _place(by) for run, by in makers.items() if by is not None and by.dag_run}
    known = _progress(set(places.values())) if places else {}
    return [_with_task(view, known.get(places.get(view.run, ()))) for view in views]


def _place(by: MadeBy) -> tuple[object, ...]:
    """What tells the task, whatever its try; or the DAG run, if the task is not known."""
    run = (by.dag, by.dag_run)
    return (*run, by.task, by.map_index) if by.task else run


def _with_task(view: RunView, task: TaskProgress | None) -> RunView:
    # A later attempt, of which nothing is written yet, may be made by something else.
    later = view.claim is not None and view.steps and view.claim.attempt > view.steps[-1].attempt
    return view if later and task is TaskProgress.OVER else replace(view, task=task)


def _progress(places: Iterable[tuple[object, ...]]) -> Mapping[tuple[object, ...], TaskProgress]:
    """The progress of those tasks and DAG runs that are there."""
    tasks = [place for place in places if len(place) == len(_TASK)]
    runs = [place for place in places if len(place) == len(_RUN)]
    of_tasks = select(*_TASK, TaskInstance.state).where(tuple_(*_TASK).in_(tasks))
    of_runs = select(*_RUN, DagRun.state).where(tuple_(*_RUN).in_(runs))
    with create_session() as session:
        known = {tuple(row[:-1]): _of_task(row[-1]) for row in session.execute(of_tasks)}
        # One that goes on may have a task at work, or not.
        ended = [tuple(row[:-1]) for row in session.execute(of_runs) if row[-1] in State.finished]
    return {**known, **dict.fromkeys(ended, TaskProgress.OVER)}


def _of_task(state: str | None) -> TaskProgress:
    if state == TaskInstanceState.RUNNING:
        return TaskProgress.RUNNING
    return TaskProgress.OVER if state in State.finished else TaskProgress.QUEUED
