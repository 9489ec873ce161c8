"""Deduplication: the first row of each key, once its time is complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import KeyedBy, Operator, OperatorContext
from capstan.pipeline.operators.ordering import check_sortable, first_of_each, group_ids, ordered
from capstan.pipeline.operators.time_buffer import (
    BufferedOperator,
    Length,
    RowBuffer,
    emit_timed,
    field_of,
    input_schemas,
    is_timed,
    require_unit,
    units,
    with_time,
)


@dataclass(frozen=True, slots=True)
class Deduplicate(KeyedBy):
    """Passes the first row of each key and drops its duplicates.

    Rows are ordered by time, then by the columns `ties`, then by all columns, never by arrival. A
    row is emitted when its time is complete, at its own time.

    Attributes:
        by: Key columns.
        within: How long after an emitted row the rows of its key are duplicates; None for ever.
            Then the state keeps every key for ever.
        ties: Columns that order rows with the same time.
    """

    by: tuple[str, ...]
    within: Length | None = None
    ties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_unit(self.within, "within must be")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the columns of its input."""
        (schema,) = input_schemas(inputs)
        for column in (*self.by, *self.ties):
            field_of(schema, column)
        check_sortable(schema, schema.names, lists=True)
        return schema

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """All columns."""
        return frozenset(inputs[0].names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator with empty state."""
        return _DeduplicateOperator(self, inputs)

    def describe(self) -> str:
        """Describe the operator in one line."""
        span = "" if self.within is None else f" within {self.within}"
        return f"first of each {', '.join(self.by) or 'run'}{span}"


class _DeduplicateOperator(BufferedOperator):
    """State: incomplete rows, and per key the time of the last row that passed."""

    state_ports = (0, 0)

    def __init__(self, spec: Deduplicate, inputs: Sequence[pa.Schema]) -> None:
        (schema,) = input_schemas(inputs)
        self._timed = is_timed(schema)
        self._by, self._ties = list(spec.by), list(spec.ties)
        self._within = None if spec.within is None else units(spec.within)
        self._reach = self._within or 1
        self._rows = RowBuffer(with_time(schema))
        self._buffers = (self._rows,)
        self._seen = self._rows.schema.empty_table().select([*self._by, TIME])

    def on_watermark(self, watermark: int, context: OperatorContext) -> None:
        rows = self._rows.take_before(watermark)
        if not rows.num_rows:
            return
        rows = ordered(rows, [(name, "ascending") for name in (TIME, *self._ties)])
        passed = self._first_rows(rows.combine_chunks())
        if self._within is not None:
            # Rows that passed long ago cannot exclude a row that is still to come.
            lasting = pc.greater(pc.add_checked(self._seen.column(TIME), self._within), watermark)
            self._seen = self._seen.filter(lasting).combine_chunks()
        emit_timed(passed, context, timed=self._timed)

    def _tables(self) -> Sequence[pa.Table]:
        return (self._seen,)

    def _restore(self, tables: Sequence[pa.Table]) -> None:
        (self._seen,) = tables

    def _first_rows(self, rows: pa.Table) -> pa.Table:
        """Select the rows that pass, by time, from rows ordered by time."""
        rows = self._without_duplicates(rows)
        if self._within is None:
            passed = first_of_each(rows, self._by)
        else:
            ids = group_ids(rows, self._by)
            passed = rows.take(_spaced_rows(ids, rows.column(TIME), self._within))
        self._remember(passed.select([*self._by, TIME]))
        return passed

    def _remember(self, passed: pa.Table) -> None:
        seen = pa.concat_tables([self._seen, passed])
        # Without a time limit a key passes only once, and is new here.
        if self._within is not None and self._by:
            newest = seen.group_by(self._by, use_threads=False).aggregate([(TIME, "max")])
            seen = newest.rename_columns([*self._by, TIME])
        elif self._within is not None:
            seen = seen.slice(max(0, seen.num_rows - 1))
        self._seen = seen.combine_chunks()

    def _without_duplicates(self, rows: pa.Table) -> pa.Table:
        if not self._seen.num_rows:
            return rows
        both = pa.concat_tables([self._seen, rows.select([*self._by, TIME])])
        ids = group_ids(both, self._by)
        old, new = ids[: self._seen.num_rows], ids[self._seen.num_rows :]
        position = pc.index_in(new, old)
        passes = pc.is_null(position)
        if self._within is not None:
            until = pc.add_checked(self._seen.column(TIME).take(position), self._within)
            expired = pc.fill_null(pc.greater_equal(rows.column(TIME), until), True)
            passes = pc.or_(passes, expired)
        return rows.filter(passes).combine_chunks()


def _spaced_rows(ids: pa.Array, times: pa.ChunkedArray, least: int) -> pa.Array:
    """Positions, ascending, of the first row of each id and of each next one `least` after it."""
    rows, id_of_row = len(ids), ids.to_numpy()
    later = np.searchsorted(times.to_numpy(), pc.add_checked(times, least).to_numpy())
    # One number combines id and position; it grows with the position within an id.
    order = np.argsort(id_of_row, kind="stable")
    base = id_of_row[order] * (rows + 1)
    after = np.searchsorted(base + order, base + later[order])
    # `rows` stands for no next row: when the id has none left, the next row has another id.
    sorted_ids = np.append(id_of_row[order], -1)
    after = np.append(np.where(sorted_ids[after] == sorted_ids[:-1], after, rows), rows)
    chosen = np.append(sorted_ids[:-1] != np.roll(sorted_ids, 1)[:-1], False)
    # Each round doubles the distance, so that long runs need few rounds.
    while (after < rows).any():
        chosen[after[chosen]] = True
        after = after[after]
    return pa.array(np.sort(order[chosen[:-1]]))
