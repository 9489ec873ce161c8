"""Stores of snapshots: written in parts, made valid by one commit.

Follows Malstrom's persistence backend. The last snapshot is the one that was committed last, not
the one with the highest number. Writing to an uncommitted snapshot restarts it, and uncommitted
snapshots are never read.
"""

from __future__ import annotations

from typing import Protocol

from capstan.pipeline.state.errors import NotWhole


class SnapshotStore(Protocol):
    """Stores parts of snapshots."""

    def last(self) -> int | None:
        """Return the snapshot that was committed last, or None."""

    def begin(self, snapshot: int) -> None:
        """Drop the parts of an uncommitted snapshot."""

    def persist(self, worker: int, snapshot: int, operator: str, state: bytes) -> None:
        """Write a part, replacing an earlier one.

        Raises:
            NotWhole: The snapshot is committed.
        """

    def commit(self, snapshot: int) -> None:
        """Commit a snapshot with all parts that were written."""

    def load(self, worker: int, snapshot: int, operator: str) -> bytes | None:
        """Return a part of a committed snapshot, or None when there is no such part."""


class MemorySnapshots:
    """Stores snapshots in memory."""

    __slots__ = ("_committed", "_parts")

    def __init__(self) -> None:
        self._committed: list[int] = []
        self._parts: dict[int, dict[tuple[int, str], bytes]] = {}

    def last(self) -> int | None:
        """Return the snapshot that was committed last, or None."""
        return self._committed[-1] if self._committed else None

    def begin(self, snapshot: int) -> None:
        """Drop the parts of an uncommitted snapshot."""
        if snapshot not in self._committed:
            self._parts.pop(snapshot, None)

    def persist(self, worker: int, snapshot: int, operator: str, state: bytes) -> None:
        """Write a part, replacing an earlier one.

        Raises:
            NotWhole: The snapshot is committed.
        """
        if snapshot in self._committed:
            reason = f"snapshot {snapshot} is committed, and cannot be written to"
            raise NotWhole.create(reason, reason=reason)
        self._parts.setdefault(snapshot, {})[worker, operator] = state

    def commit(self, snapshot: int) -> None:
        """Commit a snapshot with all parts that were written; repeating it has no effect."""
        if snapshot not in self._committed:
            self._committed.append(snapshot)

    def load(self, worker: int, snapshot: int, operator: str) -> bytes | None:
        """Return a part of a committed snapshot, or None when there is no such part."""
        if snapshot not in self._committed:
            return None
        return self._parts.get(snapshot, {}).get((worker, operator))
