"""SQL over rows, one at a time or over all rows of a window. DuckDB runs it.

The text is checked when the graph is built. It must be one SELECT over the inputs alone, without
functions whose value differs between calls or days. Files and the network are out of reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import KeyedBy, Operator, OperatorContext, Stateless, require
from capstan.pipeline.operators.duckdb_sql import check_query, connect, run_query
from capstan.pipeline.operators.ordering import check_sortable, ordered
from capstan.pipeline.operators.time_buffer import (
    BufferedOperator,
    Length,
    RowBuffer,
    constant,
    emit_timed,
    input_schemas,
    is_timed,
    require_unit,
    unique,
    units,
    with_time,
    without_time,
)

INPUT: Final = "input"
"""Name of the single input in SQL."""


@dataclass(frozen=True, slots=True)
class Sql(Stateless):
    """One SELECT over each batch, which processes one row at a time.

    The table `input` has the rows. Aggregates, window functions, orders, limits, joins and
    subqueries are refused, because their results would depend on how rows are cut into batches.
    If rows have `_time`, the query must select it.

    Attributes:
        query: The SQL text.
        keeps: Columns that the query passes on unchanged.
    """

    query: str
    keeps: frozenset[str] = frozenset()

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the columns that the query selects."""
        (schema,) = input_schemas(inputs)
        columns = unique(check_query(self.query, {INPUT: schema}, row_by_row=True))
        selected = is_timed(columns) or not is_timed(schema)
        require(selected, f"its rows have {TIME}, but the query does not select it")
        return columns

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The columns in `keeps`."""
        return self.keeps

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator."""
        return _SqlOperator(self.query)

    def describe(self) -> str:
        """Describe the operator in one line."""
        return f"sql {' '.join(self.query.split())}"


@dataclass(frozen=True, slots=True)
class SqlWindow(KeyedBy):
    """One SELECT over all rows of each tumbling window, once it has closed.

    The query gets the rows in an order that follows from their values. Its results have the last
    time of the window. The query neither sees nor selects the `_time` of the rows.

    Attributes:
        query: The SQL text.
        size: Length of a window; with 1, the rows at each time.
        by: Key columns: rows with different keys do not meet if the query runs on several workers.
            Empty when all rows of a window must meet.
        tables: Names of the inputs in SQL, in order of ports.
    """

    query: str
    size: Length
    by: tuple[str, ...] = ()
    tables: tuple[str, ...] = (INPUT,)

    def __post_init__(self) -> None:
        require_unit(self.size, "a window needs a size of")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the columns that the query selects."""
        schemas = input_schemas(inputs, len(self.tables))
        for schema in schemas:
            check_sortable(schema, schema.names, lists=True)
        tables = dict(zip(self.tables, map(without_time, schemas), strict=True))
        columns = unique(check_query(self.query, tables, row_by_row=False))
        require(
            not is_timed(columns), f"the query selects {TIME}, which its rows get from their window"
        )
        return with_time(columns) if any(map(is_timed, schemas)) else columns

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The key columns that the query selects under their own names."""
        return frozenset(self.by) & frozenset(self.output_schema(inputs).names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator with empty state."""
        return _SqlWindowOperator(self, inputs)

    def describe(self) -> str:
        """Describe the operator in one line."""
        return f"sql over each {self.size}: {' '.join(self.query.split())}"


class _SqlOperator(Operator):
    """Runs the query over each batch."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._duckdb = connect()

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        for result in run_query(self._duckdb, self._query, {INPUT: batch}).to_batches():
            context.emit(result)


class _SqlWindowOperator(BufferedOperator):
    """State: the rows of open windows."""

    def __init__(self, spec: SqlWindow, inputs: Sequence[pa.Schema]) -> None:
        self._query, self._names = spec.query, spec.tables
        self._size = self._reach = units(spec.size)
        self._timed = any(map(is_timed, inputs))
        self._buffers = [RowBuffer(with_time(schema)) for schema in inputs]
        self.state_ports = tuple(range(len(inputs)))
        self._duckdb = connect()

    def on_watermark(self, watermark: int, context: OperatorContext) -> None:
        edge = watermark // self._size * self._size
        closed = [buffer.take_before(edge) for buffer in self._buffers]
        closed = [ordered(rows, [(TIME, "ascending")]).combine_chunks() for rows in closed]
        while any(rows.num_rows for rows in closed):
            first = min(rows.column(TIME)[0].as_py() for rows in closed if rows.num_rows)
            stop = first // self._size * self._size + self._size
            due = [pc.less(rows.column(TIME), stop) for rows in closed]
            counts = [pc.sum(mask).as_py() or 0 for mask in due]
            window = [
                rows.slice(0, count).drop_columns([TIME])
                for rows, count in zip(closed, counts, strict=True)
            ]
            closed = [rows.slice(count) for rows, count in zip(closed, counts, strict=True)]
            result = run_query(
                self._duckdb, self._query, dict(zip(self._names, window, strict=True))
            )
            result = result.append_column(TIME, constant(stop - 1, result.num_rows))
            emit_timed(result, context, timed=self._timed)
