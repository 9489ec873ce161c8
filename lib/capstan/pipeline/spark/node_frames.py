"""Frames at the ends of a pipeline: the rows of its sources, and those of its sinks for targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from capstan.core.times import Coordinate, Kind
from capstan.pipeline.definition import Pipeline, SideTable, resolve
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark import row_transport
from capstan.pipeline.spark.wire_format import AT, part
from capstan.storage.tape.time_columns import as_integers, coordinate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def source_rows(
    spark: SparkSession,
    pipeline: Pipeline,
    name: str,
    schema: pa.Schema,
    streams: Mapping[str, Sequence[DataFrame]],
    reach: Reach,
) -> DataFrame:
    """The rows of a source, a stream or a table: `time`, their order if known, and struct `p0`."""
    if name in streams:
        return row_transport.from_all(pipeline, name, schema, streams[name], reach)
    table = next(table for table in pipeline.tables if table.source == name)
    row_transport.spark_type(pipeline, name, schema)
    return spark.createDataFrame(side_rows(pipeline, table, schema, reach))


def sink_rows(
    pipeline: Pipeline,
    name: str,
    names: Sequence[str],
    rows: DataFrame,
    column: Callable[[str], Column],
    reach: Reach,
) -> DataFrame:
    """The rows of a sink, whose columns are named, with the columns of its target."""
    columns = [column(each).alias(each) for each in names if each != TIME]
    if pipeline.sink(name).time != TIME:
        return rows.select(*columns)
    declared = reach.time_type.coordinates[reach.coordinate]
    time = F.struct(coordinate(F.col(AT), declared)).alias(TIME)
    return rows.select(time, *columns)


_STORED = {Kind.BIGINT: pa.int64(), Kind.DATE: pa.date32(), Kind.TIMESTAMP: pa.timestamp("us")}


def side_rows(pipeline: Pipeline, table: SideTable, schema: pa.Schema, reach: Reach) -> pa.Table:
    """Return the rows of a side table that a run reads: column `time`, and the rows as struct `p0`.

    In the source's `schema`, `_time` is the table's time as an integer.
    """
    result = resolve(pipeline, table.function)()
    if not isinstance(result, pa.Table):
        raise pipeline.refusal(f"has a table {table.source} that is not an Arrow table")
    missing = {table.time, *schema.names} - {*result.column_names, TIME}
    if missing:
        raise pipeline.refusal(f"has a table {table.source} without {', '.join(sorted(missing))}")
    times = _integers(result.column(table.time), reach.time_type.coordinates[reach.coordinate])
    since, until = (bound[reach.coordinate] for bound in (reach.reads.since, reach.reads.until))
    in_range = pc.is_valid(times)
    if since is not None:
        in_range = pc.and_(in_range, pc.greater_equal(times, since))
    until = reach.last if until is None else min(until, reach.last)
    in_range = pc.and_(in_range, pc.less(times, until))
    columns = [times if name == TIME else result.column(name) for name in schema.names]
    try:
        rows = pa.table(columns, names=schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise pipeline.refusal(f"has a table {table.source} with other types: {error}") from error
    structs = rows.combine_chunks().to_struct_array()
    return pa.table([times, structs], names=[AT, part(0)]).filter(in_range)


def _integers(times: pa.ChunkedArray, coordinate: Coordinate) -> pa.ChunkedArray:
    """Convert times to the integers that represent them."""
    stored = _STORED[coordinate.kind]
    if pa.types.is_timestamp(times.type) and times.type.tz is not None:
        stored = pa.timestamp("us", tz="UTC")
    return as_integers(pc.cast(times, stored))
