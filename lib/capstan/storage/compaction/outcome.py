"""The outcome of maintaining a table, and steps that are repeated until nothing is left to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from capstan.errors import RangeLockedError
from capstan.storage.compaction.policy import TapeFile

TRIES = 12
"""How often to retry when another writer has replaced files of a table."""


@dataclass(slots=True)
class TableResult:
    """The result of maintaining a table."""

    table: str
    files_before: int = 0
    files: int = 0
    bytes: int = 0
    rewritten: int = 0
    vacuumed: int = 0  # deleted files, which no retained version uses
    checkpoint: bool = False
    # Ranges of batches whose records differ from the index; they were left unchanged.
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def observe(self, files: Sequence[TapeFile]) -> None:
        """Record the present files of the table."""
        self.files, self.bytes = len(files), sum(file.bytes for file in files)
        self.files_before = self.files_before or self.files


def repeat_until_done(path: str, step: Callable[[], bool | None]) -> None:
    """Repeat a step until it returns None, for nothing to do.

    False means that another writer has replaced files of the table meanwhile.
    """
    done = None
    for _ in range(TRIES):
        done = step()
        if done is None:
            return
    if done is False:
        raise RangeLockedError(
            "CAP-CONFLICT",
            f"other writers replaced files of {path} {TRIES} times in a row",
            "run the same command again: it resumes where this one stopped",
            path=path,
        )
