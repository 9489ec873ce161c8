"""The events of a recording."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from capstan.core.protocol.rules import Rule
from capstan.core.times import Time


@dataclass(frozen=True, slots=True)
class Progress:
    """Changes `(time, diff)` of the capabilities held, as recorded; diffs may be zero or cancel."""

    updates: tuple[tuple[Time, int], ...]

    @classmethod
    def of(cls, updates: Iterable[tuple[tuple[int, ...], int]]) -> Progress:
        """The progress event with these updates."""
        return cls(tuple((Time(time), diff) for time, diff in updates))


@dataclass(frozen=True, slots=True)
class Messages:
    """A batch of records at one time, perhaps of none.

    On a tape an event has only the number of its records, which are stored elsewhere, and `data` is
    None; in a program or a transcript it has the records themselves, in recorded order.
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
    """An item of a recording that is not a valid event: its rule is `shape`, `seq` or `content`.

    Readers put it in place of the event, so that it is reported in its turn: earlier events still
    count. It has the event as `found` if only its number is wrong.
    """

    rule: Rule
    detail: str
    found: Event | None = field(default=None, compare=False, repr=False, kw_only=True)


Item = Event | Fault
