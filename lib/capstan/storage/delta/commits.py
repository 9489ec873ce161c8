"""Commits of a Delta table: what they say of themselves, retries of those that lose, and errors."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from capstan.errors import CheckFailedError, RangeLockedError

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

Note = Mapping[str, Any]
"""What a writer says of its commit; each kind of commit has its own keys."""


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Delta's commitInfo of a version, with Capstan's note."""

    version: int
    operation: str  # empty if the writer names none
    at: datetime
    metrics: Mapping[str, str]
    note: Note  # empty for a commit by another writer

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> CommitInfo:
        """The commit of an entry of the log."""
        metrics = entry.get("operationMetrics")
        return cls(
            entry["version"],
            entry.get("operation") or "",
            datetime.fromtimestamp((entry.get("timestamp") or 0) / 1000, UTC),
            metrics if isinstance(metrics, dict) else {},
            _note(entry.get("userMetadata")),
        )


def _note(text: object) -> Note:
    try:
        note = json.loads(str(text)) if text else {}
    except ValueError:
        return {}
    content = note.get("capstan") if isinstance(note, dict) else None
    return content if isinstance(content, dict) else {}


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


_RULES = {
    "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES": "",
    "DELTA_NOT_NULL_CONSTRAINT_VIOLATED": "",
    "DELTA_MISSING_NOT_NULL_COLUMN_VALUE": "",
    "DELTA_EXCEED_CHAR_VARCHAR_LIMIT": "",
    "DELTA_CANNOT_MODIFY_APPEND_ONLY": "the table only accepts appends (delta.appendOnly)",
}

_MESSAGE = re.compile(rf"\[(?P<condition>{'|'.join(_RULES)})\]\s*(?P<text>[^\n]*(?:\n - [^\n]*)*)")

# Delta checks the range of a replacement by an anonymous constraint.
_RANGE_CHECK = "CHECK constraint EXPRESSION("

_MAX_LENGTH = 300


def constraint_error(error: BaseException, path: str) -> CheckFailedError | None:
    """Translate an error of a Spark write, maybe wrapped, into `CAP-CONSTRAINT` if it is one.

    None for all other errors, and for rows outside the range of a replacement.
    """
    match = _MESSAGE.search(str(error))
    if match is None or match["text"].startswith(_RANGE_CHECK):
        return None
    text = " ".join((_RULES[match["condition"]] or match["text"]).split()).rstrip(".")
    return CheckFailedError(
        "CAP-CONSTRAINT",
        f"the table at {path} rejects the rows: {text[:_MAX_LENGTH]}; nothing was written",
        "correct the rows in the source or by a transform; or change the table's constraints",
        path=path,
        condition=match["condition"],
    )
