"""Where the intervals of a range begin: at multiples of a length, or at a schedule's moments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from croniter import CroniterError, croniter

from capstan.core.config import format_duration, parse_duration
from capstan.core.times import Kind
from capstan.errors import InvalidRequestError

Every = timedelta | int
"""The length of an interval: a number where times are BIGINT, elsewhere a length of time."""

MOST = 100_000
"""How many intervals a range may have: more than that nobody looks at."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000
_UNIT = {Kind.TIMESTAMP: _MICROSECOND, Kind.DATE: timedelta(days=1)}
_DAY = timedelta(days=1)
# What Airflow knows beside croniter's own names.
_ALSO = {"@quarterly": "0 0 1 */3 *"}


class Grid(Protocol):
    """The moments at which intervals begin, without end in either direction."""

    def at_or_before(self, value: int) -> int:
        """The last beginning that is not after `value`."""

    def after(self, value: int) -> int:
        """The first beginning after `value`."""


@dataclass(frozen=True, slots=True)
class Even:
    """Beginnings at every multiple of a length, counted from an anchor.

    Attributes:
        every: The length, in the coordinate's own integers; more than zero.
        anchor: Where an interval begins.
    """

    every: int
    anchor: int = 0

    def at_or_before(self, value: int) -> int:
        """The last beginning that is not after `value`."""
        return value - (value - self.anchor) % self.every

    def after(self, value: int) -> int:
        """The first beginning after `value`."""
        return self.at_or_before(value) + self.every


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Beginnings at the moments of a schedule, in UTC; times are microseconds since 1970.

    Attributes:
        schedule: `@daily`, or a cron of five fields.

    Raises:
        InvalidRequestError: `CAP-SCHEDULE` when it names no moment.
    """

    schedule: str

    def __post_init__(self) -> None:
        try:
            self.after(0)
        except (CroniterError, OverflowError) as error:
            raise InvalidRequestError(
                "CAP-SCHEDULE",
                f"{self.schedule!r} cuts no range into intervals: {error}",
                "say how long an interval is with --every",
                schedule=self.schedule,
            ) from error

    def at_or_before(self, value: int) -> int:
        """The last beginning that is not after `value`."""
        return _integer(self._moments(value // _SECOND + 1).get_prev(datetime))

    def after(self, value: int) -> int:
        """The first beginning after `value`."""
        return _integer(self._moments(value // _SECOND).get_next(datetime))

    def _moments(self, second: int) -> croniter:
        return croniter(_ALSO.get(self.schedule, self.schedule), _EPOCH + timedelta(seconds=second))


def parse_every(text: str, kind: Kind) -> Every:
    """The length of an interval as a person writes it: `6 hours`, or `100` where times are BIGINT.

    Raises:
        InvalidRequestError: `CAP-EVERY` when it is none.
    """
    try:
        return int(text) if kind is Kind.BIGINT else parse_duration(text)
    except ValueError as error:
        said = f"{text[:80]!r} is not a whole number" if kind is Kind.BIGINT else str(error)
        raise _not_a_length(said) from None


def grids(
    kind: Kind,
    every: Every | None,
    *,
    schedule: str | None,
    grain: timedelta | None,
    usual: timedelta | None,
    anchor: int,
) -> list[Grid]:
    """Where the intervals of a replay may begin, the best choice first.

    Args:
        kind: What the values of the coordinate are.
        every: The length that was asked for. Without one the intervals are those of the
            schedule, or as long as is usual, or days; of numbers one each.
        schedule: The replay's schedule.
        grain: Of what length the stream, the transform or the sink needs whole multiples.
        usual: How long an interval is where nothing else is said.
        anchor: Where an interval begins.

    Raises:
        InvalidRequestError: `CAP-EVERY` for a length that is none of this kind, or no multiple of
            the grain; `CAP-SCHEDULE` for a schedule that names no moment.
    """
    if every is not None:
        return [Even(_length(kind, every, grain), anchor)]
    if kind is Kind.BIGINT:
        return [Even(1, anchor)]
    days = _DAY if grain is None or not _DAY % grain else grain
    even = Even(_length(kind, usual or days, grain), anchor)
    return [Scheduled(schedule), even] if schedule and kind is Kind.TIMESTAMP else [even]


def _length(kind: Kind, every: Every, grain: timedelta | None) -> int:
    unit = _UNIT.get(kind)
    if unit is None:
        if isinstance(every, timedelta) or every < 1:
            raise _not_a_length(f"{every} is no number of times")
        return every
    if not isinstance(every, timedelta) or every < unit or every % unit:
        raise _not_a_length(f"{every} is no length of times of kind {kind}")
    if grain is not None and every % grain:
        raise _not_a_length(
            f"{format_duration(every)} is no multiple of the grain, {format_duration(grain)}"
        )
    return every // unit


def _not_a_length(said: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-EVERY",
        f"an interval cannot be that long: {said}",
        "such as '1 day' or '6 hours'; 100 where times are numbers",
    )


def cut(grid: Grid, since: int, until: int) -> list[tuple[int, int]]:
    """The intervals of a range, in order: the first and the last may be cut short by its ends.

    Raises:
        InvalidRequestError: `CAP-INTERVALS` when there are more than `MOST`.
    """
    ends = []
    for end in _beginnings(grid, since, until):
        ends.append(end)
        if len(ends) > MOST:
            raise InvalidRequestError(
                "CAP-INTERVALS",
                f"the range has more than {MOST:,} intervals",
                "ask for less with --since and --until, or for longer ones with --every",
            )
    return list(zip([since, *ends], [*ends, until], strict=True)) if since < until else []


def _beginnings(grid: Grid, since: int, until: int) -> Iterator[int]:
    """The beginnings inside a range, without its own."""
    at = since
    while True:
        try:
            at = grid.after(at)
        except (CroniterError, OverflowError):  # Past the year 9999 there are none.
            return
        if at >= until:
            return
        yield at


def _integer(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
