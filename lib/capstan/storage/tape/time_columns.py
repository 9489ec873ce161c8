"""Times as columns of integers, or as JSON, and back; Python's dates would need a zone."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from capstan.core.times import Coordinate, Kind, TimeType

JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of columns that become JSON and come back: Spark's own form stops at milliseconds."""


def coordinate(value: Column, declared: Coordinate) -> Column:
    """A BIGINT column as a coordinate: itself, days, or microseconds, named as declared."""
    typed = {
        Kind.BIGINT: value,
        Kind.DATE: F.date_from_unix_date(value.cast("int")),
        Kind.TIMESTAMP: F.timestamp_micros(value),
    }[declared.kind]
    return typed.alias(declared.name)


def integers(time: Column, time_type: TimeType) -> Column:
    """A time as ARRAY<BIGINT>, in the order of its coordinates; with nulls where they are null."""
    casts = {Kind.BIGINT: lambda c: c, Kind.DATE: F.unix_date, Kind.TIMESTAMP: F.unix_micros}
    values = [casts[c.kind](time.getField(c.name)).cast("bigint") for c in time_type.coordinates]
    return F.array(*values)
