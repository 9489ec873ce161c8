"""Bounds of data files: which rows a file can have, by what the log of its table tells of it.

A file's log entry has the least and the greatest value of its columns. That is all one ever asks of
it: whether all rows of the file lie in a region, or none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta

from capstan.core.times import Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.storage.delta.opened_table import OpenedTable

Bounds = Mapping[str, object]
"""Column bounds of a file's rows: `min.<column>`, `max.<column>`, `partition.<column>`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000_000
# Delta truncates bounds of timestamps to milliseconds, so the greatest value may be larger.
_MILLISECOND = 1_000


def fit(file: Box, region: Region) -> bool | None:
    """Whether all times of a file lie in a region (True), or none (False); None when some may."""
    if not file.overlaps(region.simplified().box):
        return False
    return True if region.includes(Region(file)) else None


def interval(
    bounds: Bounds, column: str, kind: Kind = Kind.BIGINT
) -> tuple[int | None, int | None]:
    """The first value of a column in a file, and a value after its last; None when unknown.

    Days are counted as timestamps, and timestamps as days, when a time of the other kind is asked.
    """
    low, high = bounds.get(f"min.{column}"), bounds.get(f"max.{column}")
    last = _integer(high, kind)
    return _integer(low, kind), None if last is None else last + _width(high, kind)


def box_of(bounds: Bounds, time_type: TimeType, column: str = "time") -> Box:
    """The box that contains the times of a file: a struct of coordinates, or the only one."""
    fields = {axis: f"{column}.{axis.name}" for axis in time_type.coordinates}
    pairs = [
        interval(bounds, field if f"min.{field}" in bounds else column, axis.kind)
        for axis, field in fields.items()
    ]
    since, until = zip(*pairs, strict=True)
    return Box(tuple(since), tuple(until))


def only_value(bounds: Bounds, column: str) -> object:
    """The one value of a column in a file; None when it has several, or they are unknown."""
    value, low = bounds.get(f"partition.{column}"), bounds.get(f"min.{column}")
    return low if value is None and low == bounds.get(f"max.{column}") else value


def may_be_null(bounds: Bounds, column: str) -> bool:
    """Whether a column that a file has bounds of may be null in some of its rows."""
    if f"partition.{column}" in bounds:
        return bounds[f"partition.{column}"] is None
    return f"min.{column}" in bounds and bounds.get(f"null_count.{column}") != 0


def files_of(
    table: OpenedTable,
    time_type: TimeType,
    *,
    workers: Collection[int] | None = None,
    batch: int | None = None,
    region: Region | None = None,
) -> list[str]:
    """Log paths of the files of a tape's table that can have matching rows.

    Matching rows are those of these workers and times, and of this batch and earlier ones.
    """

    def may_match(row: Bounds) -> bool:
        if workers is not None and not _has_any(row, workers):
            return False
        first, _ = interval(row, "batch")
        if batch is not None and first is not None and first > batch:
            return False
        return region is None or fit(box_of(row, time_type), region) is not False

    rows = table.files().to_pylist()
    return [row["path"] for row in rows if may_match(row)]


def _has_any(row: Bounds, workers: Collection[int]) -> bool:
    low, end = interval(row, "worker")
    return low is None or end is None or any(low <= worker < end for worker in workers)


def _integer(bound: object, kind: Kind) -> int | None:
    if isinstance(bound, datetime):
        moment = bound if bound.tzinfo else bound.replace(tzinfo=UTC)
        micros = (moment - _EPOCH) // timedelta(microseconds=1)
        return micros // _DAY if kind is Kind.DATE else micros
    if isinstance(bound, date):
        days = (bound - _EPOCH.date()).days
        return days * _DAY if kind is Kind.TIMESTAMP else days
    return bound if isinstance(bound, int) else None


def _width(bound: object, kind: Kind) -> int:
    """How many values from a greatest one on may be in a file."""
    if kind is not Kind.TIMESTAMP or not isinstance(bound, date):
        return 1
    return _MILLISECOND if isinstance(bound, datetime) else _DAY
