"""Tumbling and sliding windows of event time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import (
    KeyedBy,
    Operator,
    OperatorContext,
    check_version,
    require,
)
from capstan.pipeline.operators.aggregates import Aggregate
from capstan.pipeline.operators.group_reduce import Reducer, result_columns
from capstan.pipeline.operators.ordering import ordered
from capstan.pipeline.operators.time_buffer import (
    Length,
    emit_timed,
    floor_to,
    input_schemas,
    is_timed,
    on_time,
    units,
    with_time,
)

START: Final = "window_start"
"""Column with the start of a window, which is inclusive."""

STOP: Final = "window_end"
"""Column with the end of a window, which is exclusive."""

_PANE: Final = "#pane"
_STOP: Final = "#end"
_COMPACT: Final = 65_536


class WindowSpec(KeyedBy):
    """Base of windows that aggregate the rows of each key."""

    __slots__ = ()
    aggregates: tuple[Aggregate, ...]
    ties: tuple[str, ...]
    bounds: pa.DataType

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the key columns, `window_start`, `window_end`, the results, `_time` if timed."""
        ends = [pa.field(START, self.bounds), pa.field(STOP, self.bounds)]
        return result_columns(inputs, self.by, self.aggregates, self.ties, ends)


def window_rows(
    results: pa.Table, start: pa.ChunkedArray, stop: pa.ChunkedArray, schema: pa.Schema
) -> pa.Table:
    """Return the output rows of closed windows, by end and key, at their last time."""
    columns = {name: results.column(name) for name in results.column_names}
    columns |= {START: start, STOP: stop, TIME: pc.subtract_checked(stop, 1)}
    bounds = schema.field(START).type
    rows = pa.table({name: columns[name] for name in with_time(schema).names})
    by = schema.names[: schema.get_field_index(START)]
    rows = ordered(rows, [(STOP, "ascending")], [*by, START])
    for name in (START, STOP):
        position = rows.schema.get_field_index(name)
        rows = rows.set_column(position, name, _as_bounds(rows.column(name), bounds))
    return rows


def _as_bounds(times: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    # Arrow stores days in 32 bits.
    return pc.cast(pc.cast(times, pa.int32()) if pa.types.is_date32(kind) else times, kind)


@dataclass(frozen=True, slots=True)
class Window(WindowSpec):
    """Windows `[start, start + size)` of event time, one every `slide`; each closes once.

    A window closes when the watermark reaches its end, and emits one row per key at its last
    time. A row before the watermark is late, even if one of its windows is still open.

    Attributes:
        size: Length of a window.
        slide: Distance between the starts of windows; at most `size`.
        aggregates: Aggregates of the rows of a window.
        by: Key columns; empty for one group of all rows.
        ties: Columns that break ties of `first` and `last`.
        offset: Start of windows, relative to time 0.
        bounds: Type of the columns `window_start` and `window_end`.
    """

    size: Length
    slide: Length
    aggregates: tuple[Aggregate, ...]
    by: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    offset: Length = 0
    bounds: pa.DataType = pa.int64()  # noqa: RUF009 - an immutable value

    def __post_init__(self) -> None:
        require(
            0 < units(self.slide) <= units(self.size),
            f"windows of {self.size} every {self.slide} are empty or leave gaps",
        )

    @classmethod
    def tumbling(
        cls,
        size: Length,
        aggregates: Sequence[Aggregate],
        *,
        by: Sequence[str] = (),
        ties: Sequence[str] = (),
        offset: Length = 0,
        bounds: pa.DataType | None = None,
    ) -> Self:
        """Create windows that follow one another without overlap."""
        return cls.sliding(size, size, aggregates, by=by, ties=ties, offset=offset, bounds=bounds)

    @classmethod
    def sliding(
        cls,
        size: Length,
        slide: Length,
        aggregates: Sequence[Aggregate],
        *,
        by: Sequence[str] = (),
        ties: Sequence[str] = (),
        offset: Length = 0,
        bounds: pa.DataType | None = None,
    ) -> Self:
        """Create windows that overlap: each row is in `size / slide` of them."""
        kind = pa.int64() if bounds is None else bounds
        return cls(size, slide, tuple(aggregates), tuple(by), tuple(ties), offset, kind)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator without open windows."""
        return _WindowOperator(self, inputs)

    def describe(self) -> str:
        """Describe the operator in one line."""
        kind = "tumbling" if self.size == self.slide else "sliding"
        every = "" if self.size == self.slide else f" every {self.slide}"
        results = ", ".join(map(str, self.aggregates))
        return f"{kind} window of {self.size}{every}: {results}"


class _WindowOperator(Operator):
    """State: parts of groups by pane, the longest stretch without a window's edge inside."""

    state_ports = (None, 0)

    def __init__(self, spec: Window, inputs: Sequence[pa.Schema]) -> None:
        (schema,) = input_schemas(inputs)
        self._schema = spec.output_schema(inputs)
        self._timed = is_timed(schema)
        self._reducer = Reducer(with_time(schema), spec.aggregates, spec.ties)
        self._size, self._slide = units(spec.size), units(spec.slide)
        self._offset = units(spec.offset)
        self._pane = gcd(self._size, self._slide) if self._reducer.partial else 1
        self._by = list(spec.by)
        self._stored: list[pa.Table] = []
        self._compact = _COMPACT
        self._least: int | None = None
        self._closed: int | None = None
        self.version = 2 if self._reducer.widens else 1

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        rows = on_time(batch, context, self._size)
        if rows is None:
            return
        panes = floor_to(rows.column(TIME), self._pane, self._offset)
        table = pa.Table.from_batches([rows.append_column(_PANE, panes)])
        self._store([*self._stored, self._reducer.accumulate(table, [*self._by, _PANE])])
        # Parts grow with the number of batches, which says nothing about the number of groups.
        if self._reducer.partial and sum(table.num_rows for table in self._stored) > self._compact:
            merged = self._reducer.merge(self._reducer.concat(self._stored), [*self._by, _PANE])
            self._store([merged])
            self._compact = max(_COMPACT, 2 * merged.num_rows)

    def on_watermark(self, watermark: int, context: OperatorContext) -> None:
        closed, self._closed = self._closed, watermark
        if self._least is None or self._first_end(self._least) > watermark:
            return
        stored = self._reducer.concat(self._stored)
        closing = self._closing(stored, closed, watermark)
        last = pc.add_checked(floor_to(stored.column(_PANE), self._slide, self._offset), self._size)
        self._store([stored.filter(pc.greater(last, watermark)).combine_chunks()])
        results = self._reducer.finish(closing, [*self._by, _STOP])
        stops = results.column(_STOP)
        rows = window_rows(
            results.drop_columns([_STOP]), pc.subtract(stops, self._size), stops, self._schema
        )
        emit_timed(rows, context, timed=self._timed)

    def checkpoint(self) -> bytes:
        stored = []
        if self._stored:
            stored = [self._reducer.to_checkpoint(self._reducer.concat(self._stored))]
        # A window of a stored pane can have closed only if windows overlap. Otherwise workers may
        # be at different points and still be rescaled, as behind an operator that holds its
        # watermark.
        closed = self._closed if self._slide < self._size else None
        edge = pa.table({"closed": pa.array([closed], pa.int64())})
        return tables_to_bytes([edge, *stored])

    def restore(self, version: int, state: bytes) -> None:
        # Version 1 has narrow sums, which can be read like wide ones.
        if version != 1:
            check_version(version, self.version)
        edge, *stored = tables_from_bytes(state)
        self._closed = edge.column("closed")[0].as_py()
        self._store(stored)

    def _first_end(self, pane: int) -> int:
        # The window that began first among those that contain the pane.
        start = (pane - self._offset - self._size) // self._slide * self._slide + self._offset
        return start + self._slide + self._size

    def _store(self, tables: list[pa.Table]) -> None:
        self._stored = [table for table in tables if table.num_rows]
        least = [pc.min(table.column(_PANE)).as_py() for table in self._stored[-1:]]
        if self._least is not None and len(self._stored) > 1:
            least.append(self._least)
        self._least = min(least, default=None)

    def _closing(self, stored: pa.Table, closed: int | None, watermark: int) -> pa.Table:
        """Return the parts of each window that closes now, with the window's end."""
        last = floor_to(stored.column(_PANE), self._slide, self._offset)
        parts = []
        for back in range(0, self._size, self._slide):
            start = pc.subtract_checked(last, back)
            stop = pc.add_checked(start, self._size)
            due = pc.and_(pc.less_equal(stop, watermark), pc.greater(stop, stored.column(_PANE)))
            if closed is not None:
                due = pc.and_(due, pc.greater(stop, closed))
            parts.append(stored.append_column(_STOP, stop).filter(due))
        return pa.concat_tables(parts)
