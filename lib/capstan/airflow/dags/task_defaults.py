"""Default retries and failure callbacks for all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from capstan.airflow.dags.notifications import of_concerned, on_failure
from capstan.airflow.settings import Settings
from capstan.airflow.tasks.failures import callbacks_of

RETRIES = 2
RETRY_DELAY = timedelta(seconds=30)


def task_defaults(
    settings: Settings,
    notify: Sequence[str] = (),
    declared_at: Sequence[str] = (),
    *,
    over_all: bool = False,
) -> dict[str, Any]:
    """Retries and failure callbacks, as keyword arguments of an operator.

    Failures of a task `over_all` declarations also reach the notifiers of those that they name.
    """
    callbacks = on_failure(settings, notify, declared_at)
    if over_all:
        # The error's own line stays last.
        callbacks.insert(-1, of_concerned(settings))
    given = settings.default_args
    return {
        "retries": given.get("retries", RETRIES),
        "retry_delay": given.get("retry_delay", RETRY_DELAY),
        "on_failure_callback": [*callbacks_of(given.get("on_failure_callback")), *callbacks],
    }
