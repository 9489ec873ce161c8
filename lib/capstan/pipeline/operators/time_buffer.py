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
from capstan.pipeline.graph.operator import Operator, OperatorContext, check_version, require

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


def require_unit(length: Length | None, subject: str) -> None:
    """Refuse a length that is given and less than one unit; `subject` begins the sentence."""
    if length is not None:
        require(units(length) >= 1, f"{subject} at least one unit, not {length}")


def is_timed(schema: pa.Schema) -> bool:
    """Whether rows have times of their own."""
    return TIME in schema.names


def input_schemas(inputs: Sequence[pa.Schema], ports: int = 1) -> tuple[pa.Schema, ...]:
    """Return the schemas of an operator's inputs after checking them."""
    require(len(inputs) == ports, f"{len(inputs)} inputs instead of {ports}")
    for schema in inputs:
        require(schema.names, "the columns of its input are unknown")
        require(
            len(set(schema.names)) == len(schema.names),
            f"duplicate column names in {', '.join(schema.names)}",
        )
        if is_timed(schema) and schema.field(TIME).type != pa.int64():
            raise ValueError(f"{TIME} has the type {schema.field(TIME).type} instead of int64")
    return tuple(inputs)


def field_of(schema: pa.Schema, column: str) -> pa.Field:
    """Return the field of a column."""
    require(column in schema.names, f"no column {column} among {', '.join(schema.names)}")
    return schema.field(column)


def unique(schema: pa.Schema) -> pa.Schema:
    """Return the schema, after checking that its column names are unique."""
    duplicates = {name for name in schema.names if schema.names.count(name) > 1}
    require(not duplicates, f"duplicate output columns {', '.join(sorted(duplicates))}")
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
        raise ValueError(f"a time is less than {reach} before the limit of 64 bits")
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
        self.count = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows."""
        if not rows.num_rows:
            return
        least = pc.min(rows.column(TIME)).as_py()
        self.least = least if self.least is None else min(self.least, least)
        self.count += rows.num_rows
        self._batches += rows.to_batches() if isinstance(rows, pa.Table) else [rows]

    def table(self) -> pa.Table:
        """Return all rows, and keep them."""
        return pa.Table.from_batches(self._batches, self.schema)

    def replace(self, rows: pa.Table) -> None:
        """Replace all rows by `rows`."""
        self.least, self.count, self._batches = None, 0, []
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
    """Base of running operators that keep the rows of each port until their times are complete.

    State: the rows of all buffers, of which the first are those of the ports, and `_tables`.
    """

    _buffers: Sequence[RowBuffer]
    _newest: int = 1  # version of a state that can be read, like all before it
    _reach: int = 1  # how far the times of results may lie after that of a row

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        """Keep the rows that are not late."""
        rows = on_time(batch, context, self._reach)
        if rows is not None:
            buffer = self._buffers[context.port]
            buffer.add(rows.select(buffer.schema.names))

    def checkpoint(self) -> bytes:
        """Return the rows of all buffers, then the other tables."""
        return tables_to_bytes([*(buffer.table() for buffer in self._buffers), *self._tables()])

    def restore(self, version: int, state: bytes) -> None:
        """Restore the result of `checkpoint`."""
        if not 1 <= version < self._newest:
            check_version(version, self._newest)
        tables = tables_from_bytes(state)
        count = len(self._buffers)
        # Paired first: a state of another number of tables must change nothing.
        pairs = list(zip(self._buffers, tables[:count], strict=True))
        self._restore(tables[count:])
        for buffer, rows in pairs:
            buffer.replace(rows)

    def _tables(self) -> Sequence[pa.Table]:
        return ()

    def _restore(self, tables: Sequence[pa.Table]) -> None:
        """Restore the result of `_tables`: all of it, or nothing when it raises."""
        require(not tables, "the state has other tables")
