"""Retries of commits that lose Delta's conflict check."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from capstan.errors import RangeLockedError
from capstan.storage.delta.constraint_errors import constraint_error

_CONFLICTS = (
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentWriteException",
    "MetadataChangedException",
)
SAME_TXN = "ConcurrentTransactionException"
"""The exception of a commit whose transaction identity is used by a concurrent commit."""

T = TypeVar("T")


def is_conflict(error: Py4JJavaError | PySparkException) -> bool:
    """Whether a commit lost to another writer of the table and can be repeated."""
    return is_any(error, *_CONFLICTS)


def is_any(error: Py4JJavaError | PySparkException, *names: str) -> bool:
    """Whether an error is one of these Delta exceptions, by class name or text."""
    return any(name in f"{type(error).__name__}: {error}" for name in names)


def retrying(write: Callable[[], T], path: str, attempts: int = 12) -> T:
    """Repeat `write` while it loses Delta's conflict check, with growing pauses."""
    for attempt in range(attempts):
        try:
            return write()
        except (Py4JJavaError, PySparkException) as error:
            if not is_conflict(error):
                violation = constraint_error(error, path)
                if violation is None:
                    raise
                raise violation from error
            time.sleep(min(0.1 * 2**attempt, 3.0))
    raise RangeLockedError(
        "CAP-CONFLICT",
        f"{attempts} commits in a row to {path} lost to other writers",
        "repeat the command",
        path=path,
    )
