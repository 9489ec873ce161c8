"""The contents of a recording in a canonical order, for tests and inspection."""

from __future__ import annotations

import math
from collections.abc import Iterable

from capstan.core.protocol import Event, Messages
from capstan.core.times import Time
from capstan.interop.timely.types.event_types import records_of


def extract(events: Iterable[Event]) -> list[tuple[Time, tuple[object, ...]]]:
    """The records of events by time: times in listing order, records sorted within a time.

    Progress is ignored, times without records are left out. After timely's `Extract`. The order is
    that of Rust: numbers by value, text by its characters, tuples and lists by their first part and
    onwards, None before everything else.

    Args:
        events: All events of one recording or of several, in any order.

    Raises:
        MisfitError: An event counts records but does not carry them.
    """
    by_time: dict[Time, list[object]] = {}
    for event in events:
        if isinstance(event, Messages):
            by_time.setdefault(event.time, []).extend(records_of(event))
    return [
        (time, tuple(sorted(records, key=_key)))
        for time, records in sorted(by_time.items())
        if records
    ]


_SORTED_BY_VALUE = ((1, int | float), (3, str), (4, bytes))


def _key(value: object) -> tuple[object, ...]:
    """A key that sorts values of one type by value, and separates those of different types."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    for rank, kind in _SORTED_BY_VALUE:
        if isinstance(value, kind):
            return (rank, value)
    if isinstance(value, tuple | list):
        return (5, [_key(part) for part in value])
    if isinstance(value, dict):
        return (6, [(_key(name), _key(part)) for name, part in sorted(value.items())])
    return (7, repr(value))
