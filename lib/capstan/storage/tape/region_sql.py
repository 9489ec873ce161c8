"""Regions and workers as SQL conditions that Delta can prune files by.

Each coordinate has a condition of its own, because a comparison of whole structs would prune
nothing. All text comes from validated names and integers; no input is pasted into SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta

from capstan.core.times import (
    AdjoiningRanges,
    Antichain,
    Bound,
    Box,
    Coordinate,
    Kind,
    Time,
    TimeType,
)
from capstan.core.times.box_conditions import box_conditions
from capstan.core.times.region import Region

_MAX_LISTED = 32
"""The maximum number of workers that a condition lists one by one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def literal(coordinate: Coordinate, value: int) -> str:
    """A coordinate's value as a SQL literal of its column's type."""
    if coordinate.kind is Kind.BIGINT:
        # The least BIGINT has no literal: it would be a minus before a number out of range.
        return f"{value}L" if value > -(2**63) else "(-9223372036854775807L - 1L)"
    if coordinate.kind is Kind.DATE:
        return f"DATE '{(date(1970, 1, 1) + timedelta(days=value)).isoformat()}'"
    moment = _EPOCH + timedelta(microseconds=value)
    return f"TIMESTAMP '{moment.strftime('%Y').zfill(4)}{moment.strftime('-%m-%d %H:%M:%S.%f')}Z'"


def number_sql(coordinate: Coordinate, ranges: AdjoiningRanges, column: str) -> str:
    """The number of the range that has the value of a column, as `AdjoiningRanges.number`."""
    ends = enumerate(ranges.bounds[1:-1])
    cases = [f"WHEN {column} < {literal(coordinate, end)} THEN {n}" for n, end in ends]
    return f"CASE {' '.join(cases)} ELSE {len(cases)} END" if cases else "0"


def region_sql(time_type: TimeType, region: Region, columns: Sequence[str]) -> str:
    """The condition that a time lies in `region`.

    `columns` are SQL expressions by coordinate: `time.event`, `sched_dep`.
    """
    region = region.simplified()

    def bounded(axis: int, sign: str, bound: int) -> str:
        return f"{columns[axis]} {sign} {literal(time_type.coordinates[axis], bound)}"

    parts = box_conditions(
        region.box, bounded, lambda a, b: f"({a} AND {b})", lambda a, b: f"({a} OR {b})"
    )

    def compared(time: Time, sign: str, joint: str) -> str:
        sides = zip(columns, time_type.coordinates, time, strict=True)
        return f"({joint.join(f'{name} {sign} {literal(c, value)}' for name, c, value in sides)})"

    if region.below is not None:
        parts += [compared(time, "<", " OR ") for time in region.below.elements]
    if region.above is not None:
        reached = [compared(time, ">=", " AND ") for time in region.above.elements]
        parts.append(f"({' OR '.join(reached)})" if reached else "false")
    return " AND ".join(parts) if parts else "true"


def stamp_sql(time_type: TimeType, region: Region) -> tuple[str, str]:
    """The condition that a tape of stamps has a row in `region`, and the time that it has there.

    For several coordinates; see `Region.place`. Rows without elements are in no such region.
    """
    columns = [f"each.`{name}`" for name in time_type.names]
    unbounded = (None,) * len(columns)

    def among(since: Bound, below: Antichain | None = None, above: Antichain | None = None) -> str:
        return region_sql(time_type, Region(Box(since, unbounded), below, above), columns)

    elements, end = "coalesce(stamp, array(time))", region_sql(time_type, region.end, columns)
    pending = "false" if region.below is None else f"NOT ({among(unbounded, region.below)})"
    follows = among(unbounded, None, region.above)
    later = f"({among(region.box.since)} OR {pending}) AND {follows}"
    inside = f"filter({elements}, each -> {end})"
    return f"size({inside}) > 0 AND forall({elements}, each -> {later})", f"get({inside}, 0)"


def workers_sql(workers: Iterable[int], column: str) -> str:
    """The condition that a worker is one of `workers`, with ranges if there are many."""
    # A list of thousands of numbers takes Spark seconds on each analysis.
    numbers = sorted({int(worker) for worker in workers})
    if len(numbers) <= _MAX_LISTED:
        return f"{column} IN ({', '.join(map(str, numbers))})" if numbers else "false"
    parts: list[str] = []
    single: list[int] = []
    for first, last in integer_ranges(numbers):
        if last - first < _MAX_LISTED:
            single += range(first, last + 1)
        else:
            parts.append(f"{column} BETWEEN {first} AND {last}")
    if single:
        parts.append(f"{column} IN ({', '.join(map(str, single))})")
    return f"({any_of(parts)})"


def integer_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each contiguous range of distinct ascending numbers."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges


def any_of(conditions: Sequence[str]) -> str:
    """The disjunction of some conditions, nested only logarithmically deep."""
    if not conditions:
        return "false"
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return f"({any_of(conditions[:half])} OR {any_of(conditions[half:])})"
