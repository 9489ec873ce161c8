"""The events of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from capstan.core.protocol.rules import Rule
from capstan.core.times import Time
from capstan.errors import InvalidRequestError

STAMP: Final = "_stamp"
"""Column of records with the elements of their stamp, where transforms and pipelines see it."""

_SHOWN = 5


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
    """A batch of records, perhaps of none, under one stamp.

    A stamp is a sorted multiset of times, nearly always of one: the records may cause work at or
    after any of its elements. Without elements they bear on no time at all. A `stamp` that is not
    sorted is refused wherever it is checked, written or read; `under` sorts.

    On a tape an event has only the number of its records, which are stored elsewhere, and `data` is
    None; in a program or a transcript it has the records themselves, in recorded order.
    """

    stamp: tuple[Time, ...]
    records: int
    data: tuple[object, ...] | None = None

    def __post_init__(self) -> None:
        if self.records < 0 or (self.data is not None and len(self.data) != self.records):
            size = "no data" if self.data is None else f"data of {len(self.data)}"
            message = f"{self.records} records with {size}"
            raise ValueError(message)

    @classmethod
    def of(cls, time: tuple[int, ...], data: Iterable[object]) -> Messages:
        """The messages event that carries these records at one time."""
        records = tuple(data)
        return cls((Time(time),), len(records), records)

    @classmethod
    def under(cls, times: Iterable[tuple[int, ...]], data: Iterable[object]) -> Messages:
        """The messages event that carries these records under a stamp of times in any order."""
        records = tuple(data)
        return cls(tuple(sorted(map(Time, times))), len(records), records)

    @property
    def time(self) -> Time:
        """The only element of the stamp; `CAP-STAMP` if there are several, or none."""
        if len(self.stamp) != 1:
            raise InvalidRequestError(
                "CAP-STAMP",
                f"messages have {stamp_text(self.stamp)}, where one time is needed",
                "use the stamp of the messages, or a recording whose stamps have one element each",
            )
        return self.stamp[0]


def in_order(stamp: Sequence[tuple[int, ...]]) -> bool:
    """Whether the elements of a stamp are sorted, as timely writes them."""
    return all(before <= after for before, after in pairwise(stamp))


def unsorted(stamp: Sequence[tuple[int, ...]]) -> str:
    """The words about a stamp whose elements are not in order."""
    return f"elements not in order: {stamp_text(stamp)}"


def stamp_text(stamp: Sequence[tuple[int, ...]]) -> str:
    """A stamp in words: its first elements."""
    if not stamp:
        return "a stamp without elements"
    first = ", ".join(str(time[0] if len(time) == 1 else tuple(time)) for time in stamp[:_SHOWN])
    more = f" and {len(stamp) - _SHOWN} more" if len(stamp) > _SHOWN else ""
    return f"a stamp of {len(stamp)} elements: {first}{more}"


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
