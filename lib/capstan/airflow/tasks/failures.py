"""Mapping of Capstan's errors to Airflow's task outcomes: fail for good, retry, or wait.

| exit code | task |
| --- | --- |
| 1 a check failed, 2 the request is wrong, 4 another run holds the range | fails, no retry |
| 3 not complete yet | waits if requested; otherwise fails without a retry |
| 5 something broke, or any other code; 4 with `CAP-CONFLICT` | fails, and is retried |
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType

from airflow.sdk import Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    DownstreamTasksSkipped,
)

from capstan.core.json_object import Json
from capstan.errors import (
    CheckFailedError,
    IncompleteError,
    InvalidRequestError,
    RangeLockedError,
    translation,
)

FINAL = frozenset(
    kind.exit_code
    for kind in (CheckFailedError, InvalidRequestError, IncompleteError, RangeLockedError)
)
"""Exit codes that a retry would not change."""

TRANSIENT = frozenset({"CAP-CONFLICT"})
"""Errors with such an exit code that are transient all the same: concurrent commits."""

_log = logging.getLogger(__name__)


class TaskRefusedError(AirflowFailException):
    """Raised when a retry would not help: the task fails for good."""

    about: Json = MappingProxyType({})


class TaskBrokenError(AirflowException):
    """Raised when something broke that may work next time: the task is retried."""

    about: Json = MappingProxyType({})


def failure(code: int, error: Json) -> AirflowException:
    """The exception for an exit code and an error as JSON (`error`, `message`, `hint`)."""
    text = f"{error.get('error')}: {error.get('message')}"
    hint = error.get("hint")
    line = " ".join(f"{text} ({hint})".split() if hint else text.split())
    final = code in FINAL and error.get("error") not in TRANSIENT
    exception = TaskRefusedError(line) if final else TaskBrokenError(line)
    exception.about = error
    return exception


def reschedule(at: datetime) -> AirflowRescheduleException:
    """The exception that frees the worker slot and runs the task again, in the same try."""
    return AirflowRescheduleException(at)  # type: ignore[no-untyped-call]


def skip_following(context: Context, result: Json) -> DownstreamTasksSkipped:
    """Push a task's result, and return the exception that skips all tasks after it."""
    context["ti"].xcom_push(key="return_value", value=dict(result))
    following = context["task"].get_flat_relative_ids(upstream=False)
    return DownstreamTasksSkipped(tasks=sorted(following))  # type: ignore[no-untyped-call]


@contextmanager
def as_task() -> Iterator[None]:
    """Convert what fails to Airflow's exceptions, by code; Airflow's own pass."""
    try:
        yield
    except BaseException as error:
        own = type(error).__module__.startswith("airflow.") or isinstance(error, AirflowException)
        if own or not translation.is_failure(error):
            raise
        coded = translation.to_capstan_error(error)
        raise failure(coded.exit_code, coded.to_json()) from error


def set_usual(arguments: dict[str, object], **usual: object) -> None:
    """Fill in arguments of an operator that its caller, and its DAG's `default_args`, left open.

    Callbacks of `default_args` are kept: they run before the one that logs the error.
    """
    given = arguments.get("default_args")
    defaults = given if isinstance(given, Mapping) else {}
    for name, value in {"on_failure_callback": log_error_last, **usual}.items():
        if name not in defaults:
            arguments.setdefault(name, value)
        elif value is log_error_last:
            arguments.setdefault(name, [*callbacks_of(defaults[name]), log_error_last])


def callbacks_of(value: object) -> list[object]:
    """The callbacks of an operator's argument: none, one or a list of them."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def log_error_last(context: Context) -> None:
    """Log a failed task's error again, as the last line of its log."""
    # Airflow logs a stack trace, and folds away what follows it.
    error = context.get("exception")
    line = f"CAP-BROKEN: {error}"
    if isinstance(error, TaskRefusedError | TaskBrokenError):
        line = str(error)
    elif isinstance(error, BaseException):
        line = str(translation.to_capstan_error(error))
    _log.info("::endgroup::")
    _log.error(line)
