"""Hypothesis strategies for times and recordings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from capstan.core.protocol import Event, Messages, Progress
from capstan.core.times import Coordinate, Kind, Time, TimeType

# Small, so that times are often equal or comparable.
_REACH = 4


def widths() -> st.SearchStrategy[int]:
    """Numbers of coordinates, 1 to 3."""
    return st.integers(1, 3)


def times(width: int, low: int = 0, high: int = _REACH) -> st.SearchStrategy[Time]:
    """Times of `width` coordinates, each from `low` to `high`."""
    return st.tuples(*[st.integers(low, high)] * width).map(Time)


def changes(width: int, max_size: int = 6) -> st.SearchStrategy[list[tuple[Time, int]]]:
    """Lists of `(time, diff)`, diffs from -2 to 2, times often repeated."""
    return st.lists(st.tuples(times(width), st.integers(-2, 2)), max_size=max_size)


@st.composite
def time_types(draw: st.DrawFn) -> TimeType:
    """Time types of 1 to 3 coordinates of all kinds, with minima of all sorts."""
    names = draw(
        st.lists(
            st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    kinds = [draw(st.sampled_from(Kind)) for _ in names]
    return TimeType(
        tuple(
            Coordinate.of(name, kind, draw(st.none() | coordinate_values(kind)))
            for name, kind in zip(names, kinds, strict=True)
        )
    )


def coordinate_values(kind: Kind) -> st.SearchStrategy[int]:
    """All values that a coordinate of `kind` can have."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    if kind is Kind.BIGINT:
        return st.integers(-(2**63), 2**63 - 1)
    if kind is Kind.DATE:
        return st.dates().map(lambda day: day.toordinal() - epoch.toordinal())
    return st.datetimes(timezones=st.just(UTC)).map(
        lambda moment: (moment - epoch) // timedelta(microseconds=1)
    )


@st.composite
def times_of(draw: st.DrawFn, time_type: TimeType) -> Time:
    """All times of `time_type`."""
    return Time(draw(coordinate_values(c.kind)) for c in time_type.coordinates)


@st.composite
def rewritten_updates(
    draw: st.DrawFn, width: int, net: Sequence[tuple[Time, int]]
) -> list[tuple[Time, int]]:
    """Other updates with the same net change: split, with zeros and cancelling pairs, shuffled."""
    updates: list[tuple[Time, int]] = []
    for time, diff in net:
        part = draw(st.integers(-2, 2))
        updates += [(time, part), (time, diff - part)] if part else [(time, diff)]
    for time in draw(st.lists(times(width), max_size=2)):
        diff = draw(st.integers(0, 2))
        updates += [(time, diff), (time, -diff)]
    return draw(st.permutations(updates))


@st.composite
def recordings(
    draw: st.DrawFn, width: int, max_size: int = 12, *, stamped: bool = False
) -> list[Event]:
    """Valid recordings from `{minimum: 1}`, the minimum all zeros, valid by construction.

    If `stamped`, messages have stamps of several elements and of none, and may follow the close.
    """
    held = {Time([0] * width): 1}
    events: list[Event] = []
    for _ in range(draw(st.integers(0, max_size))):
        if bool(held) and draw(st.booleans()):
            most = 3 if stamped else 1
            stamp = draw(st.lists(_later(held, width), min_size=1, max_size=most))
            events.append(Messages(tuple(sorted(stamp)), draw(st.integers(0, 3))))
        elif stamped and draw(st.integers(0, 3)) == 0:
            events.append(Messages((), draw(st.integers(0, 3))))
        else:
            net = draw(_supported_change(held, width))
            for time, diff in net.items():
                held[time] = held.get(time, 0) + diff
            held = {time: count for time, count in held.items() if count}
            events.append(Progress.of(draw(rewritten_updates(width, list(net.items())))))
    return events


def any_events(
    width: int, max_size: int = 12, *, stamped: bool = False
) -> st.SearchStrategy[list[Event]]:
    """Recordings that obey a rule only by chance.

    If `stamped`, messages have stamps of several elements and of none, and a few not in order.
    """
    stamps = st.lists(times(width), min_size=not stamped, max_size=3 if stamped else 1)
    ordered = stamps.map(sorted) | stamps.map(sorted) | stamps
    messages = st.builds(Messages, ordered.map(tuple), st.integers(0, 3))
    progress = changes(width, max_size=4).map(Progress.of)
    return st.lists(messages | progress, max_size=max_size)


@st.composite
def interleavings(draw: st.DrawFn, recorded: Sequence[Sequence[Event]]) -> list[Event]:
    """One sequence of the events of all recordings, each in its own order."""
    turns = [turn for turn, events in enumerate(recorded) for _ in events]
    rest = [iter(events) for events in recorded]
    return [next(rest[turn]) for turn in draw(st.permutations(turns))]


@st.composite
def _later(draw: st.DrawFn, held: dict[Time, int], width: int) -> Time:
    base = draw(st.sampled_from(sorted(held)))
    steps = draw(times(width, high=2))
    return Time(value + step for value, step in zip(base, steps, strict=True))


@st.composite
def _supported_change(draw: st.DrawFn, held: dict[Time, int], width: int) -> dict[Time, int]:
    net: dict[Time, int] = {}
    for time in draw(st.lists(_later(held, width), max_size=3)) if held else []:
        net[time] = net.get(time, 0) + draw(st.integers(1, 2))
    for time, count in held.items():
        net[time] = net.get(time, 0) - draw(st.integers(0, count))
    return net
