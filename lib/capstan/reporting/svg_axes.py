"""Axes of plots: their range, scale and tick marks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from capstan.core.times import Coordinate, Kind
from capstan.reporting.formatting import length_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US, _MINUTE_US = 86_400_000_000, 60_000_000
# Round distances between ticks, in microseconds.
_STEPS = tuple(
    1_000_000 * seconds
    for seconds in (
        1, 5, 15, 30, 60, 300, 900, 1_800, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600,
        86_400, 2 * 86_400, 7 * 86_400, 14 * 86_400,
    )
)  # fmt: skip
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1_200, 2_400, 6_000, 12_000, 24_000)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a plot."""

    name: str
    low: float
    high: float  # greater than `low`
    ticks: tuple[tuple[float, str], ...]  # marked values with labels, ascending

    def place(self, value: float, begin: float, end: float) -> float:
        """The position of a value between `begin` and `end` in a drawing."""
        return begin + (value - self.low) / (self.high - self.low) * (end - begin)


def number_axis(name: str, low: int, high: int, *, marks: int = 6) -> Axis:
    """An axis of whole numbers with about `marks` ticks."""
    low, high = (low, high) if high > low else (low, low + 1)
    step = max(1, _round_up((high - low) / marks))
    first = -(-low // step) * step
    ticks = tuple((value, f"{value:,}") for value in range(first, high + 1, step))
    return Axis(name, low, high, ticks)


def coordinate_axis(coordinate: Coordinate, low: int, high: int, *, marks: int = 6) -> Axis:
    """An axis of a time coordinate: numbers, days, or times in UTC."""
    if coordinate.kind is Kind.BIGINT:
        return number_axis(coordinate.name, low, high, marks=marks)
    unit = _DAY_US if coordinate.kind is Kind.DATE else 1
    low, high = (low, high) if high > low else (low, low + _DAY_US // unit)
    ticks = tuple((value / unit, text) for value, text in _moments(low * unit, high * unit, marks))
    return Axis(f"{coordinate.name} (UTC)", low, high, ticks)


def clock_axis(name: str, low: int, high: int, *, marks: int = 6) -> Axis:
    """An axis of times in UTC, in microseconds."""
    return coordinate_axis(Coordinate.of(name, Kind.TIMESTAMP), low, high, marks=marks)


def length_axis(name: str, coordinate: Coordinate, high: int, *, marks: int = 5) -> Axis:
    """An axis of distances in a coordinate, from zero to `high`."""
    if coordinate.kind is Kind.BIGINT:
        return number_axis(name, 0, high, marks=marks)
    unit = _DAY_US if coordinate.kind is Kind.DATE else 1
    wanted = high * unit / marks
    days = _round_up(wanted / _DAY_US) * _DAY_US
    step = max(next((step for step in _STEPS if step >= wanted), days), unit) // unit
    ticks = tuple((value, length_text(coordinate, value)) for value in range(0, high + 1, step))
    return Axis(name, 0, max(high, 1), ticks)


def _round_up(value: float) -> int:
    """The least of 1, 2, 5, 10, 20, 50, ... that is at least `value`."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= value:
                return digit * power
        power *= 10


def _moments(low: int, high: int, marks: int) -> list[tuple[int, str]]:
    """Ticks between two times in microseconds, with labels of suitable precision."""
    wanted = (high - low) / marks
    for step in _STEPS:
        if step >= wanted:
            first = -(-low // step) * step
            form = (
                "%m-%d" if step >= _DAY_US else "%m-%d %H:%M" if step >= _MINUTE_US else "%H:%M:%S"
            )
            return [(at, _text(at, form)) for at in range(first, high + 1, step)]
    months = next((m for m in _MONTHS if m * 30 * _DAY_US >= wanted), _MONTHS[-1])
    return [(at, _text(at, "%Y-%m" if months < 12 else "%Y")) for at in _firsts(low, high, months)]


def _firsts(low: int, high: int, months: int) -> Iterator[int]:
    """The first days of every `months`-th month between two times."""
    start = _EPOCH + timedelta(microseconds=low)
    month = (start.year * 12 + start.month - 1) // months * months
    while month < 9999 * 12:
        first = datetime(max(month // 12, 1), month % 12 + 1, 1, tzinfo=UTC)
        at = micros(first)
        if at > high:
            return
        if at >= low:
            yield at
        month += months


def micros(at: datetime) -> int:
    """An instant in microseconds, as `clock_axis` takes it."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def _text(at: int, form: str) -> str:
    return (_EPOCH + timedelta(microseconds=at)).strftime(form)
