"""The events of a recording."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from capstan.core.protocol.rules import Rule
from capstan.core.times import Time


@dataclass(frozen=True, slots=True)
class Progress:
    """A change in the number of capabilities held at each time, as recorded.

    Attributes:
        updates: `(time, diff)` in recorded order; may be empty, zero, or cancel.
    """

    updates: tuple[tuple[Time, int], ...]

    @classmethod
    def of(cls, updates: Iterable[tuple[tuple[int, ...], int]]) -> Progress:
        """The progress event with these updates."""
        return cls(tuple((Time(time), diff) for time, diff in updates))


@dataclass(frozen=True, slots=True)
class Messages:
    """A batch of records at one time.

    On a tape an event has only the number of its records, which are stored elsewhere; in a program
    or a transcript it has the records themselves.

    Attributes:
        records: The number of records; may be 0.
        data: The records in recorded order, or None when they are stored elsewhere.
    """

    time: Time
    records: int
    data: tuple[object, ...] | None = None

    def __post_init__(self) -> None:
        if self.records < 0 or (self.data is not None and len(self.data) != self.records):
            size = "no data" if self.data is None else f"data of {len(self.data)}"
            message = f"{self.records} records with {size}"
            raise ValueError(message)

    @classmethod
    def of(cls, time: tuple[int, ...], data: Iterable[object]) -> Messages:
        """The messages event that carries these records."""
        records = tuple(data)
        return cls(Time(time), len(records), records)


Event = Progress | Messages


@dataclass(frozen=True, slots=True)
class Fault:
    """An item of a recording that is not a valid event.

    Readers put it in place of the event, so that it is reported in its turn: earlier events still
    count.

    Attributes:
        rule: `shape`, `seq` or `content`.
        detail: A description of what was found instead.
        found: The event itself, if only its number is wrong.
    """

    rule: Rule
    detail: str
    found: Event | None = field(default=None, compare=False, repr=False, kw_only=True)


Item = Event | Fault
