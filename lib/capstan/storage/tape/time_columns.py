"""Times as columns of integers or JSON, and back; Python dates would need a time zone."""

from __future__ import annotations

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
