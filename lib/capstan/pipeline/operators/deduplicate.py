"""The first row of each key, once its time is complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import Context, Key, Operator, check_version
from capstan.pipeline.operators.ordering import check_sortable, first_of_each, group_ids, ordered
from capstan.pipeline.operators.time_buffer import (
    Length,
    RowBuffer,
    emit_timed,
    field_of,
    is_timed,
    known,
    on_time,
    units,
    with_time,
)


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Passes the first row of each key and drops those that repeat it.

    First is by time, then by the columns `ties`, then by the values of all columns: not by
    arrival. A row leaves when its time is complete, at its own time.

    Attributes:
        by: The key columns.
        within: How long after a row that passed the rows of its key are repeats; None for ever,
            and then the keys that were seen are kept for ever.
        ties: Columns that say which of several rows at one time is the first.
    """

    by: tuple[str, ...]
    within: Length | None = None
    ties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.within is not None and units(self.within) < 1:
            message = f"rows repeat one another within at least one unit, not {self.within}"
            raise ValueError(message)

    @property
    def key(self) -> Key:
        """The key columns."""
        return Key.of(*self.by)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of its input.

        Raises:
            ValueError: A column is not there, or rows cannot be ordered by it.
        """
        (schema,) = known(inputs)
        for column in (*self.by, *self.ties):
            field_of(schema, column)
        check_sortable(schema, schema.names)
        return schema

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """All columns."""
        return frozenset(inputs[0].names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """A running form that has seen nothing."""
        return _DeduplicateOperator(self, inputs)

    def describe(self) -> str:
        """One line for people."""
        span = "" if self.within is None else f" within {self.within}"
        return f"first of each {', '.join(self.by) or 'run'}{span}"


class _DeduplicateOperator(Operator):
    """Keeps rows that are not complete, and for each key the time of the last row that passed."""

    state_ports = (0, 0)

    def __init__(self, spec: Deduplicate, inputs: Sequence[pa.Schema]) -> None:
        (schema,) = known(inputs)
        self._timed = is_timed(schema)
        self._by, self._ties = list(spec.by), list(spec.ties)
        self._within = None if spec.within is None else units(spec.within)
        self._rows = RowBuffer(with_time(schema))
        self._seen = self._rows.schema.empty_table().select([*self._by, TIME])

    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        rows = on_time(batch, context, self._within or 1)
        if rows is not None:
            self._rows.add(rows)

    def on_watermark(self, watermark: int, context: Context) -> None:
        rows = self._rows.take_before(watermark)
        if not rows.num_rows:
            return
        rows = ordered(rows, [(name, "ascending") for name in (TIME, *self._ties)])
        passed = self._passing(rows.combine_chunks())
        if self._within is not None:
            # What has passed so long ago can shut out nothing that is still to come.
            lasting = pc.greater(pc.add_checked(self._seen.column(TIME), self._within), watermark)
            self._seen = self._seen.filter(lasting).combine_chunks()
        emit_timed(passed, context, timed=self._timed)

    def checkpoint(self) -> bytes:
        return tables_to_bytes([self._rows.table(), self._seen])

    def restore(self, version: int, state: bytes) -> None:
        check_version(version)
        rows, seen = tables_from_bytes(state)
        self._rows.replace(rows)
        self._seen = seen

    def _passing(self, rows: pa.Table) -> pa.Table:
        """Those of some rows by time that pass, by time."""
        rows = self._not_shut_out(rows)
        if self._within is None:
            passed = first_of_each(rows, self._by)
        else:
            passed = rows.take(_apart(group_ids(rows, self._by), rows.column(TIME), self._within))
        self._remember(passed.select([*self._by, TIME]))
        return passed

    def _remember(self, passed: pa.Table) -> None:
        seen = pa.concat_tables([self._seen, passed])
        # Without a limit of time a key passes once, and is new here.
        if self._within is not None and self._by:
            newest = seen.group_by(self._by, use_threads=False).aggregate([(TIME, "max")])
            seen = newest.rename_columns([*self._by, TIME])
        elif self._within is not None:
            seen = seen.slice(max(0, seen.num_rows - 1))
        self._seen = seen.combine_chunks()

    def _not_shut_out(self, rows: pa.Table) -> pa.Table:
        if not self._seen.num_rows:
            return rows
        both = pa.concat_tables([self._seen, rows.select([*self._by, TIME])])
        ids = group_ids(both, self._by)
        old, new = ids[: self._seen.num_rows], ids[self._seen.num_rows :]
        place = pc.index_in(new, old)
        free = pc.is_null(place)
        if self._within is not None:
            until = pc.add_checked(self._seen.column(TIME).take(place), self._within)
            over = pc.fill_null(pc.greater_equal(rows.column(TIME), until), True)
            free = pc.or_(free, over)
        return rows.filter(free).combine_chunks()


def _apart(ids: pa.Array, times: pa.ChunkedArray, least: int) -> pa.Array:
    """The places of the first row of each id and of each next one that is `least` after the last.

    Args:
        ids: Of rows, from 0.
        times: Of the same, ascending.
        least: How long after a row that was chosen no other of its id is, at least 1.

    Returns:
        Places, ascending.
    """
    rows, own = len(ids), ids.to_numpy()
    over = np.searchsorted(times.to_numpy(), pc.add_checked(times, least).to_numpy())
    # By id and by place in one number, which is greater the later a row of an id comes.
    order = np.argsort(own, kind="stable")
    base = own[order] * (rows + 1)
    after = np.searchsorted(base + order, base + over[order])
    # Where no row of the id is left, another's comes next: `rows` stands for none.
    own = np.append(own[order], -1)
    after = np.append(np.where(own[after] == own[:-1], after, rows), rows)
    chosen = np.append(own[:-1] != np.roll(own, 1)[:-1], False)
    # Each round goes twice as far as the one before, so that a long row of rows takes few.
    while (after < rows).any():
        chosen[after[chosen]] = True
        after = after[after]
    return pa.array(np.sort(order[chosen[:-1]]))
