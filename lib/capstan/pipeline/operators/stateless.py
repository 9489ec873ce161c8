"""Stateless operators on single rows: filter, project, map, and diversion of late rows.

They keep no state, so results do not depend on how rows are cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import Operator, OperatorContext, Stateless, require
from capstan.pipeline.operators.time_buffer import (
    field_of,
    input_schemas,
    is_timed,
    on_time,
    unique,
)

Column: TypeAlias = str | pc.Expression | Callable[[pa.RecordBatch], pa.Array]
"""A column name, an expression over the columns, or a function of the whole batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Filter(Stateless):
    """Passes the rows for which a condition is true; a null is not true.

    Attributes:
        condition: An expression (`pc.field("delay") > 15`), or a function from a batch to a mask. A
            function costs less per batch.
    """

    condition: pc.Expression | Callable[[pa.RecordBatch], pa.Array]

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the columns of its input."""
        (schema,) = input_schemas(inputs)
        _output_schema(self._matching, schema)
        return schema

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """All columns."""
        return frozenset(inputs[0].names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator."""
        return _BatchFunction(self._matching)

    def describe(self) -> str:
        """Describe the operator in one line."""
        return f"filter {_label(self.condition)}"

    def _matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        condition = self.condition
        if not isinstance(condition, pc.Expression):
            return batch.filter(condition(batch))
        rows = _run(batch, "filter", acero.FilterNodeOptions(condition)).combine_chunks()
        return rows.to_batches()[0] if rows.num_rows else batch.slice(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Project(Stateless):
    """Emits the named columns, each computed from the columns of the same row.

    `_time` is kept if rows have it.

    Attributes:
        columns: Definition of each column by its name; a plain name costs nothing.
    """

    columns: Mapping[str, Column]

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the named columns."""
        (schema,) = input_schemas(inputs)
        for column in self.columns.values():
            if isinstance(column, str):
                field_of(schema, column)
        result = unique(_output_schema(self._projection(schema), schema))
        # Arrow computes an integer column and a literal like 60.0 as floats of 32 bits.
        for name, column in self.columns.items():
            narrow = result.field(name).type == pa.float32() and pa.float32() not in schema.types
            if narrow and isinstance(column, pc.Expression):
                message = f"{name} would be computed in 32 bits; cast a column to double first"
                raise ValueError(message)
        return result

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The columns that are passed on under their own names."""
        kept = {
            name
            for name, column in self.columns.items()
            if isinstance(column, str) and name == column
        }
        timed = TIME not in self.columns and is_timed(inputs[0])
        return frozenset(kept | ({TIME} if timed else set()))

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator."""
        return _BatchFunction(self._projection(inputs[0]))

    def describe(self) -> str:
        """Describe the operator in one line."""
        return "project " + ", ".join(
            name if isinstance(column, str) and name == column else f"{name} = {_label(column)}"
            for name, column in self.columns.items()
        )

    def _projection(self, schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        columns = dict(self.columns)
        if is_timed(schema):
            columns.setdefault(TIME, TIME)
        names = list(columns)
        expressions = {n: c for n, c in columns.items() if isinstance(c, pc.Expression)}

        def project(batch: pa.RecordBatch) -> pa.RecordBatch:
            arrays = _evaluate(batch, expressions) if expressions else {}
            for name, column in columns.items():
                if isinstance(column, str):
                    arrays[name] = batch.column(column)
                elif name not in expressions:
                    arrays[name] = column(batch)
            return pa.RecordBatch.from_arrays([arrays[name] for name in names], names)

        return project


@dataclass(frozen=True, slots=True, eq=False)
class MapBatch(Stateless):
    """Applies a function to each batch.

    The function must accept batches of any length, also empty ones. Its result for a row must not
    depend on the other rows, or results would depend on how rows are cut into batches. If rows
    have `_time`, it must keep that column.

    Attributes:
        function: Function from batch to batch.
        keeps: Columns that it passes on unchanged.
    """

    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    keeps: frozenset[str] = frozenset()

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the columns of the function's result for an empty batch."""
        (schema,) = input_schemas(inputs)
        result = _output_schema(self.function, schema)
        kept = is_timed(result) or not is_timed(schema)
        require(kept, f"it gets rows with {TIME}, but drops that column")
        return unique(result)

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The columns in `keeps`."""
        return self.keeps

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator."""
        return _BatchFunction(self.function)

    def describe(self) -> str:
        """Describe the operator in one line."""
        return f"map {_label(self.function)}"


@dataclass(frozen=True, slots=True)
class DivertLate(Stateless):
    """Passes rows that are not before the watermark, and diverts the others as late.

    For use before stateless operators, which do not check times.
    """

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the columns of its input."""
        return input_schemas(inputs)[0]

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """All columns."""
        return frozenset(inputs[0].names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator."""
        return _LateFilter(is_timed(inputs[0]))

    def describe(self) -> str:
        """Describe the operator in one line."""
        return "divert late rows"


class _BatchFunction(Operator):
    """Applies a function to each batch."""

    def __init__(self, function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._function = function

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        context.emit(self._function(batch))


class _LateFilter(Operator):
    """Diverts late rows."""

    def __init__(self, timed: bool) -> None:
        self._timed = timed

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        rows = on_time(batch, context)
        if rows is not None:
            context.emit(rows if self._timed else batch)


def _evaluate(
    batch: pa.RecordBatch, expressions: Mapping[str, pc.Expression]
) -> dict[str, pa.Array]:
    options = acero.ProjectNodeOptions(list(expressions.values()), list(expressions))
    result = _run(batch, "project", options)
    return {name: result.column(name).combine_chunks() for name in expressions}


def _run(batch: pa.RecordBatch, node: str, options: acero.ExecNodeOptions) -> pa.Table:
    source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    steps = [acero.Declaration("table_source", source), acero.Declaration(node, options)]
    # With Arrow's own threads, the parts of a long batch could change places.
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False)


def _output_schema(
    function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema
) -> pa.Schema:
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
    try:
        return function(empty).schema
    # A user's function may raise anything, and not all errors of Arrow are ValueErrors.
    except Exception as error:
        raise ValueError(f"it cannot handle its input: {type(error).__name__}: {error}") from error


def _label(value: object) -> str:
    return value.__qualname__ if hasattr(value, "__qualname__") and callable(value) else str(value)
