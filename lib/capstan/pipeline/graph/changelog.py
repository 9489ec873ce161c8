"""Changes of tables as rows with weights: +1 is put in, -1 is taken out.

Follows LaminarDB's `DagChangelogPropagator`. A slot is a batch of changes, not a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from capstan.pipeline.graph.errors import NodeNotFound
from capstan.pipeline.graph.events import WEIGHT, Event

CAPACITY: Final = 65_536


@dataclass(frozen=True, slots=True)
class Change:
    """Rows that came or went at a time.

    Attributes:
        event: The rows and their time.
        weight: +1 when they came, -1 when they went.
    """

    event: Event
    weight: int

    def weighted(self) -> Event:
        """The same with the weight as a last column `_weight`."""
        batch = self.event.batch
        weights = pa.repeat(pa.scalar(self.weight, pa.int64()), batch.num_rows)
        return Event(self.event.time, batch.append_column(WEIGHT, weights))


class Changelog:
    """A bounded buffer of changes for each node.

    Attributes:
        capacity: How many changes each node's buffer holds.
        enabled: Whether anything is recorded at all.
    """

    __slots__ = ("_buffers", "_disabled", "capacity", "enabled")

    def __init__(self, nodes: Iterable[str], capacity: int = CAPACITY) -> None:
        if capacity < 1:
            message = f"a changelog holds at least one change, not {capacity}"
            raise ValueError(message)
        self.capacity = capacity
        self.enabled = True
        self._buffers: dict[str, deque[Change]] = {node: deque() for node in nodes}
        self._disabled: set[str] = set()

    def switch(self, node: str, *, on: bool) -> None:
        """Record the changes of a node, or not.

        Raises:
            NodeNotFound: There is no such node.
        """
        self._buffer(node)
        (self._disabled.discard if on else self._disabled.add)(node)

    def recording(self, node: str) -> bool:
        """Whether changes of a node are recorded.

        Raises:
            NodeNotFound: There is no such node.
        """
        self._buffer(node)
        return self.enabled and node not in self._disabled

    def record(self, node: str, change: Change) -> bool:
        """Keep a change; False when the buffer is full or switched off.

        Raises:
            NodeNotFound: There is no such node.
        """
        return self._record(node, (change,))

    def record_retraction(self, node: str, before: Event, after: Event) -> bool:
        """Keep that `after` took the place of `before`: both halves, or none when False.

        Raises:
            NodeNotFound: There is no such node.
        """
        return self._record(node, (Change(before, -1), Change(after, 1)))

    def drain(self, node: str) -> list[Change]:
        """Take the changes of a node, in order.

        Raises:
            NodeNotFound: There is no such node.
        """
        buffer = self._buffer(node)
        taken = list(buffer)
        buffer.clear()
        return taken

    def peek(self, node: str) -> tuple[Change, ...]:
        """The changes of a node, in order, which stay where they are.

        Raises:
            NodeNotFound: There is no such node.
        """
        return tuple(self._buffer(node))

    def _record(self, node: str, changes: tuple[Change, ...]) -> bool:
        buffer = self._buffer(node)
        if not self.recording(node) or len(buffer) + len(changes) > self.capacity:
            return False
        buffer.extend(changes)
        return True

    def _buffer(self, node: str) -> deque[Change]:
        found = self._buffers.get(node)
        if found is None:
            raise NodeNotFound.create(f"no node {node!r} has a changelog", name=node)
        return found
