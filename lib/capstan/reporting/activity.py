"""What is going on with a run that has not ended.

The ledgers tell what is written, and who holds a claim. A claim lasts for hours after its process
is gone; whether the task that has a run made is still at work, only Airflow knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

CLAIMED = "claimed"
"""The state of a run that has only a claim."""


class Activity(StrEnum):
    """What goes on with a run, or with an interval that a run is to write."""

    RUNNING = "running"
    """A process is at work on it, as far as is known."""
    QUEUED = "queued"
    """Its task waits for a slot, or to be tried again."""
    WAITING = "waiting"
    """It is staged and audited, and a person has to decide."""
    DEAD = "dead"
    """Nothing is at work on it: its task has ended, or its claim was not renewed."""


class TaskProgress(StrEnum):
    """How far the task is that has a run made."""

    QUEUED = "queued"
    RUNNING = "running"
    OVER = "over"


UNFINISHED = frozenset({CLAIMED, "begun", "stopped", "approved"})
"""States of runs on which a process should be at work."""

ASKED_ABOUT = UNFINISHED | {"failed"}
"""States of runs of which Airflow may know more: it tries a failed task again."""

_SECONDS: Mapping[str | None, int] = {Activity.RUNNING: 5, Activity.QUEUED: 5, Activity.WAITING: 30}


def activity_of(state: str, *, holds: bool, task: TaskProgress | None) -> Activity | None:
    """What goes on with a run; None once it has ended.

    Args:
        state: As `History.state` has it, or `claimed`.
        holds: Whether it holds a claim.
        task: The progress of its task; None if it is not known.
    """
    if state == "audited":
        return Activity.WAITING
    if state not in ASKED_ABOUT or (state == "failed" and task in (None, TaskProgress.OVER)):
        return None
    if task is TaskProgress.QUEUED:
        return Activity.QUEUED
    works = holds if task is None else task is TaskProgress.RUNNING
    return Activity.RUNNING if works else Activity.DEAD


def refresh_after(states: Iterable[str | None]) -> int:
    """After how many seconds a page with such states is out of date; 0 if it does not change."""
    return min((_SECONDS[state] for state in states if state in _SECONDS), default=0)
