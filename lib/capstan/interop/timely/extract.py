"""What a recording comes to, for tests and for eyes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from capstan.core.protocol import Event, Messages
from capstan.core.times import Time


def extract(events: Iterable[Event]) -> list[tuple[Time, tuple[object, ...]]]:
    """The records of some events by time, times in listing order, records sorted within a time.

    Progress is passed over, times without records are left out. After timely's `Extract`. Sorted
    as Rust sorts them: numbers by value, text by its characters, tuples and lists from their first
    part on, none before all others.

    Args:
        events: All events of one recording, or of several: order does not matter.

    Raises:
        ValueError: An event counts records that it does not carry.
    """
    by_time: dict[Time, list[object]] = {}
    for event in events:
        if isinstance(event, Messages):
            if event.data is None:
                message = f"an event of {event.records} records that carries none of them"
                raise ValueError(message)
            by_time.setdefault(event.time, []).extend(event.data)
    return [
        (time, tuple(sorted(records, key=_key)))
        for time, records in sorted(by_time.items())
        if records
    ]


def _key(value: object) -> tuple[object, ...]:
    """A key that sorts values of one type by value, and those of others apart from them."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    if isinstance(value, int | float):
        return (1, value)
    if isinstance(value, str):
        return (3, value)
    if isinstance(value, bytes):
        return (4, value)
    if isinstance(value, tuple | list):
        return (5, [_key(each) for each in value])
    if isinstance(value, dict):
        return (6, [(_key(name), _key(each)) for name, each in sorted(value.items())])
    return (7, repr(value))
