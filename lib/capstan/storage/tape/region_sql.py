"""Sets of times and workers as SQL conditions that Delta can skip files by.

One condition per coordinate: a comparison of whole structs would skip nothing. All text comes from
checked names and integers; no input is pasted into SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta

from capstan.core.times import Antichain, Coordinate, Kind, TimeType
from capstan.core.times.region import Region

_LISTED = 32
"""The most workers that a condition names one by one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def literal(coordinate: Coordinate, value: int) -> str:
    """A coordinate's value as a SQL literal of its column's type."""
    if coordinate.kind is Kind.BIGINT:
        # The least BIGINT has no literal of its own: a minus before a number out of range.
        return f"{value}L" if value > -(2**63) else "(-9223372036854775807L - 1L)"
    if coordinate.kind is Kind.DATE:
        return f"DATE '{(date(1970, 1, 1) + timedelta(days=value)).isoformat()}'"
    moment = _EPOCH + timedelta(microseconds=value)
    return f"TIMESTAMP '{moment.strftime('%Y').zfill(4)}{moment.strftime('-%m-%d %H:%M:%S.%f')}Z'"


def quoted(name: str) -> str:
    """A column name as an SQL identifier, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def region_sql(time_type: TimeType, region: Region, columns: Sequence[str]) -> str:
    """The condition that a time lies in `region`.

    Args:
        time_type: The coordinates.
        region: The set of times.
        columns: Per coordinate, the SQL expression of its column: `time.event`, `sched_dep`.
    """
    region = region.simplified()
    parts: list[str] = []
    for i, coordinate in enumerate(time_type.coordinates):
        since, until = region.box.since[i], region.box.until[i]
        if since is not None:
            parts.append(f"{columns[i]} >= {literal(coordinate, since)}")
        if until is not None:
            parts.append(f"{columns[i]} < {literal(coordinate, until)}")
    if region.below is not None:
        parts += [_not_above(time_type, element, columns) for element in region.below.elements]
    if region.above is not None:
        parts.append(_at_or_above(time_type, region.above, columns))
    return " AND ".join(parts) if parts else "true"


def _not_above(time_type: TimeType, element: Sequence[int], columns: Sequence[str]) -> str:
    sides = zip(columns, time_type.coordinates, element, strict=True)
    return "(" + " OR ".join(f"{name} < {literal(c, v)}" for name, c, v in sides) + ")"


def _at_or_above(time_type: TimeType, frontier: Antichain, columns: Sequence[str]) -> str:
    if not frontier.elements:
        return "false"
    boxes = []
    for element in frontier.elements:
        sides = zip(columns, time_type.coordinates, element, strict=True)
        boxes.append("(" + " AND ".join(f"{n} >= {literal(c, v)}" for n, c, v in sides) + ")")
    return "(" + " OR ".join(boxes) + ")"


def workers_sql(workers: Iterable[int], column: str) -> str:
    """The condition that a worker is one of `workers`; of many it names stretches of numbers.

    A text of thousands of numbers takes Spark seconds at each look at it.
    """
    numbers = sorted({int(worker) for worker in workers})
    if len(numbers) <= _LISTED:
        return f"{column} IN ({', '.join(map(str, numbers))})" if numbers else "false"
    parts: list[str] = []
    alone: list[int] = []
    for first, last in stretches(numbers):
        if last - first < _LISTED:
            alone += range(first, last + 1)
        else:
            parts.append(f"{column} BETWEEN {first} AND {last}")
    if alone:
        parts.append(f"{column} IN ({', '.join(map(str, alone))})")
    return f"({any_of(parts)})"


def stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each stretch of numbers without a gap.

    Args:
        numbers: They rise, and none comes twice.
    """
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def any_of(conditions: Sequence[str]) -> str:
    """One of some conditions holds, nested no deeper than the logarithm of their number."""
    if not conditions:
        return "false"
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return f"({any_of(conditions[:half])} OR {any_of(conditions[half:])})"
