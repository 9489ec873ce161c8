"""Changelog of tables: rows with weights, +1 for an insertion and -1 for a deletion.

Follows LaminarDB's `DagChangelogPropagator`. A slot holds a batch of changes, not a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from capstan.pipeline.graph.errors import NodeNotFound
from capstan.pipeline.graph.events import WEIGHT, Event
from capstan.pipeline.graph.operator import require

CAPACITY: Final = 65_536


@dataclass(frozen=True, slots=True)
class Change:
    """Rows inserted into a table at one time (weight 1), or deleted from it (weight -1)."""

    event: Event
    weight: int

    @classmethod
    def of(cls, weighted: Event) -> Self:
        """Return the change of a result of `weighted`."""
        rows = weighted.batch
        event = Event(weighted.time, rows.drop_columns([WEIGHT]))
        return cls(event, rows.column(WEIGHT)[0].as_py())

    def weighted(self) -> Event:
        """Return the event with the weight as its last column, `_weight`."""
        batch = self.event.batch
        weights = pa.repeat(pa.scalar(self.weight, pa.int64()), batch.num_rows)
        return Event(self.event.time, batch.append_column(WEIGHT, weights))


class Changelog:
    """A bounded buffer of changes per node."""

    def __init__(self, nodes: Iterable[str], capacity: int = CAPACITY) -> None:
        require(capacity >= 1, f"a changelog needs a capacity of at least 1, not {capacity}")
        self.capacity = capacity
        self.enabled = True
        self._buffers: dict[str, deque[Change]] = {node: deque() for node in nodes}
        self._disabled: set[str] = set()

    def switch(self, node: str, *, on: bool) -> None:
        """Turn the recording of one node's changes on or off."""
        self._buffer(node)
        (self._disabled.discard if on else self._disabled.add)(node)

    def recording(self, node: str) -> bool:
        """Whether the changes of a node are recorded."""
        self._buffer(node)
        return self.enabled and node not in self._disabled

    def record(self, node: str, change: Change) -> bool:
        """Record a change; return False when the buffer is full or recording is off."""
        return self._record(node, (change,))

    def record_retraction(self, node: str, before: Event, after: Event) -> bool:
        """Record that `after` replaced `before`: both halves, or neither when it returns False."""
        return self._record(node, (Change(before, -1), Change(after, 1)))

    def drain(self, node: str) -> list[Change]:
        """Remove and return the changes of a node, in order."""
        buffer = self._buffer(node)
        changes = list(buffer)
        buffer.clear()
        return changes

    def peek(self, node: str) -> tuple[Change, ...]:
        """Return the changes of a node, in order, and keep them."""
        return tuple(self._buffer(node))

    def _record(self, node: str, changes: tuple[Change, ...]) -> bool:
        buffer = self._buffer(node)
        if not self.recording(node) or len(buffer) + len(changes) > self.capacity:
            return False
        buffer.extend(changes)
        return True

    def _buffer(self, node: str) -> deque[Change]:
        buffer = self._buffers.get(node)
        if buffer is None:
            raise NodeNotFound.create(f"no changelog for node {node!r}", name=node)
        return buffer
