"""How often a task is tried, and who is told once that was of no use: the same for all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from capstan.airflow.notify import on_failure
from capstan.airflow.setting import Setting

RETRIES = 2
RETRY_DELAY = timedelta(seconds=30)


def tried(
    setting: Setting, declared: Sequence[str] = (), place: Sequence[str] = ()
) -> dict[str, Any]:
    """The arguments of a task that say so.

    Args:
        setting: Where Capstan works.
        declared: Whom to tell of this task, besides those who are told of all.
        place: Where they are declared, for the message.

    Raises:
        BadRequest: As `on_failure`.
    """
    return {
        "on_failure_callback": on_failure(setting, declared, place),
        "retries": RETRIES,
        "retry_delay": RETRY_DELAY,
    }
