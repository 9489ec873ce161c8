"""From Capstan's errors to what Airflow does with a task: fail for good, retry, or say it again.

| exit code | a task |
| --- | --- |
| 1 the answer is no, 2 the request is wrong, 4 another run holds the range | fails, no retry |
| 3 not complete yet | waits, where it was asked to; else it fails without a retry |
| 5 something broke, or no code of Capstan's; 4 with `CAP-CONFLICT` | fails, and is retried |
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType

from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
)

from capstan import error_translation
from capstan.errors import (
    CapstanError,
    CheckFailedError,
    IncompleteError,
    InvalidRequestError,
    RangeLockedError,
)

FINAL = frozenset(
    kind.exit_code
    for kind in (CheckFailedError, InvalidRequestError, IncompleteError, RangeLockedError)
)
"""Exit codes that trying again does not change."""

PASSING = frozenset({"CAP-CONFLICT"})
"""Errors with such an exit code that pass all the same: others were committing just then."""

_log = logging.getLogger(__name__)


class TaskRefusedError(AirflowFailException):
    """Raised when trying again would not change the answer: the task fails without a retry.

    Attributes:
        about: What is known of it: the app's answer, or the facts of the error.
    """

    about: Mapping[str, object] = MappingProxyType({})


class TaskBrokenError(AirflowException):
    """Raised when something broke that may work the next time: the task is retried.

    Attributes:
        about: As of `TaskRefusedError`.
    """

    about: Mapping[str, object] = MappingProxyType({})


def failure(code: int, error: Mapping[str, object]) -> AirflowException:
    """The exception for an error as JSON (`error`, `message`, `hint`) and an exit code."""
    said = f"{error.get('error')}: {error.get('message')}"
    hint = error.get("hint")
    line = " ".join(f"{said} ({hint})".split() if hint else said.split())
    final = code in FINAL and error.get("error") not in PASSING
    found = TaskRefusedError(line) if final else TaskBrokenError(line)
    found.about = error
    return found


def come_back(at: datetime) -> AirflowRescheduleException:
    """The exception that frees the worker's slot and has the task run again, in the same try."""
    return AirflowRescheduleException(at)  # type: ignore[no-untyped-call]


@contextmanager
def as_task() -> Iterator[None]:
    """Turn errors of Capstan into what Airflow does with a task."""
    try:
        yield
    except CapstanError as error:
        raise failure(error.exit_code, error.to_json()) from error


def say_last(context: Mapping[str, object]) -> None:
    """Say a failed task's error once more, as the last line of its log.

    Airflow's own account of a failure is a stack trace, and what comes after it is folded away.
    """
    error = context.get("exception")
    if isinstance(error, TaskRefusedError | TaskBrokenError):
        line = str(error)
    else:
        line = str(
            error_translation.to_capstan_error(error)
            if isinstance(error, BaseException)
            else f"CAP-BROKEN: {error}"
        )
    _log.info("::endgroup::")
    _log.error(line)
