"""The grid of a range's intervals: multiples of a length, or the times of a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from croniter import CroniterError, croniter

from capstan.core.config import format_duration, parse_duration
from capstan.core.times import Kind
from capstan.errors import InvalidRequestError

Every = timedelta | int
"""The length of an interval: a number for BIGINT times, else a duration."""

MAX_INTERVALS = 100_000
"""The most intervals of a range; more would be of no use to anybody."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000
_UNIT = {Kind.TIMESTAMP: _MICROSECOND, Kind.DATE: timedelta(days=1)}
_DAY = timedelta(days=1)
# Airflow's presets that croniter lacks.
_PRESETS = {"@quarterly": "0 0 1 */3 *"}


@dataclass(frozen=True, slots=True)
class Even:
    """Starts at every multiple of a length in the coordinate's integers, counted from an anchor."""

    every: int
    anchor: int = 0

    def at_or_before(self, value: int) -> int:
        """The last start not after `value`."""
        return value - (value - self.anchor) % self.every

    def after(self, value: int) -> int:
        """The first start after `value`."""
        return self.at_or_before(value) + self.every


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Starts at the times of a preset or cron schedule in UTC, in microseconds since 1970."""

    schedule: str

    def __post_init__(self) -> None:
        try:
            self.after(0)
        except (CroniterError, OverflowError) as error:
            raise InvalidRequestError(
                "CAP-SCHEDULE",
                f"{self.schedule!r} defines no intervals: {error}",
                "set the length of intervals with --every",
                schedule=self.schedule,
            ) from error

    def at_or_before(self, value: int) -> int:
        """The last start not after `value`."""
        return _integer(self._moments(value // _SECOND + 1).get_prev(datetime))

    def after(self, value: int) -> int:
        """The first start after `value`."""
        return _integer(self._moments(value // _SECOND).get_next(datetime))

    def _moments(self, second: int) -> croniter:
        expression = _PRESETS.get(self.schedule, self.schedule)
        return croniter(expression, _EPOCH + timedelta(seconds=second))


Grid = Even | Scheduled
"""The starts of intervals, unbounded in both directions."""


def parse_every(text: str, kind: Kind) -> Every:
    """Parse the length of an interval, such as `6 hours`, or `100` for BIGINT times."""
    try:
        return int(text) if kind is Kind.BIGINT else parse_duration(text)
    except ValueError as error:
        problem = f"{text[:80]!r} is not a whole number" if kind is Kind.BIGINT else str(error)
        raise _length_error(problem) from None


def grids(
    kind: Kind,
    every: Every | None,
    *,
    schedule: str | None,
    grain: timedelta | None,
    default: timedelta | None,
    anchor: int,
) -> list[Grid]:
    """The possible grids for a replay's intervals, in order of preference.

    Without `every`, intervals follow the schedule, else the default length, else days; for BIGINT
    times they have length 1. Lengths are multiples of `grain`.
    """
    if every is not None:
        return [Even(_length(kind, every, grain), anchor)]
    if kind is Kind.BIGINT:
        return [Even(1, anchor)]
    days = _DAY if grain is None or not _DAY % grain else grain
    even = Even(_length(kind, default or days, grain), anchor)
    return [Scheduled(schedule), even] if schedule and kind is Kind.TIMESTAMP else [even]


def _length(kind: Kind, every: Every, grain: timedelta | None) -> int:
    unit = _UNIT.get(kind)
    if unit is None:
        if isinstance(every, timedelta) or every < 1:
            raise _length_error(f"{every} is not a positive number")
        return every
    if not isinstance(every, timedelta) or every < unit or every % unit:
        raise _length_error(f"{every} is not a valid length for times of kind {kind}")
    if grain is not None and every % grain:
        raise _length_error(
            f"{format_duration(every)} is not a multiple of the grain, {format_duration(grain)}"
        )
    return every // unit


def _length_error(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-EVERY",
        f"invalid interval length: {problem}",
        "use a length such as '1 day' or '6 hours'; or 100 if times are numbers",
    )


def cut(grid: Grid, since: int, until: int) -> list[tuple[int, int]]:
    """The intervals of a range, in order; the ends of the range may shorten the first and last."""
    ends = []
    for end in _starts(grid, since, until):
        ends.append(end)
        if len(ends) > MAX_INTERVALS:
            raise InvalidRequestError(
                "CAP-INTERVALS",
                f"the range has more than {MAX_INTERVALS:,} intervals",
                "narrow the range with --since and --until, or use longer intervals with --every",
            )
    return list(zip([since, *ends], [*ends, until], strict=True)) if since < until else []


def _starts(grid: Grid, since: int, until: int) -> Iterator[int]:
    """The starts strictly inside a range."""
    start = since
    while True:
        try:
            start = grid.after(start)
        except (CroniterError, OverflowError):  # There are none after the year 9999.
            return
        if start >= until:
            return
        yield start


def _integer(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
