"""Rows and their times: the column `_time`, late rows, and buffers that wait for a watermark.

A stream is *timed* when its rows have a column `_time`; otherwise all rows of an event have the
event's time. Inside an operator with state rows always have the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.events import END, TIME
from capstan.pipeline.graph.operator import Context

NO_TIME: Final = "no-time"
"""The side output of rows whose `_time` is null."""

Length = int | timedelta
"""A length of time: in units of the coordinate, or a timedelta where these are microseconds."""

_MICROSECOND: Final = timedelta(microseconds=1)


def units(length: Length) -> int:
    """A length in units of the coordinate.

    >>> units(timedelta(seconds=1)), units(7)
    (1000000, 7)
    """
    return length // _MICROSECOND if isinstance(length, timedelta) else length


def is_timed(schema: pa.Schema) -> bool:
    """Whether each row has a time of its own."""
    return TIME in schema.names


def known(inputs: Sequence[pa.Schema], ports: int = 1) -> tuple[pa.Schema, ...]:
    """The schemas of the inputs of an operator that has to know them.

    Raises:
        ValueError: There are not as many as it has ports; one has no columns, two of one name, or
            a `_time` that is not an int64.
    """
    if len(inputs) != ports:
        message = f"{len(inputs)} inputs instead of {ports}"
        raise ValueError(message)
    for schema in inputs:
        if not schema.names:
            message = "the columns of its input are not known"
            raise ValueError(message)
        if len(set(schema.names)) < len(schema.names):
            message = f"two columns of one name among {', '.join(schema.names)}"
            raise ValueError(message)
        if is_timed(schema) and schema.field(TIME).type != pa.int64():
            message = f"{TIME} is of type {schema.field(TIME).type} instead of int64"
            raise ValueError(message)
    return tuple(inputs)


def field_of(schema: pa.Schema, column: str) -> pa.Field:
    """A column's field.

    Raises:
        ValueError: There is no such column.
    """
    if column not in schema.names:
        message = f"no column {column} among {', '.join(schema.names)}"
        raise ValueError(message)
    return schema.field(column)


def unique(schema: pa.Schema) -> pa.Schema:
    """The schema, if no two of its columns have one name.

    Raises:
        ValueError: Two have.
    """
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        message = f"it would put out two columns named {', '.join(sorted(twice))}"
        raise ValueError(message)
    return schema


def with_time(schema: pa.Schema) -> pa.Schema:
    """The schema with a column `_time`, the last one unless it is there already."""
    return schema if is_timed(schema) else schema.append(pa.field(TIME, pa.int64()))


def without_time(schema: pa.Schema) -> pa.Schema:
    """The schema without a column `_time`."""
    return schema.remove(schema.get_field_index(TIME)) if is_timed(schema) else schema


def constant(value: int, rows: int) -> pa.Array:
    """One int64 in every row."""
    return pa.repeat(pa.scalar(value, pa.int64()), rows)


def floor_to(times: pa.Array, width: int, offset: int = 0) -> pa.Array:
    """The greatest multiple of `width`, moved by `offset`, that is not after each time.

    Raises:
        pyarrow.ArrowInvalid: A time is too close to the ends of 64 bits.
    """
    if width == 1:
        return times
    moved = pc.subtract_checked(times, offset) if offset else times
    rest = pc.subtract_checked(moved, pc.multiply_checked(pc.divide(moved, width), width))
    # Division goes towards zero, and floors go down.
    rest = pc.if_else(pc.less(rest, 0), pc.add(rest, width), rest)
    return pc.subtract_checked(times, rest)


def on_time(batch: pa.RecordBatch, context: Context, reach: int = 0) -> pa.RecordBatch | None:
    """The rows with their times; those that are late or have no time are put aside.

    Late is row by row: a time before the watermark of the node.

    Raises:
        ValueError: A row is less than `reach` before the end of all times, where what it belongs
            to could never be complete.
    """
    rows = _on_time(batch, context)
    if rows is not None and pc.max(rows.column(TIME)).as_py() > END - reach:
        message = f"a time less than {reach} before the end of 64 bits"
        raise ValueError(message)
    return rows


def _on_time(batch: pa.RecordBatch, context: Context) -> pa.RecordBatch | None:
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


def emit_timed(rows: pa.Table, context: Context, *, timed: bool) -> None:
    """Put out rows that have `_time`: as they are, or split by time when the output is not timed.

    An event for each distinct time is what an output that is not timed costs.
    """
    if not rows.num_rows:
        return
    if timed:
        least = pc.min(rows.column(TIME)).as_py()
        for batch in rows.combine_chunks().to_batches():
            context.emit(batch, least)
        return
    rows = rows.take(pc.sort_indices(rows, sort_keys=[(TIME, "ascending")])).combine_chunks()
    runs = pc.run_end_encode(rows.column(TIME).combine_chunks())
    rows = rows.drop_columns([TIME])
    start = 0
    for time, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        for batch in rows.slice(start, end - start).to_batches():
            context.emit(batch, time)
        start = end


class RowBuffer:
    """Rows with times, which wait until these are complete.

    Attributes:
        schema: Of the rows, `_time` included.
        least: The least time among them, or None when there are none.
    """

    __slots__ = ("_batches", "least", "schema")

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.least: int | None = None
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Put rows in."""
        if not rows.num_rows:
            return
        least = pc.min(rows.column(TIME)).as_py()
        self.least = least if self.least is None else min(self.least, least)
        self._batches += rows.to_batches() if isinstance(rows, pa.Table) else [rows]

    def has_before(self, time: int) -> bool:
        """Whether some row is before a time."""
        return self.least is not None and self.least < time

    def table(self) -> pa.Table:
        """All rows, which stay."""
        return pa.Table.from_batches(self._batches, self.schema)

    def replace(self, rows: pa.Table) -> None:
        """Let `rows` take the place of all that is there."""
        self.least, self._batches = None, []
        self.add(rows)

    def take_before(self, time: int) -> pa.Table:
        """Take out the rows before a time."""
        if not self.has_before(time):
            return self.schema.empty_table()
        rows = self.table()
        due = pc.less(rows.column(TIME), time)
        self.replace(rows.filter(pc.invert(due)).combine_chunks())
        return rows.filter(due)
