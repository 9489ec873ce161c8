"""Times of rows: the column `_time`, late rows, and buffers that wait for a watermark.

A stream is *timed* when its rows have a column `_time`. Otherwise all rows of an event have the
event's time. Inside a stateful operator, rows always have the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.events import END, TIME, runs_of
from capstan.pipeline.graph.operator import Operator, OperatorContext, check_version

NO_TIME: Final = "no-time"
"""Side output of rows whose `_time` is null."""

Length = int | timedelta
"""A duration: in units of the coordinate, or a timedelta if the units are microseconds."""

_MICROSECOND: Final = timedelta(microseconds=1)


def units(length: Length) -> int:
    """Convert a duration to units of the coordinate.

    >>> units(timedelta(seconds=1)), units(7)
    (1000000, 7)
    """
    return length // _MICROSECOND if isinstance(length, timedelta) else length


def is_timed(schema: pa.Schema) -> bool:
    """Whether rows have times of their own."""
    return TIME in schema.names


def input_schemas(inputs: Sequence[pa.Schema], ports: int = 1) -> tuple[pa.Schema, ...]:
    """Return the schemas of an operator's inputs after checking them."""
    if len(inputs) != ports:
        message = f"{len(inputs)} inputs instead of {ports}"
        raise ValueError(message)
    for schema in inputs:
        if not schema.names:
            message = "the columns of its input are unknown"
            raise ValueError(message)
        if len(set(schema.names)) < len(schema.names):
            message = f"duplicate column names in {', '.join(schema.names)}"
            raise ValueError(message)
        if is_timed(schema) and schema.field(TIME).type != pa.int64():
            message = f"{TIME} has the type {schema.field(TIME).type} instead of int64"
            raise ValueError(message)
    return tuple(inputs)


def field_of(schema: pa.Schema, column: str) -> pa.Field:
    """Return the field of a column."""
    if column not in schema.names:
        message = f"no column {column} among {', '.join(schema.names)}"
        raise ValueError(message)
    return schema.field(column)


def unique(schema: pa.Schema) -> pa.Schema:
    """Return the schema, after checking that its column names are unique."""
    duplicates = {name for name in schema.names if schema.names.count(name) > 1}
    if duplicates:
        message = f"duplicate output columns {', '.join(sorted(duplicates))}"
        raise ValueError(message)
    return schema


def with_time(schema: pa.Schema) -> pa.Schema:
    """Return the schema with a column `_time`, appended if it is missing."""
    return schema if is_timed(schema) else schema.append(pa.field(TIME, pa.int64()))


def without_time(schema: pa.Schema) -> pa.Schema:
    """Return the schema without the column `_time`."""
    return schema.remove(schema.get_field_index(TIME)) if is_timed(schema) else schema


def constant(value: int, rows: int) -> pa.Array:
    """Return an int64 array with the same value in every row."""
    return pa.repeat(pa.scalar(value, pa.int64()), rows)


def floor_to(times: pa.Array, width: int, offset: int = 0) -> pa.Array:
    """Return the greatest multiple of `width`, plus `offset`, that is not after each time."""
    if width == 1:
        return times
    shifted = pc.subtract_checked(times, offset) if offset else times
    remainder = pc.subtract_checked(shifted, pc.multiply_checked(pc.divide(shifted, width), width))
    # Integer division truncates towards zero; floors go down.
    remainder = pc.if_else(pc.less(remainder, 0), pc.add(remainder, width), remainder)
    return pc.subtract_checked(times, remainder)


def on_time(
    batch: pa.RecordBatch, context: OperatorContext, reach: int = 0
) -> pa.RecordBatch | None:
    """Return the rows with their times; divert those that are late or have no time.

    A row is late when its time is before the watermark of the node.
    """
    rows = _on_time(batch, context)
    if rows is not None and pc.max(rows.column(TIME)).as_py() > END - reach:
        message = f"a time is less than {reach} before the limit of 64 bits"
        raise ValueError(message)
    return rows


def _on_time(batch: pa.RecordBatch, context: OperatorContext) -> pa.RecordBatch | None:
    watermark = context.watermark
    if not is_timed(batch.schema):
        if watermark is not None and context.time < watermark:
            context.late(batch)
            return None
        return batch.append_column(
            pa.field(TIME, pa.int64()), constant(context.time, batch.num_rows)
        )
    if batch.column(TIME).null_count:
        missing = pc.is_null(batch.column(TIME))
        context.side(NO_TIME, batch.filter(missing))
        batch = batch.filter(pc.invert(missing))
    if watermark is None or not batch.num_rows:
        return batch if batch.num_rows else None
    late = pc.less(batch.column(TIME), watermark)
    if pc.any(late).as_py():
        context.late(batch.filter(late))
        batch = batch.filter(pc.invert(late))
    return batch if batch.num_rows else None


def emit_timed(rows: pa.Table, context: OperatorContext, *, timed: bool) -> None:
    """Emit rows that have `_time`: as they are, or split by time if the output is not timed."""
    # An untimed output needs an event for each distinct time.
    if not rows.num_rows:
        return
    if timed:
        least = pc.min(rows.column(TIME)).as_py()
        for batch in rows.combine_chunks().to_batches():
            context.emit(batch, least)
        return
    rows = rows.take(pc.sort_indices(rows, sort_keys=[(TIME, "ascending")])).combine_chunks()
    for time, at_time in runs_of(rows.drop_columns([TIME]), rows.column(TIME)):
        for batch in at_time.to_batches():
            context.emit(batch, time)


class RowBuffer:
    """Rows that wait until their times are complete; the schema includes `_time`."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.least: int | None = None  # time of the rows
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows."""
        if not rows.num_rows:
            return
        least = pc.min(rows.column(TIME)).as_py()
        self.least = least if self.least is None else min(self.least, least)
        self._batches += rows.to_batches() if isinstance(rows, pa.Table) else [rows]

    def table(self) -> pa.Table:
        """Return all rows, and keep them."""
        return pa.Table.from_batches(self._batches, self.schema)

    def replace(self, rows: pa.Table) -> None:
        """Replace all rows by `rows`."""
        self.least, self._batches = None, []
        self.add(rows)

    def take_before(self, time: int) -> pa.Table:
        """Remove and return the rows before a time."""
        if self.least is None or self.least >= time:
            return self.schema.empty_table()
        rows = self.table()
        due = pc.less(rows.column(TIME), time)
        self.replace(rows.filter(pc.invert(due)).combine_chunks())
        return rows.filter(due)


class BufferedOperator(Operator):
    """Base of running operators whose state is the rows of some buffers."""

    _buffers: Sequence[RowBuffer]

    def checkpoint(self) -> bytes:
        """Return the rows of all buffers."""
        return tables_to_bytes([buffer.table() for buffer in self._buffers])

    def restore(self, version: int, state: bytes) -> None:
        """Restore the rows of all buffers."""
        check_version(version)
        # Paired first: a state of another number of tables must change nothing.
        pairs = list(zip(self._buffers, tables_from_bytes(state), strict=True))
        for buffer, rows in pairs:
            buffer.replace(rows)
