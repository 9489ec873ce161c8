"""Aggregates of each key over all of its rows, computed on whole batches.

What `KeyedLogic` does for any function, this does for sums, counts, extremes, means, first, last
and distinct values: rows are grouped with Arrow, and states are updated for all keys at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.events import END, TIME
from capstan.pipeline.graph.operator import Context, Key, Operator, check_version
from capstan.pipeline.keyed.aggregate_table import AggregateTable
from capstan.pipeline.operators.aggregates import Aggregate
from capstan.pipeline.operators.group_reduce import Reducer
from capstan.pipeline.operators.ordering import check_sortable
from capstan.pipeline.operators.time_buffer import (
    Length,
    RowBuffer,
    constant,
    emit_timed,
    field_of,
    floor_to,
    is_timed,
    known,
    on_time,
    unique,
    units,
    with_time,
)

_STEP: Final = "#step"


@dataclass(frozen=True, slots=True)
class KeyedAggregate:
    """Aggregates of all rows of a key so far: in steps of time, or once at the end.

    In steps, a key that had rows in a step leaves at the last time of that step, once the step is
    complete, with the aggregates of all of its rows until then. Each step costs a little for every
    key there is, so it should be long enough for many rows. Without steps every key leaves when
    the input has ended, at the time of its last row; until then the node promises its readers
    nothing beyond the first time there was.

    Rows are taken in by time, then by `ties`, then by value, never by arrival, so batches and
    watermarks make no difference: also not to sums of floats.

    Attributes:
        aggregates: What is made of the rows.
        by: The key columns.
        every: The length of a step, or None.
        ties: Columns that order rows of one time, where that matters.
    """

    aggregates: tuple[Aggregate, ...]
    by: tuple[str, ...]
    every: Length | None = None
    ties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.by:
            message = "aggregates by key need key columns"
            raise ValueError(message)
        if self.every is not None and units(self.every) < 1:
            message = f"a step lasts at least one unit, not {self.every}"
            raise ValueError(message)

    @property
    def key(self) -> Key:
        """The key columns."""
        return Key.of(*self.by)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The key columns, the results, perhaps `_time`.

        Raises:
            ValueError: A column is not there, not of a fitting type, or comes out twice.
        """
        (schema,) = known(inputs)
        keys = [field_of(schema, name) for name in self.by]
        check_sortable(schema, self.by)
        results = Reducer(with_time(schema), self.aggregates, self.ties).fields()
        made = pa.schema([*keys, *results])
        return unique(with_time(made) if is_timed(schema) else made)

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The key columns."""
        return frozenset(self.by)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """A running form without state."""
        return _KeyedAggregateOperator(self, inputs)

    def describe(self) -> str:
        """One line for people."""
        made = ", ".join(str(aggregate) for aggregate in self.aggregates)
        return f"{made} so far, {'at the end' if self.every is None else f'every {self.every}'}"


class _KeyedAggregateOperator(Operator):
    """Keeps rows that are not complete, and the aggregates of those that are."""

    def __init__(self, spec: KeyedAggregate, inputs: Sequence[pa.Schema]) -> None:
        (schema,) = known(inputs)
        self._names = with_time(spec.output_schema(inputs)).names
        self._timed = is_timed(schema)
        self._every = None if spec.every is None else units(spec.every)
        self._folded = AggregateTable(with_time(schema), spec.by, spec.aggregates, spec.ties)
        self._rows = RowBuffer(self._folded.rows)
        self._ended = False
        self.state_ports = (0,) * (1 + self._folded.tables)
        self.version = 2 if self._folded.widens else 1

    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        rows = on_time(batch, context, self._every or 1)
        if rows is not None:
            self._rows.add(rows.select(self._rows.schema.names))

    def on_watermark(self, watermark: int, context: Context) -> None:
        if self._every is None:
            self._folded.add(self._rows.take_before(watermark))
            if watermark == END:
                self._ended = True
                self._emit(self._folded.results(), context)
            return
        edge = watermark if watermark == END else watermark // self._every * self._every
        for rows, last in self._steps(self._rows.take_before(edge)):
            self._folded.add(rows)
            changed = self._folded.results(rows)
            at = changed.schema.get_field_index(TIME)
            self._emit(changed.set_column(at, TIME, constant(last, changed.num_rows)), context)

    def hold(self) -> int | None:
        # Once all has been put out, whoever reads it has to learn that nothing follows.
        if self._every is not None or self._ended:
            return None
        known_times = [self._rows.least, self._folded.least]
        return min((time for time in known_times if time is not None), default=None)

    def checkpoint(self) -> bytes:
        return tables_to_bytes([self._rows.table(), *self._folded.checkpoint()])

    def restore(self, version: int, state: bytes) -> None:
        # Version 1 has narrow sums, which can be read like wide ones. The columns tell which.
        if version not in (1, 2):
            check_version(version, self.version)
        rows, *folded = tables_from_bytes(state)
        self._folded.restore(folded)
        self._rows.replace(rows)
        self._ended = False

    def _steps(self, rows: pa.Table) -> Iterator[tuple[pa.Table, int]]:
        """The rows of each step, in order of time, and the last time in it."""
        if not rows.num_rows:
            return
        assert self._every is not None
        begun = floor_to(rows.column(TIME), self._every)
        rows = rows.append_column(_STEP, begun).sort_by(_STEP).combine_chunks()
        runs = pc.run_end_encode(rows.column(_STEP).combine_chunks())
        start = 0
        for first, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield rows.slice(start, end - start).drop_columns([_STEP]), first + self._every - 1
            start = end

    def _emit(self, results: pa.Table, context: Context) -> None:
        emit_timed(results.select(self._names), context, timed=self._timed)
