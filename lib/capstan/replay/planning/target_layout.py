"""The columns of a target that hold worker and time, and conditions over them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, StringType, StructType, TimestampType

from capstan.core.sql_names import quoted, text_literal
from capstan.core.times import Box, Coordinate, Kind, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.storage.keyed_lookup import with_values
from capstan.storage.tape.region_sql import region_sql, workers_sql

_DAY = 86_400_000_000


def column_type(schema: StructType, name: str) -> DataType:
    """The type of a target's column of worker or time."""
    if name not in schema.names:
        raise InvalidRequestError(
            "CAP-TARGET-SCHEMA",
            f"the table has no column {name}, so its rows have no worker or time",
            "restore the column, or replay into another table",
            column=name,
        )
    return schema[name].dataType


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of worker and time in a target."""

    worker: str | None  # The column of the worker's number or label; None when it is not kept.
    time: str | None  # A struct of coordinates, or a single one; None when it is not kept.
    labels: Mapping[int, str]
    every: int = 1  # The step to which event times are truncated, in microseconds; 1 for none.

    def predicate(
        self,
        schema: StructType,
        time_type: TimeType,
        workers: Collection[int] | None,
        region: Region,
    ) -> str:
        """The condition over the target's columns that a row belongs to these workers and times."""
        parts = []
        if self.worker is not None and workers is not None:
            parts.append(self._workers(schema, workers))
        if self.time is not None:
            parts.append(self._times(schema, time_type, region))
        return " AND ".join(parts) or "true"

    def _workers(self, schema: StructType, workers: Collection[int]) -> str:
        name = quoted(self.worker or "")
        if not isinstance(column_type(schema, self.worker or ""), StringType):
            return workers_sql(workers, name)
        if not workers:
            return "false"
        labels = ", ".join(sorted(text_literal(self.labels[worker]) for worker in workers))
        return f"{name} IN ({labels})"

    def _times(self, schema: StructType, time_type: TimeType, region: Region) -> str:
        name = self.time or ""
        kind = column_type(schema, name)
        if isinstance(kind, StructType):
            columns = [f"{quoted(name)}.{quoted(axis)}" for axis in time_type.names]
            return region_sql(time_type, region, columns)
        axis = single(time_type, f"column {name}")
        if axis.kind is not Kind.TIMESTAMP:
            return region_sql(time_type, region, [quoted(name)])
        if isinstance(kind, DateType):
            # In the column's own type, so that files can be skipped; the bounds are whole days.
            days = TimeType((Coordinate.of(axis.name, Kind.DATE),))
            return region_sql(days, _in_units(region, _DAY, 1), [quoted(name)])
        # The column may be finer than the stream: a step that contains a bound lies before it.
        return region_sql(time_type, _in_units(region, self.every, self.every), [quoted(name)])

    def tagged(self, frame: DataFrame, time_type: TimeType) -> DataFrame:
        """The frame with `_worker INT` and `_time STRUCT` as on tape, null if unknown."""
        tagged = frame
        if self.worker is not None:
            tagged = self._numbered(frame, self.worker)
        if self.time is not None:
            tagged = tagged.withColumn("_time", self._time_struct(frame, time_type))
        return tagged

    def _numbered(self, frame: DataFrame, worker: str) -> DataFrame:
        column = F.col(quoted(worker))
        if not isinstance(column_type(frame.schema, worker), StringType):
            return frame.withColumn("_worker", column.cast("int"))
        numbers = {label: number for number, label in self.labels.items()}
        numbered = with_values(frame, "_worker", column, numbers)
        return numbered.withColumn("_worker", F.col("_worker").cast("int"))

    def _time_struct(self, frame: DataFrame, time_type: TimeType) -> Column:
        column = F.col(quoted(self.time or ""))
        kind = column_type(frame.schema, self.time or "")
        if isinstance(kind, StructType):
            return column
        axis = single(time_type, f"column {self.time}")
        if axis.kind is Kind.TIMESTAMP:
            moment = F.unix_micros(column.cast(TimestampType()))
            column = F.timestamp_micros(moment - F.pmod(moment, F.lit(self.every)))
        return F.struct(column.alias(axis.name))


def single(time_type: TimeType, holder: str) -> Coordinate:
    """The one coordinate of a totally ordered time."""
    if len(time_type.coordinates) != 1:
        raise InvalidRequestError(
            "CAP-COORDINATES",
            f"{holder} cannot hold times of {len(time_type.coordinates)} coordinates",
            "keep the column `_time` unchanged",
        )
    return time_type.coordinates[0]


def _in_units(region: Region, unit: int, size: int) -> Region:
    """A region with bounds rounded up to whole units, each counted as `size`."""
    box = region.simplified().box

    def rounded(bound: int | None) -> int | None:
        return None if bound is None else -(-bound // unit) * size

    return Region(Box((rounded(box.since[0]),), (rounded(box.until[0]),)))
