"""Bounded ring buffer with several readers. Reference implementation.

No product code path uses it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from capstan.pipeline.graph.errors import BackpressureFull

Item = TypeVar("Item")


class MulticastBuffer(Generic[Item]):
    """A ring buffer with one writer and several readers, each at its own pace.

    Follows LaminarDB's `MulticastBuffer`. Every reader gets all items in order. A slot becomes
    free when the slowest reader has read it.

    Attributes:
        capacity: Number of slots; a power of two.
    """

    __slots__ = ("_read", "_slots", "_write", "capacity")

    def __init__(self, capacity: int, consumers: int) -> None:
        """Create an empty ring.

        Raises:
            ValueError: `capacity` is not a power of two, or there are no readers.
        """
        if capacity < 1 or capacity & (capacity - 1):
            message = f"the capacity of a ring must be a power of two, not {capacity}"
            raise ValueError(message)
        if consumers < 1:
            message = f"a ring needs at least one reader, not {consumers}"
            raise ValueError(message)
        self.capacity = capacity
        self._slots: list[Item | None] = [None] * capacity
        self._write = 0
        self._read = [0] * consumers

    @property
    def written(self) -> int:
        """Total number of items published."""
        return self._write

    @property
    def positions(self) -> tuple[int, ...]:
        """Total number of items read, per reader."""
        return tuple(self._read)

    @property
    def free(self) -> int:
        """Number of items that can be published before the slowest reader must read."""
        return self.capacity - (self._write - min(self._read))

    def publish(self, item: Item) -> None:
        """Append an item for all readers.

        Raises:
            BackpressureFull: The slowest reader must read first.
        """
        if not self.free:
            raise BackpressureFull.create(
                f"all {self.capacity} slots are unread by the slowest reader",
                capacity=self.capacity,
            )
        self._slots[self._write % self.capacity] = item
        self._write += 1

    def consume(self, consumer: int) -> Item | None:
        """Return the next item of a reader, or None when it has read all.

        Raises:
            IndexError: The ring has no such reader.
        """
        position = self._read[consumer]
        if position == self._write:
            return None
        item = self._slots[position % self.capacity]
        self._read[consumer] = position + 1
        if min(self._read) > position:
            # All readers have read it: release the item before the slot is reused.
            self._slots[position % self.capacity] = None
        return item
