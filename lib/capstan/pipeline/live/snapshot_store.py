"""Where snapshots are kept until they count: written part by part, counted by one commit.

Follows Malstrom's persistence backend. The last snapshot is the one that was committed last, not
the one with the highest number; writing a part of a snapshot that was never committed begins it
anew; what was not committed is never read.
"""

from __future__ import annotations

from typing import Protocol

from capstan.pipeline.state.errors import NotWhole


class SnapshotStore(Protocol):
    """Keeps parts of snapshots."""

    def last(self) -> int | None:
        """The snapshot that was committed last, or None."""

    def begin(self, snapshot: int) -> None:
        """Forget the parts of a snapshot that was not committed."""

    def persist(self, worker: int, snapshot: int, operator: str, state: bytes) -> None:
        """Write a part; one that is there already is written over.

        Raises:
            NotWhole: The snapshot counts already.
        """

    def commit(self, snapshot: int) -> None:
        """Let a snapshot count, with all parts that were written."""

    def load(self, worker: int, snapshot: int, operator: str) -> bytes | None:
        """A part of a snapshot that counts, or None when it has no such part, or does not count."""


class MemorySnapshots:
    """Keeps snapshots as long as the process lives."""

    __slots__ = ("_committed", "_parts")

    def __init__(self) -> None:
        self._committed: list[int] = []
        self._parts: dict[int, dict[tuple[int, str], bytes]] = {}

    def last(self) -> int | None:
        """The snapshot that was committed last, or None."""
        return self._committed[-1] if self._committed else None

    def begin(self, snapshot: int) -> None:
        """Forget the parts of a snapshot that was not committed."""
        if snapshot not in self._committed:
            self._parts.pop(snapshot, None)

    def persist(self, worker: int, snapshot: int, operator: str, state: bytes) -> None:
        """Write a part; one that is there already is written over.

        Raises:
            NotWhole: The snapshot counts already.
        """
        if snapshot in self._committed:
            reason = f"snapshot {snapshot} counts already, and cannot be written to"
            raise NotWhole.create(reason, reason=reason)
        self._parts.setdefault(snapshot, {})[worker, operator] = state

    def commit(self, snapshot: int) -> None:
        """Let a snapshot count, with all parts that were written; once more changes nothing."""
        if snapshot not in self._committed:
            self._committed.append(snapshot)

    def load(self, worker: int, snapshot: int, operator: str) -> bytes | None:
        """A part of a snapshot that counts, or None when it has no such part, or does not count."""
        if snapshot not in self._committed:
            return None
        return self._parts.get(snapshot, {}).get((worker, operator))
