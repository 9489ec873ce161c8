"""How often a task is tried, and who is told once that was of no use: the same for all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from capstan.airflow.dags.notifications import of_concerned, on_failure
from capstan.airflow.settings import Settings

RETRIES = 2
RETRY_DELAY = timedelta(seconds=30)


def task_defaults(
    setting: Settings,
    declared: Sequence[str] = (),
    place: Sequence[str] = (),
    *,
    over_all: bool = False,
) -> dict[str, Any]:
    """The arguments of a task that say so.

    Args:
        setting: Where Capstan works.
        declared: Whom to tell of this task, besides those who are told of all.
        place: Where they are declared, for the message.
        over_all: Whether the task is about all that is declared: then those are told whom its
            failure concerns.

    Raises:
        InvalidRequestError: As `on_failure`.
    """
    told = on_failure(setting, declared, place)
    if over_all:
        # The error's own line stays the last.
        told.insert(-1, of_concerned(setting))
    return {
        "on_failure_callback": told,
        "retries": RETRIES,
        "retry_delay": RETRY_DELAY,
    }
