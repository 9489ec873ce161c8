"""Session windows: rows of a key that follow one another without a long gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capstan.dag.arrow import tables_from_bytes, tables_to_bytes
from capstan.dag.event import TIME
from capstan.dag.operator import Context, Key, Operator, check_version
from capstan.dag.operators.aggregates import Aggregate
from capstan.dag.operators.order import group_ids, positions
from capstan.dag.operators.reducing import Reducer
from capstan.dag.operators.timed import (
    Length,
    RowBuffer,
    emit_timed,
    is_timed,
    known,
    on_time,
    units,
    with_time,
)
from capstan.dag.operators.windows import window_fields, window_rows

_SESSION = "#session"
_START, _STOP = "#start", "#stop"


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Windows that last as long as rows of a key come less than `gap` apart.

    A session reaches from its first row to `gap` after its last one, where it does not contain
    its end: a row exactly `gap` later begins another. It closes when the watermark reaches its
    end, and puts out one row at the last time within.

    Attributes:
        gap: How long a key has to be silent.
        aggregates: What is made of the rows of a session.
        by: The key columns; none means one key.
        ties: Columns that break ties of `first` and `last`.
        bounds: The type of the columns `window_start` and `window_end`.
    """

    gap: Length
    aggregates: tuple[Aggregate, ...]
    by: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    bounds: pa.DataType = pa.int64()  # noqa: RUF009 - a value that cannot change

    def __post_init__(self) -> None:
        if units(self.gap) < 1:
            message = f"a session needs a gap of at least one unit, not {self.gap}"
            raise ValueError(message)

    @property
    def key(self) -> Key:
        """The key columns."""
        return Key.of(*self.by)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The key columns, `window_start`, `window_end`, the results."""
        return window_fields(inputs, self.by, self.aggregates, self.ties, self.bounds)

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The key columns."""
        return frozenset(self.by)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """A running form with no open sessions."""
        return _SessionOperator(self, inputs)

    def describe(self) -> str:
        """One line for people."""
        made = ", ".join(str(aggregate) for aggregate in self.aggregates)
        return f"session window with a gap of {self.gap}: {made}"


class _SessionOperator(Operator):
    """Keeps the rows of open sessions, as many columns as are needed."""

    state_ports = (0,)

    def __init__(self, spec: SessionWindow, inputs: Sequence[pa.Schema]) -> None:
        (schema,) = known(inputs)
        self._schema = spec.output_schema(inputs)
        self._timed = is_timed(schema)
        self._by = list(spec.by)
        used = [a.column for a in spec.aggregates if a.column is not None]
        self._columns = list(dict.fromkeys([*spec.by, *used, *spec.ties, TIME]))
        rows = pa.schema([with_time(schema).field(name) for name in self._columns])
        self._reducer = Reducer(rows, spec.aggregates, spec.ties)
        self._gap = units(spec.gap)
        self._rows = RowBuffer(rows)
        # The first end that the sessions known so far can have; they can only grow.
        self._due: int | None = None

    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        rows = on_time(batch, context, self._gap)
        if rows is not None:
            self._rows.add(rows.select(self._columns))
            end = pc.min(rows.column(TIME)).as_py() + self._gap
            self._due = end if self._due is None else min(self._due, end)

    def on_watermark(self, watermark: int, context: Context) -> None:
        if self._due is None or self._due > watermark:
            return
        rows = self._with_sessions(self._rows.table().combine_chunks())
        done = pc.less_equal(rows.column(_STOP), watermark)
        left = rows.filter(pc.invert(done)).combine_chunks()
        self._due = pc.min(left.column(_STOP)).as_py()
        self._rows.replace(left.select(self._columns))
        closing = rows.filter(done)
        if not closing.num_rows:
            return
        group = [*self._by, _SESSION, _START, _STOP]
        results = self._reducer.finish(self._reducer.take_in(closing, group), group)
        start, stop = results.column(_START), results.column(_STOP)
        results = results.drop_columns([_SESSION, _START, _STOP])
        emit_timed(window_rows(results, start, stop, self._schema), context, timed=self._timed)

    def checkpoint(self) -> bytes:
        return tables_to_bytes([self._rows.table()])

    def restore(self, version: int, state: bytes) -> None:
        check_version(version)
        (rows,) = tables_from_bytes(state)
        self._rows.replace(rows)
        # Perhaps too early; then nothing closes and it is found anew.
        self._due = None if self._rows.least is None else self._rows.least + self._gap

    def _with_sessions(self, rows: pa.Table) -> pa.Table:
        """The rows by key and time, with the session that each is in, its start and its end."""
        ids = group_ids(rows, self._by)
        order = pc.sort_indices(
            pa.table({"id": ids, "time": rows.column(TIME)}),
            sort_keys=[("id", "ascending"), ("time", "ascending")],
        )
        rows, ids = rows.take(order).combine_chunks(), ids.take(order)
        times = rows.column(TIME).combine_chunks()
        apart = pc.greater_equal(pc.subtract(times[1:], times[:-1]), self._gap)
        begins = pc.or_(apart, pc.not_equal(ids[1:], ids[:-1]))
        begins = pa.concat_arrays([pa.array([True]), begins])
        session = pc.cumulative_sum(pc.cast(begins, pa.int64()))
        # Rows are in order, so a session ends where the next one begins.
        first = pc.cumulative_max(pc.if_else(begins, positions(len(times)), 0))
        ends = pc.fill_null(pa.concat_arrays([begins[1:], pa.array([True])]), True)
        last = times.filter(ends).take(pc.subtract(session, 1))
        return (
            rows.append_column(_SESSION, session)
            .append_column(_START, times.take(first))
            .append_column(_STOP, pc.add_checked(last, self._gap))
        )
