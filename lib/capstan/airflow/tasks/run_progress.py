"""How far the tasks are that have runs made, as Airflow knows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

from capstan.reporting.activity import ASKED_ABOUT, TaskProgress
from capstan.reporting.run_view import RunView
from capstan.storage.ledger.made_by import MadeBy

FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""States in which a task has ended."""

# The names of runs are part of an address, of which servers take some 8 kB.
_ASKED_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """A task of a DAG run, whatever its try; or the DAG run, if the task is not known."""

    dag: str
    dag_run: str
    task: str = ""
    map_index: int = -1

    @classmethod
    def of(cls, by: MadeBy) -> TaskPlace:
        """What has a run made."""
        where = (by.task, by.map_index) if by.task else ()
        return cls(by.dag, by.dag_run, *where)


@dataclass(frozen=True, slots=True)
class KnownTask:
    """The progress of a task, and its newest try; 0 if that is not known."""

    progress: TaskProgress
    try_number: int = 0


Look = Callable[[set[TaskPlace]], Mapping[TaskPlace, KnownTask]]
"""Finds the tasks in some places that are there."""


def inform(views: Sequence[RunView], look: Look) -> list[RunView]:
    """Runs with the progress of the tasks that have them made."""
    makers = {view.run: view.made_by for view in views if view.state in ASKED_ABOUT}
    places = {run: TaskPlace.of(by) for run, by in makers.items() if by is not None and by.dag_run}
    known = look(set(places.values())) if places else {}
    return [
        view if view.run not in places else _with_task(view, known.get(places[view.run]))
        for view in views
    ]


def _with_task(view: RunView, task: KnownTask | None) -> RunView:
    if task is None:
        return replace(view, task=None)
    # A later attempt, of which nothing is written yet, may be made by something else.
    later = view.claim is not None and view.steps and view.claim.attempt > view.steps[-1].attempt
    if later and task.progress is TaskProgress.OVER:
        return view
    by = view.made_by
    if view.state == "failed" and by is not None and by.try_number == task.try_number != 0:
        # The try that has failed to make it may make others yet.
        return view if task.progress is TaskProgress.RUNNING else replace(view, task=task.progress)
    return replace(view, task=task.progress)


def progress_of(state: str | None) -> TaskProgress:
    """The progress of a task in a state."""
    # A task is deferred while its driver works elsewhere.
    if state in ("running", "deferred"):
        return TaskProgress.RUNNING
    return TaskProgress.OVER if state in FINISHED else TaskProgress.QUEUED


def seen_by_task(ti: Any) -> Look:
    """What a running task can find out, which has no access to the database."""

    def look(places: set[TaskPlace]) -> Mapping[TaskPlace, KnownTask]:
        by_dag: dict[str, list[TaskPlace]] = defaultdict(list)
        for place in places:
            if place.task:
                by_dag[place.dag].append(place)
        return dict(pair for dag, of_dag in by_dag.items() for pair in _states(ti, dag, of_dag))

    return look


def _states(
    ti: Any, dag: str, places: Sequence[TaskPlace]
) -> Iterable[tuple[TaskPlace, KnownTask]]:
    tasks = sorted({place.task for place in places})
    by_run = sorted(places, key=lambda place: place.dag_run)
    for start in range(0, len(by_run), _ASKED_AT_ONCE):
        yield from _states_of_few(ti, dag, tasks, by_run[start : start + _ASKED_AT_ONCE])


def _states_of_few(
    ti: Any, dag: str, tasks: Sequence[str], places: Sequence[TaskPlace]
) -> Iterable[tuple[TaskPlace, KnownTask]]:
    runs = sorted({place.dag_run for place in places})
    try:
        found = ti.get_task_states(dag_id=dag, run_ids=runs, task_ids=tasks)
    except AirflowRuntimeError:
        return  # What Airflow does not tell is not known: the runs are listed as before.
    for place in places:
        mapped = f"{place.task}_{place.map_index}" if place.map_index >= 0 else place.task
        states = found.get(place.dag_run, {})
        if mapped in states:
            yield place, KnownTask(progress_of(states[mapped]))
