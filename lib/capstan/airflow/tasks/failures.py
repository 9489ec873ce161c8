"""Mapping of Capstan's errors to Airflow's task outcomes: fail for good, retry, or wait.

| exit code | task |
| --- | --- |
| 1 a check failed, 2 the request is wrong, 4 another run holds the range | fails, no retry |
| 3 not complete yet | waits if requested; otherwise fails without a retry |
| 5 something broke, or any other code; 4 with `CAP-CONFLICT` | fails, and is retried |
| 5 with a code that no retry can mend, such as `CAP-DAMAGED` | fails, no retry |
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import Any

import structlog
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
    SystemFailureError,
    translation,
)

FINAL = frozenset(
    kind.exit_code
    for kind in (CheckFailedError, InvalidRequestError, IncompleteError, RangeLockedError)
)
"""Exit codes that a retry would not change."""

TRANSIENT = frozenset({"CAP-CONFLICT"})
"""Errors with such an exit code that are transient all the same: concurrent commits."""

HELD = frozenset({"CAP-HOURS", "CAP-PAUSED"})
"""Errors with exit code 3 that a person or a policy ends: no task gives up waiting for that."""

LASTING = frozenset({"CAP-DAMAGED", "CAP-JAVA", "CAP-PACKAGE"})
"""Errors with exit code 5 that no retry mends: whoever is to be notified hears of them at once."""

_log = logging.getLogger(__name__)


class TaskRefusedError(AirflowFailException):
    """Raised when a retry would not help: the task fails for good, without a stack trace."""

    about: Json = MappingProxyType({})

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        # Airflow logs the stack trace of what a task raises; here its text alone says what to do.
        processors = structlog.get_config()["processors"]
        if isinstance(processors, list) and _without_trace not in processors:
            processors.insert(0, _without_trace)


class TaskBrokenError(AirflowException):
    """Raised when something broke that may work next time: the task is retried."""

    about: Json = MappingProxyType({})


def _without_trace(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """A line of the log without the stack trace of a refusal."""
    error = sys.exception()
    if isinstance(error, TaskRefusedError) and event.pop("exc_info", None):
        event["event"] = f"Failed, and not tried again: {error}"
    return event


def failure(code: int, error: Json) -> AirflowException:
    """The exception for an exit code and an error as JSON (`error`, `message`, `hint`)."""
    text = f"{error.get('error')}: {error.get('message')}"
    hint = error.get("hint")
    line = " ".join(f"{text} ({hint})".split() if hint else text.split())
    kind = error.get("error")
    final = kind in LASTING or (code in FINAL and kind not in TRANSIENT)
    exception = TaskRefusedError(line) if final else TaskBrokenError(line)
    exception.about = error
    return exception


def unusable(problem: str, hint: str) -> AirflowException:
    """The exception for a result that is missing, or is not that of the job."""
    error = {"error": "CAP-RESULT", "message": problem, "hint": hint}
    return failure(InvalidRequestError.exit_code, error)


def broken(problem: str, log: str = "the lines of Spark above") -> AirflowException:
    """The exception for a job that left no result; `log` says where to look."""
    hint = f"see {log}; the next try is the next attempt of the same run"
    error = {"error": "CAP-SUBMIT", "message": problem, "hint": hint}
    return failure(SystemFailureError.exit_code, error)


def no_result() -> AirflowException:
    """The exception of a task that finds no result of the one before it."""
    return unusable("the previous task left no result", "run it again")


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
        failed = failure(coded.exit_code, coded.to_json())
        raise failed from None if isinstance(failed, TaskRefusedError) else error


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
    """Log a failed task's error again at the end of its log, and then what to do."""
    # Airflow logs a stack trace, and folds away what follows it.
    error = context.get("exception")
    line, hint = f"CAP-BROKEN: {error}", None
    if isinstance(error, TaskRefusedError | TaskBrokenError):
        about = error.about
        line, hint = (
            (f"{about['error']}: {about['message']}" if about else str(error)),
            about.get("hint"),
        )
    elif isinstance(error, BaseException):
        coded = translation.to_capstan_error(error)
        line, hint = str(coded), coded.hint
    _log.info("::endgroup::")
    _log.error(" ".join(line.split()))
    if hint:
        _log.error("What to do: %s", " ".join(str(hint).split()))
