"""The first rows of each key by some columns, in windows or over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.events import END, TIME
from capstan.pipeline.graph.operator import KeyedBy, Operator, OperatorContext
from capstan.pipeline.operators.ordering import (
    Direction,
    check_sortable,
    group_ids,
    ordered,
    positions,
    starts,
)
from capstan.pipeline.operators.time_buffer import (
    BufferedOperator,
    Length,
    RowBuffer,
    constant,
    emit_timed,
    field_of,
    floor_to,
    input_schemas,
    is_timed,
    on_time,
    unique,
    units,
    with_time,
)

_STOP = "#end"
_COMPACT = 65_536


@dataclass(frozen=True, slots=True)
class TopN(KeyedBy):
    """The `n` first rows of each key by the columns `order`.

    Rows that are equal in these columns are ordered by their other values, never by arrival.
    Nulls come last.

    With a window, rows are emitted when their window closes, at its last time. Without one they
    are emitted when the input has ended, each at its own time; until then the node promises its
    readers nothing beyond the least of these times.

    Attributes:
        n: Number of rows.
        order: Columns with directions.
        by: Key columns; empty for the first of all rows.
        window: Length of tumbling windows, or None for all rows together. With 1, the first rows at
            each time.
        with_ties: Also pass rows that equal the last one in all columns of `order`.
        rank: Name of a column with the rank, from 1; under `with_ties` equal rows have equal ranks.
    """

    n: int
    order: tuple[tuple[str, Direction], ...]
    by: tuple[str, ...] = ()
    window: Length | None = None
    with_ties: bool = False
    rank: str | None = None

    def __post_init__(self) -> None:
        if self.n < 1 or not self.order or (self.window is not None and units(self.window) < 1):
            raise ValueError(f"no rows: the first {self.n} by {self.order} in {self.window}")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the columns of its input, then the rank."""
        (schema,) = input_schemas(inputs)
        for column, _ in self.order:
            field_of(with_time(schema), column)
        for column in self.by:
            field_of(schema, column)
        check_sortable(with_time(schema), [column for column, _ in self.order])
        check_sortable(schema, schema.names, lists=True)
        rank = [] if self.rank is None else [pa.field(self.rank, pa.int64())]
        return unique(pa.schema([*schema, *rank]))

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """All columns, except the time if a window replaces it."""
        return frozenset(inputs[0].names) - (frozenset() if self.window is None else {TIME})

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator with empty state."""
        return _TopNOperator(self, inputs)

    def describe(self) -> str:
        """Describe the operator in one line."""
        by = "" if not self.by else f" of each {', '.join(self.by)}"
        span = "" if self.window is None else f" in each {self.window}"
        return f"first {self.n} by {', '.join(' '.join(o) for o in self.order)}{by}{span}"


class _TopNOperator(BufferedOperator):
    """State: rows with the end of their window, reduced to the first ones as they grow."""

    state_ports = (0,)

    def __init__(self, spec: TopN, inputs: Sequence[pa.Schema]) -> None:
        (schema,) = input_schemas(inputs)
        self._spec = spec
        self._names = spec.output_schema(inputs).names
        self._timed = is_timed(schema)
        self._window = None if spec.window is None else units(spec.window)
        self._rows = RowBuffer(with_time(schema).append(pa.field(_STOP, pa.int64())))
        self._buffers = (self._rows,)
        self._compact = _COMPACT

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        rows = on_time(batch, context, self._window or 0)
        if rows is None:
            return
        times = rows.column(TIME)
        if self._window is None:
            stop = constant(END, rows.num_rows)
        else:
            stop = pc.add_checked(floor_to(times, self._window), self._window)
        self._rows.add(rows.append_column(_STOP, stop))
        if self._rows.count > self._compact:
            first = self._first(self._rows.table()).select(self._rows.schema.names)
            self._rows.replace(first.combine_chunks())
            self._compact = max(_COMPACT, 2 * self._rows.count)

    def on_watermark(self, watermark: int, context: OperatorContext) -> None:
        least = self._rows.least
        if least is None or (self._window is None and watermark < END):
            return
        if self._window is not None and least // self._window >= watermark // self._window:
            return
        rows = self._rows.table()
        due = pc.less_equal(rows.column(_STOP), watermark)
        self._rows.replace(rows.filter(pc.invert(due)).combine_chunks())
        first = self._first(rows.filter(due))
        if self._window is not None:
            last = pc.subtract(first.column(_STOP), 1)
            first = first.set_column(first.schema.get_field_index(TIME), TIME, last)
        names = self._names if self._timed else [*self._names, TIME]
        emit_timed(first.select(names), context, timed=self._timed)

    def hold(self) -> int | None:
        return self._rows.least if self._window is None else None

    def _first(self, rows: pa.Table) -> pa.Table:
        """Return the first rows per key and window with their rank, by window, key and rank."""
        spec = self._spec
        if not rows.num_rows:
            return rows if spec.rank is None else rows.append_column(spec.rank, positions(0))
        leading: list[tuple[str, Direction]] = [(name, "ascending") for name in (_STOP, *spec.by)]
        rows = ordered(rows, [*leading, *spec.order]).combine_chunks()
        begin = starts(group_ids(rows, [_STOP, *spec.by]))
        if spec.with_ties:
            names = [_STOP, *spec.by, *(name for name, _ in spec.order)]
            rank = pc.subtract(starts(group_ids(rows, names)), begin)
        else:
            rank = pc.subtract(positions(rows.num_rows), begin)
        if spec.rank is not None:
            rows = rows.append_column(spec.rank, pc.add(rank, 1))
        return rows.filter(pc.less(rank, spec.n))
