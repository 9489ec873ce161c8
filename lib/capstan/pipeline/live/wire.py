"""What workers send each other, in order between any two of them."""

from __future__ import annotations

from dataclasses import dataclass

from capstan.pipeline.keyed.messages import Acquire, Data, Epoch, SuspendMarker


@dataclass(frozen=True, slots=True)
class Sent:
    """A record on its way.

    Attributes:
        record: The record.
        version: Of the placement by which the sender sent it.
    """

    record: Data[object]
    version: int


@dataclass(frozen=True, slots=True)
class BarrierMarker:
    """All that the sender sent before belongs to a snapshot.

    Attributes:
        snapshot: Its number.
    """

    snapshot: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """The sender has a rescale before it and holds its epochs from now on.

    Attributes:
        version: Of the rescale.
        epoch: The last epoch of the sender's own input that it told anybody, or None.
    """

    version: int
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The sender has given away all keys that had to go.

    Attributes:
        version: Of the rescale.
    """

    version: int


@dataclass(frozen=True, slots=True)
class AckUpgrade:
    """The sender has seen the receiver's `Upgrade`.

    Attributes:
        version: Of the rescale.
    """

    version: int


@dataclass(frozen=True, slots=True)
class Done:
    """The sender asks no old owner any more.

    Attributes:
        version: Of the rescale.
    """

    version: int


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender hands nothing back any more.

    Attributes:
        version: Of the rescale.
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
"""Every message between workers."""
