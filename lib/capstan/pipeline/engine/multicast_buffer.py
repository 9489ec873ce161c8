"""Bounded places between who writes and who reads."""

from __future__ import annotations

from typing import Generic, TypeVar

from capstan.pipeline.graph.errors import BackpressureFull

Item = TypeVar("Item")


class MulticastBuffer(Generic[Item]):
    """A ring that one writes and several read, each all of it, in order, at its own pace.

    Follows LaminarDB's `MulticastBuffer`. A slot is free again when the slowest has read it.

    Attributes:
        capacity: How many items fit; a power of two.
    """

    __slots__ = ("_read", "_slots", "_write", "capacity")

    def __init__(self, capacity: int, consumers: int) -> None:
        """An empty ring.

        Raises:
            ValueError: `capacity` is not a power of two, or nobody reads.
        """
        if capacity < 1 or capacity & (capacity - 1):
            message = f"the capacity of a ring is a power of two, not {capacity}"
            raise ValueError(message)
        if consumers < 1:
            message = f"a ring has at least one reader, not {consumers}"
            raise ValueError(message)
        self.capacity = capacity
        self._slots: list[Item | None] = [None] * capacity
        self._write = 0
        self._read = [0] * consumers

    @property
    def written(self) -> int:
        """How many items were ever published."""
        return self._write

    @property
    def positions(self) -> tuple[int, ...]:
        """How many items each reader has ever read."""
        return tuple(self._read)

    @property
    def free(self) -> int:
        """How many items can be published before somebody has to read."""
        return self.capacity - (self._write - min(self._read))

    def publish(self, item: Item) -> None:
        """Append an item for all readers.

        Raises:
            BackpressureFull: The slowest reader has to read first.
        """
        if not self.free:
            raise BackpressureFull.create(
                f"all {self.capacity} slots wait for their slowest reader", capacity=self.capacity
            )
        self._slots[self._write % self.capacity] = item
        self._write += 1

    def consume(self, consumer: int) -> Item | None:
        """The next item of a reader, or None when it has read all.

        Raises:
            IndexError: There is no such reader.
        """
        position = self._read[consumer]
        if position == self._write:
            return None
        item = self._slots[position % self.capacity]
        self._read[consumer] = position + 1
        if min(self._read) > position:
            # Read by all: what it refers to can be freed before the slot is written again.
            self._slots[position % self.capacity] = None
        return item
