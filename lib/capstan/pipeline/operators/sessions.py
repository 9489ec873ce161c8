"""Session windows: rows of a key without a long gap between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import Operator, OperatorContext, check_version
from capstan.pipeline.operators.aggregates import Aggregate
from capstan.pipeline.operators.group_reduce import Reducer
from capstan.pipeline.operators.ordering import group_ids
from capstan.pipeline.operators.time_buffer import (
    Length,
    RowBuffer,
    emit_timed,
    input_schemas,
    is_timed,
    on_time,
    require_unit,
    units,
    with_time,
)
from capstan.pipeline.operators.windows import WindowSpec, window_rows

_SESSION = "#session"
_START, _STOP = "#start", "#stop"
_Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SessionWindow(WindowSpec):
    """Windows that last as long as the rows of a key are less than `gap` apart.

    A session reaches from its first row to `gap` after its last one, excluding its end: a row
    exactly `gap` later begins another session. It closes when the watermark reaches its end, and
    emits one row at its last time.

    Attributes:
        gap: Pause that ends a session.
        aggregates: Aggregates of the rows of a session.
        by: Key columns; empty for a single key.
        ties: Columns that break ties of `first` and `last`.
        bounds: Type of the columns `window_start` and `window_end`.
    """

    gap: Length
    aggregates: tuple[Aggregate, ...]
    by: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    bounds: pa.DataType = pa.int64()  # noqa: RUF009 - an immutable value

    def __post_init__(self) -> None:
        require_unit(self.gap, "a session needs a gap of")

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator without open sessions."""
        return _SessionOperator(self, inputs)

    def describe(self) -> str:
        """Describe the operator in one line."""
        results = ", ".join(map(str, self.aggregates))
        return f"session window with a gap of {self.gap}: {results}"


class _SessionOperator(Operator):
    """State: one row per open session when results can be merged, otherwise all rows.

    Rows are buffered until a session may have ended, or until a checkpoint.
    """

    state_ports = (0,)

    def __init__(self, spec: SessionWindow, inputs: Sequence[pa.Schema]) -> None:
        (schema,) = input_schemas(inputs)
        self._schema = spec.output_schema(inputs)
        self._timed = is_timed(schema)
        self._by = list(spec.by)
        used = [a.column for a in spec.aggregates if a.column is not None]
        self._columns = list(dict.fromkeys([*spec.by, *used, *spec.ties, TIME]))
        rows = pa.schema([with_time(schema).field(name) for name in self._columns])
        self._reducer = Reducer(rows, spec.aggregates, spec.ties)
        self._gap = units(spec.gap)
        self._rows = RowBuffer(rows)
        # Per session its first and last time, and its partial results.
        self._open: pa.Table | None = None
        # The earliest possible end of the known sessions; sessions can only grow.
        self._due: int | None = None
        self.version = 1 + self._reducer.partial + self._reducer.widens

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        rows = on_time(batch, context, self._gap)
        if rows is not None:
            self._rows.add(rows.select(self._columns))
            end = pc.min(rows.column(TIME)).as_py() + self._gap
            self._due = end if self._due is None else min(self._due, end)

    def on_watermark(self, watermark: int, context: OperatorContext) -> None:
        if self._due is None or self._due > watermark:
            return
        sessions = self._with_sessions(self._stretches())
        done = pc.less_equal(sessions.column(_STOP), watermark)
        self._store(sessions.filter(pc.invert(done)).combine_chunks())
        closing = sessions.filter(done)
        if not closing.num_rows:
            return
        group = [*self._by, _SESSION, _START, _STOP]
        parts = closing if self._reducer.partial else self._reducer.accumulate(closing, group)
        results = self._reducer.finish(parts, group)
        start, stop = results.column(_START), results.column(_STOP)
        results = results.drop_columns([_SESSION, _START, _STOP])
        emit_timed(window_rows(results, start, stop, self._schema), context, timed=self._timed)

    def checkpoint(self) -> bytes:
        if not self._reducer.partial:
            return tables_to_bytes([self._rows.table()])
        # Merged, so that the state does not depend on when the rows arrived.
        self._store(self._with_sessions(self._stretches()))
        assert self._open is not None
        return tables_to_bytes([self._reducer.to_checkpoint(self._open)])

    def restore(self, version: int, state: bytes) -> None:
        # Version 1 has rows, which can be reduced; version 2 has narrow sums.
        if not 1 <= version < self.version:
            check_version(version, self.version)
        (stored,) = tables_from_bytes(state)
        # This may be too early; then nothing closes and it is computed again.
        self._due = pc.min(pc.add_checked(stored.column(TIME), self._gap)).as_py()
        self._open = None if version == 1 else stored
        self._rows.replace(stored if version == 1 else self._rows.schema.empty_table())

    def _stretches(self) -> pa.Table:
        """Return the open sessions and the new rows, as stretches from `#start` to `_time`."""
        rows = self._rows.table()
        if not self._reducer.partial:
            return rows.append_column(_START, rows.column(TIME)).combine_chunks()
        parts = self._reducer.accumulate(rows, [*self._by, TIME])
        parts = parts.append_column(_START, parts.column(TIME))
        if self._open is not None:
            added = parts.select(self._open.column_names)
            parts = self._reducer.concat([self._open, added])
        return parts.combine_chunks()

    def _store(self, sessions: pa.Table) -> None:
        self._due = pc.min(sessions.column(_STOP)).as_py()
        if not self._reducer.partial:
            self._rows.replace(sessions.select(self._columns))
            return
        self._rows.replace(self._rows.schema.empty_table())
        columns = sessions.drop_columns([_SESSION, _STOP]).column_names
        merged = self._reducer.merge(sessions, [*self._by, _SESSION, _START, _STOP])
        last = pc.subtract(merged.column(_STOP), self._gap)
        self._open = merged.append_column(TIME, last).select(columns).combine_chunks()

    def _with_sessions(self, rows: pa.Table) -> pa.Table:
        """Return the stretches by key, with the number, start and end of their sessions."""
        ids = group_ids(rows, self._by)
        order = pc.sort_indices(
            pa.table({"id": ids, "start": rows.column(_START)}),
            sort_keys=[("id", "ascending"), ("start", "ascending")],
        )
        rows, row_ids = rows.take(order), ids.take(order).to_numpy()
        starts, lasts = (rows.column(name).to_numpy() for name in (_START, TIME))
        # How far the stretches of a key reach up to each one; a stretch may contain another.
        times, rank = np.unique(lasts, return_inverse=True)
        base = row_ids * len(times)
        reach = times[np.maximum.accumulate(base + rank) - base]
        begins = np.ones(len(row_ids), bool)
        begins[1:] = (row_ids[1:] != row_ids[:-1]) | _apart(starts[1:], reach[:-1], self._gap)
        session = np.cumsum(begins) - 1
        # Rows are in order, so a session ends before the next one begins.
        ends = np.append(begins[1:], True)[: len(row_ids)]
        return (
            rows.drop_columns([_START])
            .append_column(_SESSION, pa.array(session))
            .append_column(_START, pa.array(starts[begins][session]))
            .append_column(_STOP, pc.add_checked(pa.array(reach[ends][session]), self._gap))
        )


def _apart(starts: _Times, reach: _Times, gap: int) -> npt.NDArray[np.bool_]:
    """Whether starts lie at least `gap` after the reach, over the whole range of int64."""
    # When the start is later, the difference is exact in unsigned 64 bits.
    distance = starts.view(np.uint64) - reach.view(np.uint64)
    return (starts > reach) & (distance >= np.uint64(gap))
