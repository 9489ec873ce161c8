"""Times as columns of integers or JSON, in Spark and in Arrow; Python dates would need a zone."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from capstan.core.times import Coordinate, Kind, TimeType

JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options for conversion to JSON and back; Spark's default format stops at milliseconds."""


def coordinate(value: Column, declared: Coordinate) -> Column:
    """A BIGINT column as a coordinate: itself, a date or a timestamp, with the declared name."""
    typed = {
        Kind.BIGINT: value,
        Kind.DATE: F.date_from_unix_date(value.cast("int")),
        Kind.TIMESTAMP: F.timestamp_micros(value),
    }[declared.kind]
    return typed.alias(declared.name)


def integers(time: Column, time_type: TimeType) -> Column:
    """A time as ARRAY<BIGINT> in the order of its coordinates; nulls stay null."""
    return F.array(*(number(time.getField(c.name), c.kind) for c in time_type.coordinates))


def number(value: Column, kind: Kind) -> Column:
    """A coordinate as BIGINT: the value itself, days or microseconds; a day as its midnight."""
    if kind is Kind.TIMESTAMP:
        return F.unix_micros(value.cast("timestamp"))
    return (F.unix_date(value) if kind is Kind.DATE else value).cast("bigint")


def coordinates(times: pa.StructArray, width: int) -> list[pa.Array]:
    """The coordinates of a struct column of times as integers, null where the struct is null."""
    return [as_integers(pc.struct_field(times, index)) for index in range(width)]


def as_integers(column: pa.Array) -> pa.Array:
    """A coordinate's column as integers: itself, days, or microseconds."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32()).cast(pa.int64())
    return column


def held_changes(batch: pa.RecordBatch, owners: Sequence[str], width: int) -> pa.Table:
    """A row for each update of some events: columns `owners`, a time as `t0`, ..., and `diff`."""
    updates = batch.column("updates")
    places, flat = pc.list_parent_indices(updates), pc.list_flatten(updates)
    columns = [
        *(batch.column(owner).take(places) for owner in owners),
        *coordinates(pc.struct_field(flat, "time"), width),
        pc.struct_field(flat, "diff"),
    ]
    return pa.table(columns, names=[*owners, *(f"t{i}" for i in range(width)), "diff"])
