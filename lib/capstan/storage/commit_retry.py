"""Commits that lose Delta's conflict check: told apart from what else fails, and made again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from capstan.errors import RangeLockedError
from capstan.storage.constraint_errors import refusal

_CONFLICTS = (
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentWriteException",
    "MetadataChangedException",
)
SAME_TXN = "ConcurrentTransactionException"
"""Of a commit whose transaction identity another one has used at the same time."""

T = TypeVar("T")


def is_conflict(error: Py4JJavaError | PySparkException) -> bool:
    """Whether a commit has lost to another writer of the table, and can be made again."""
    return is_any(error, *_CONFLICTS)


def is_any(error: Py4JJavaError | PySparkException, *names: str) -> bool:
    """Whether an error is one of these of Delta's; its text alone may not have its name."""
    return any(name in f"{type(error).__name__}: {error}" for name in names)


def retrying(write: Callable[[], T], path: str, attempts: int = 12) -> T:
    """Repeat `write` while it loses Delta's conflict check, with growing pauses.

    Raises:
        RangeLockedError: `CAP-CONFLICT` when every attempt lost.
        CheckFailedError: `CAP-CONSTRAINT` when rows break a rule of the table.
    """
    for attempt in range(attempts):
        try:
            return write()
        except (Py4JJavaError, PySparkException) as error:
            if not is_conflict(error):
                refused = refusal(error, path)
                if refused is None:
                    raise
                raise refused from error
            time.sleep(min(0.1 * 2**attempt, 3.0))
    raise RangeLockedError(
        "CAP-CONFLICT",
        f"{attempts} commits in a row to {path} lost to other writers",
        "run the same command again",
        path=path,
    )
