"""What a recording consists of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from capstan.core.protocol.rules import Rule
from capstan.core.times import Time


@dataclass(frozen=True, slots=True)
class Progress:
    """A change to how many capabilities are held at each time, as it was recorded.

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

    On a tape an event carries only the number of its records, which lie elsewhere; in a program
    or a transcript it carries the records themselves.

    Attributes:
        time: The time of all of them.
        records: How many there are; may be 0.
        data: The records in recorded order, or None when they lie elsewhere.

    Raises:
        ValueError: `records` is below zero, or not the number of `data`.
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
    """A place in a recording where there is no event that could be judged.

    Readers put it where the event would be, so that it is reported in its turn: what comes before
    it still counts.

    Attributes:
        rule: `shape`, `seq` or `content`.
        detail: What was found instead, in words.
        found: The event that is there, where only its number is wrong.
    """

    rule: Rule
    detail: str
    found: Event | None = field(default=None, compare=False, repr=False, kw_only=True)


Item = Event | Fault
