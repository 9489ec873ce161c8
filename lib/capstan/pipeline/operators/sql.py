"""SQL over rows: row by row, or over all rows of a window. DuckDB runs it.

The text is checked when the graph is built: one SELECT, over nothing but the inputs, without
functions whose value is another one at each call or on each day. Files and the network are out of
reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import Context, Key, Operator, Stateless, check_version
from capstan.pipeline.operators.duckdb_sql import checked_query, connected, run_query
from capstan.pipeline.operators.ordering import check_sortable, ordered
from capstan.pipeline.operators.time_buffer import (
    Length,
    RowBuffer,
    constant,
    emit_timed,
    is_timed,
    known,
    on_time,
    unique,
    units,
    with_time,
    without_time,
)

INPUT: Final = "input"
"""The name of the one input in SQL."""


@dataclass(frozen=True, slots=True)
class Sql(Stateless):
    """One SELECT over each batch, which looks at one row at a time.

    The rows are the table `input`. Aggregates, window functions, orders, limits, joins and
    subqueries are refused: what comes out would depend on how rows are cut into batches. Where
    rows have `_time`, the query has to select it.

    Attributes:
        query: The text.
        keeps: Columns that it passes on unchanged.
    """

    query: str
    keeps: frozenset[str] = frozenset()

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns that the query names.

        Raises:
            ValueError: The text is not such a query, or does not fit the columns.
        """
        (schema,) = known(inputs)
        made = unique(checked_query(self.query, {INPUT: schema}, row_by_row=True))
        if is_timed(schema) and not is_timed(made):
            message = f"its rows have {TIME}, and the query does not select it"
            raise ValueError(message)
        return made

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The columns that were named."""
        return self.keeps

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """The running form."""
        return _SqlOperator(self.query)

    def describe(self) -> str:
        """One line for people."""
        return f"sql {' '.join(self.query.split())}"


@dataclass(frozen=True, slots=True)
class SqlWindow:
    """One SELECT over all rows of each tumbling window, once it has closed.

    Rows are given in an order that follows from their values. What comes out is at the last time
    within; a `_time` of the rows is not seen by the query, and not selected by it.

    Attributes:
        query: The text.
        size: How long a window is; with 1, the rows at each time.
        by: The key columns: rows that differ in them do not meet, if the query is run on several
            workers. None means that all rows of a window meet.
        tables: What the inputs are called, in order of ports.
    """

    query: str
    size: Length
    by: tuple[str, ...] = ()
    tables: tuple[str, ...] = (INPUT,)

    def __post_init__(self) -> None:
        if units(self.size) < 1:
            message = f"windows of {self.size} are empty"
            raise ValueError(message)

    @property
    def key(self) -> Key:
        """The key columns, the same of all inputs."""
        return Key.of(*self.by)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns that the query names.

        Raises:
            ValueError: The text is not such a query, or does not fit the columns.
        """
        schemas = known(inputs, len(self.tables))
        for schema in schemas:
            check_sortable(schema, schema.names)
        seen = dict(zip(self.tables, map(without_time, schemas), strict=True))
        made = unique(checked_query(self.query, seen, row_by_row=False))
        if is_timed(made):
            message = f"the query selects {TIME}, which its rows get from their window"
            raise ValueError(message)
        return with_time(made) if any(map(is_timed, schemas)) else made

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The key columns that come out under their names."""
        return frozenset(self.by) & frozenset(self.output_schema(inputs).names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """A running form without rows."""
        return _SqlWindowOperator(self, inputs)

    def describe(self) -> str:
        """One line for people."""
        return f"sql over each {self.size}: {' '.join(self.query.split())}"


class _SqlOperator(Operator):
    """Runs the query over each batch."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._duckdb = connected()

    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        for made in run_query(self._duckdb, self._query, {INPUT: batch}).to_batches():
            context.emit(made)


class _SqlWindowOperator(Operator):
    """Keeps the rows of open windows."""

    def __init__(self, spec: SqlWindow, inputs: Sequence[pa.Schema]) -> None:
        self._query, self._tables = spec.query, spec.tables
        self._size = units(spec.size)
        self._timed = any(map(is_timed, inputs))
        self._rows = [RowBuffer(with_time(schema)) for schema in inputs]
        self.state_ports = tuple(range(len(inputs)))
        self._duckdb = connected()

    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        rows = on_time(batch, context, self._size)
        if rows is not None:
            self._rows[context.port].add(rows)

    def on_watermark(self, watermark: int, context: Context) -> None:
        edge = watermark // self._size * self._size
        closed = [buffer.take_before(edge) for buffer in self._rows]
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
            made = run_query(
                self._duckdb, self._query, dict(zip(self._tables, window, strict=True))
            )
            made = made.append_column(TIME, constant(stop - 1, made.num_rows))
            emit_timed(made, context, timed=self._timed)

    def checkpoint(self) -> bytes:
        return tables_to_bytes([buffer.table() for buffer in self._rows])

    def restore(self, version: int, state: bytes) -> None:
        check_version(version)
        for buffer, rows in zip(self._rows, tables_from_bytes(state), strict=True):
            buffer.replace(rows)
