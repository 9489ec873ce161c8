"""Aggregates of each key over all of its rows, computed on whole batches.

`KeyedLogic` runs any function; this operator computes sums, counts, extremes, means, first, last
and distinct values with Arrow, and updates the states of all keys at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from capstan.pipeline.graph.events import END, TIME, runs_of
from capstan.pipeline.graph.operator import KeyedBy, Operator, OperatorContext, require
from capstan.pipeline.keyed.aggregate_table import AggregateTable
from capstan.pipeline.operators.aggregates import Aggregate
from capstan.pipeline.operators.group_reduce import result_columns
from capstan.pipeline.operators.time_buffer import (
    BufferedOperator,
    Length,
    RowBuffer,
    constant,
    emit_timed,
    floor_to,
    input_schemas,
    is_timed,
    require_unit,
    units,
    with_time,
)

_STEP: Final = "#step"


@dataclass(frozen=True, slots=True)
class KeyedAggregate(KeyedBy):
    """Aggregates of all rows of a key so far: in steps of time, or once at the end.

    With steps, each key with rows in a step is emitted once the step is complete, at the last time
    of the step, with the aggregates of all of its rows until then. A step costs a little for every
    existing key, so it should be long enough for many rows. Without steps every key is emitted when
    the input has ended, at the time of its last row; until then the node promises its readers
    nothing beyond the first time.

    Rows are processed by time, then by `ties`, then by value, never by arrival. So results,
    including sums of floats, do not depend on batches and watermarks.

    Attributes:
        aggregates: Aggregates of the rows.
        by: Key columns.
        every: Length of a step, or None.
        ties: Columns that order rows with the same time, if that matters.
    """

    aggregates: tuple[Aggregate, ...]
    by: tuple[str, ...]
    every: Length | None = None
    ties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.by, "aggregates by key need key columns")
        require_unit(self.every, "a step must be")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the key columns, the results, and `_time` if timed."""
        return result_columns(inputs, self.by, self.aggregates, self.ties)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator with empty state."""
        return _KeyedAggregateOperator(self, inputs)

    def describe(self) -> str:
        """Describe the operator in one line."""
        results = ", ".join(map(str, self.aggregates))
        return f"{results} so far, {'at the end' if self.every is None else f'every {self.every}'}"


class _KeyedAggregateOperator(BufferedOperator):
    """State: incomplete rows, and the aggregates of the complete ones."""

    # Version 1 has narrow sums, which can be read like wide ones; the columns tell them apart.
    _newest = 2

    def __init__(self, spec: KeyedAggregate, inputs: Sequence[pa.Schema]) -> None:
        (schema,) = input_schemas(inputs)
        self._names = with_time(spec.output_schema(inputs)).names
        self._timed = is_timed(schema)
        self._every = None if spec.every is None else units(spec.every)
        self._table = AggregateTable(with_time(schema), spec.by, spec.aggregates, spec.ties)
        self._rows = RowBuffer(self._table.rows)
        self._buffers, self._reach = (self._rows,), self._every or 1
        self._ended = False
        self.state_ports = (0,) * (1 + self._table.tables)
        self.version = 2 if self._table.widens else 1

    def on_watermark(self, watermark: int, context: OperatorContext) -> None:
        if self._every is None:
            self._table.add(self._rows.take_before(watermark))
            if watermark == END:
                self._ended = True
                self._emit(self._table.results(), context)
            return
        edge = watermark if watermark == END else watermark // self._every * self._every
        for rows, last in self._steps(self._rows.take_before(edge)):
            self._table.add(rows)
            changed = self._table.results(rows)
            at = changed.schema.get_field_index(TIME)
            self._emit(changed.set_column(at, TIME, constant(last, changed.num_rows)), context)

    def hold(self) -> int | None:
        # After the last results, readers must learn that nothing follows.
        if self._every is not None or self._ended:
            return None
        times = [self._rows.least, self._table.least]
        return min((time for time in times if time is not None), default=None)

    def _tables(self) -> Sequence[pa.Table]:
        return self._table.checkpoint()

    def _restore(self, tables: Sequence[pa.Table]) -> None:
        self._table.restore(tables)
        self._ended = False

    def _steps(self, rows: pa.Table) -> Iterator[tuple[pa.Table, int]]:
        """Yield the rows of each step, in order of time, with the last time of the step."""
        if not rows.num_rows:
            return
        assert self._every is not None
        step = floor_to(rows.column(TIME), self._every)
        rows = rows.append_column(_STEP, step).sort_by(_STEP).combine_chunks()
        for first, in_step in runs_of(rows.drop_columns([_STEP]), rows.column(_STEP)):
            yield in_step, first + self._every - 1

    def _emit(self, results: pa.Table, context: OperatorContext) -> None:
        emit_timed(results.select(self._names), context, timed=self._timed)
