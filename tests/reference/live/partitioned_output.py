"""Output with several readers: records are partitioned, all other messages are broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from capstan.pipeline.keyed.stateful_functions import Data
from tests.reference.errors import Suspended
from tests.reference.key_placement import KeyPlacement, Rendezvous
from tests.reference.live.messages import Epoch, Message, SuspendMarker


class Partitioner(Protocol):
    """Chooses the readers of a record."""

    def __call__(self, record: Data[object], readers: int) -> Sequence[int]:
        """Return the positions of the readers of `record`; there is at least one reader."""


def to_all(record: Data[object], readers: int) -> Sequence[int]:
    """Send every record to all readers."""
    return range(readers)


def round_robin() -> Partitioner:
    """Create a partitioner that sends records to readers in turn."""
    turn = -1

    def next_of(record: Data[object], readers: int) -> Sequence[int]:
        nonlocal turn
        turn = (turn + 1) % readers
        return (turn,)

    return next_of


def by_key(placement: KeyPlacement | None = None) -> Partitioner:
    """Create a partitioner that sends records with equal keys to one reader.

    Args:
        placement: Placement among the readers' positions; by default rendezvous hashing.
    """
    chosen = Rendezvous() if placement is None else placement

    def owner_of(record: Data[object], readers: int) -> Sequence[int]:
        return (chosen.owner(record.key, range(readers)),)

    return owner_of


class Output:
    """Sends messages to its readers, and drops them when there are none.

    Attributes:
        frontier: The greatest epoch that was sent, or None.
        suspended: Whether a suspend marker was sent; nothing may follow it.
    """

    __slots__ = ("_partitioner", "_readers", "frontier", "suspended")

    def __init__(self, partitioner: Partitioner = to_all) -> None:
        self._partitioner = partitioner
        self._readers: list[Callable[[Message], None]] = []
        self.frontier: int | None = None
        self.suspended = False

    def add_reader(self, put: Callable[[Message], None]) -> None:
        """Add a reader, which is called with messages from now on."""
        self._readers.append(put)

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            Suspended: A suspend marker was sent earlier.
        """
        if self.suspended:
            raise Suspended.create(f"{type(message).__name__} after a suspend marker")
        if isinstance(message, Data):
            if self._readers:
                for position in self._partitioner(message, len(self._readers)):
                    self._readers[position](message)
            return
        if isinstance(message, Epoch):
            known = self.frontier
            self.frontier = message.time if known is None else max(known, message.time)
        self.suspended = isinstance(message, SuspendMarker)
        for put in self._readers:
            put(message)
