"""Workers and times of the rows of a target's file, from its bounds."""

from __future__ import annotations

from datetime import date, datetime

from capstan.core.times import Box, Kind
from capstan.core.times.region import Region
from capstan.replay.planning.plan import Plan
from capstan.storage.data_files import bound_integer
from capstan.storage.ledger.foreign_commits import Bounds

_DAY = 86_400_000_000
_MILLISECOND = 1_000


def workers_of(plan: Plan, bounds: Bounds) -> frozenset[int] | None:
    """The one worker of all rows of a file; None when unknown."""
    name = plan.layout.worker
    value = bounds.get(f"partition.{name}")
    if value is None and bounds.get(f"min.{name}") == bounds.get(f"max.{name}"):
        value = bounds.get(f"min.{name}")
    if isinstance(value, str):
        return frozenset(n for n, label in plan.layout.labels.items() if label == value) or None
    return frozenset({value}) if isinstance(value, int) else None


def region_of(plan: Plan, bounds: Bounds) -> Region:
    """The region that contains the times of a file's rows."""
    bounds_by_axis = [
        _bounds(plan, bounds, axis) for axis in range(len(plan.time_type.coordinates))
    ]
    since, until = zip(*bounds_by_axis, strict=True)
    return Region(Box(tuple(since), tuple(until)))


def _bounds(plan: Plan, bounds: Bounds, axis: int) -> tuple[int | None, int | None]:
    """The first value of a coordinate in a file, and the first value after its last."""
    coordinate, name = plan.time_type.coordinates[axis], plan.layout.time
    field = f"{name}.{coordinate.name}"
    column = field if f"min.{field}" in bounds else name
    low, high = bounds.get(f"min.{column}"), bounds.get(f"max.{column}")
    first, last = _integer(low, coordinate.kind), _integer(high, coordinate.kind)
    if isinstance(high, datetime) and last is not None:
        last += _MILLISECOND  # Delta truncates bounds of timestamps to milliseconds.
    elif isinstance(high, date) and last is not None and coordinate.kind is Kind.TIMESTAMP:
        last += _DAY - 1
    every = plan.layout.every
    return first if first is None else first - first % every, None if last is None else last + 1


def _integer(bound: object, kind: Kind) -> int | None:
    days = isinstance(bound, date) and not isinstance(bound, datetime)
    value = bound_integer(bound)
    return value * _DAY if days and value is not None and kind is Kind.TIMESTAMP else value
