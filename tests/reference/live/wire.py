"""Messages between workers, in order between any two of them."""

from __future__ import annotations

from dataclasses import dataclass

from capstan.pipeline.keyed.stateful_functions import Data
from tests.reference.live.messages import Acquire, Epoch, SuspendMarker


@dataclass(frozen=True, slots=True)
class Sent:
    """A record in transit.

    Attributes:
        record: The record.
        version: Placement version that the sender used.
    """

    record: Data[object]
    version: int


@dataclass(frozen=True, slots=True)
class BarrierMarker:
    """Separates messages before a snapshot from those after it.

    Attributes:
        snapshot: Number of the snapshot.
    """

    snapshot: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """The sender has begun a rescale and holds its epochs from now on.

    Attributes:
        version: Version of the rescale.
        epoch: The last own epoch that the sender has announced, or None.
    """

    version: int
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The sender has sent away all keys that must move.

    Attributes:
        version: Version of the rescale.
    """

    version: int


@dataclass(frozen=True, slots=True)
class AckUpgrade:
    """The sender has received the receiver's `Upgrade`.

    Attributes:
        version: Version of the rescale.
    """

    version: int


@dataclass(frozen=True, slots=True)
class Done:
    """The sender sends no more requests to old owners.

    Attributes:
        version: Version of the rescale.
    """

    version: int


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender returns nothing any more.

    Attributes:
        version: Version of the rescale.
    """

    version: int


Wire = (
    Sent
    | Epoch
    | BarrierMarker
    | SuspendMarker
    | Acquire
    | Prepared
    | Upgrade
    | AckUpgrade
    | Done
    | Bye
)
"""All messages between workers."""
