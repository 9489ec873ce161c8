"""Times of events in Arrow: the coordinates of a struct column as integers."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def coordinates(times: pa.StructArray, width: int) -> list[pa.Array]:
    """The coordinates of a struct column of times as integers, null where the struct is null."""
    return [integers(pc.struct_field(times, index)) for index in range(width)]


def integers(column: pa.Array) -> pa.Array:
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
