"""Side tables: tables without changes that a pipeline reads beside its stream."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.times import Coordinate, Kind
from capstan.pipeline.definition import Pipeline, SideTable, resolve
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark.wire_format import AT, part

_STORED = {Kind.BIGINT: pa.int64(), Kind.DATE: pa.date32(), Kind.TIMESTAMP: pa.timestamp("us")}


def side_rows(pipeline: Pipeline, table: SideTable, schema: pa.Schema, reach: Reach) -> pa.Table:
    """Return the rows of a side table that a run reads, with the columns of its source.

    Args:
        schema: Columns that the source declares; `_time` is the table's time as an integer.
        reach: Times to read; rows at other times are left out.

    Returns:
        A column `time`, and the rows as a struct `p0`.
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
    typed = pc.cast(times, stored)
    return pc.cast(pc.cast(typed, pa.int32()) if pa.types.is_date32(stored) else typed, pa.int64())
