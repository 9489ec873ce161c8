"""Tables that do not change, as a pipeline reads them beside its stream."""

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
    """The rows of a table that a run reads, with the columns that its source declares.

    Args:
        pipeline: Whose table it is.
        table: The table.
        schema: What the source declares; `_time` is the table's time as an integer.
        reach: What the run reads; rows at other times are left out.

    Returns:
        A column `time`, and the rows as a struct `p0`.

    Raises:
        InvalidRequestError: `CAP-PIPELINE` when it gives no rows like that.
    """
    found = resolve(pipeline, table.function)()
    if not isinstance(found, pa.Table):
        raise pipeline.refusal(f"has a table {table.source} that is no Arrow table")
    missing = {table.time, *schema.names} - {*found.column_names, TIME}
    if missing:
        raise pipeline.refusal(f"has a table {table.source} without {', '.join(sorted(missing))}")
    times = _integers(found.column(table.time), reach.time_type.coordinates[reach.coordinate])
    since, until = (bound[reach.coordinate] for bound in (reach.reads.since, reach.reads.until))
    kept = pc.is_valid(times)
    if since is not None:
        kept = pc.and_(kept, pc.greater_equal(times, since))
    until = reach.last if until is None else min(until, reach.last)
    kept = pc.and_(kept, pc.less(times, until))
    columns = [times if name == TIME else found.column(name) for name in schema.names]
    try:
        rows = pa.table(columns, names=schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise pipeline.refusal(f"has a table {table.source} of other types: {error}") from error
    structs = rows.combine_chunks().to_struct_array()
    return pa.table([times, structs], names=[AT, part(0)]).filter(kept)


def _integers(times: pa.ChunkedArray, coordinate: Coordinate) -> pa.ChunkedArray:
    """Times as the integers that stand for them."""
    stored = _STORED[coordinate.kind]
    if pa.types.is_timestamp(times.type) and times.type.tz is not None:
        stored = pa.timestamp("us", tz="UTC")
    typed = pc.cast(times, stored)
    return pc.cast(pc.cast(typed, pa.int32()) if pa.types.is_date32(stored) else typed, pa.int64())
