"""Operators that look at one row at a time: filter, project, map, and the sieve for late rows.

They keep nothing, so how rows are cut into batches makes no difference to what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import Context, Operator, Stateless
from capstan.pipeline.operators.time_buffer import field_of, is_timed, known, on_time, unique

Column: TypeAlias = str | pc.Expression | Callable[[pa.RecordBatch], pa.Array]
"""A column by its name, an expression over the columns, or a function of the whole batch."""

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Filter(Stateless):
    """Passes the rows for which a condition is true; not those for which it is null.

    Attributes:
        condition: An expression (`pc.field("delay") > 15`), or a function that makes a mask of a
            batch. A function costs less per batch.
    """

    condition: pc.Expression | Callable[[pa.RecordBatch], pa.Array]

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of its input.

        Raises:
            ValueError: The condition is not one over these columns.
        """
        (schema,) = known(inputs)
        _tried(self._kept, schema)
        return schema

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """All columns."""
        return frozenset(inputs[0].names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """The running form."""
        return _Each(self._kept)

    def describe(self) -> str:
        """One line for people."""
        return f"filter {_shown(self.condition)}"

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        condition = self.condition
        if not isinstance(condition, pc.Expression):
            return batch.filter(condition(batch))
        rows = _run(batch, "filter", acero.FilterNodeOptions(condition)).combine_chunks()
        return rows.to_batches()[0] if rows.num_rows else batch.slice(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Project(Stateless):
    """Puts out the named columns, each made of the columns of the same row.

    `_time` goes along where rows have it.

    Attributes:
        columns: Name to column; a plain name costs nothing.
    """

    columns: Mapping[str, Column]

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The named columns.

        Raises:
            ValueError: There is no such column, or an expression does not fit.
        """
        (schema,) = known(inputs)
        for column in self.columns.values():
            if isinstance(column, str):
                field_of(schema, column)
        made = unique(_tried(self._projection(schema), schema))
        # Arrow takes an integer column and a literal like 60.0 for floats of 32 bits.
        for name, column in self.columns.items():
            narrow = made.field(name).type == pa.float32() and pa.float32() not in schema.types
            if narrow and isinstance(column, pc.Expression):
                message = f"{name} would be computed in 32 bits; cast a column to double first"
                raise ValueError(message)
        return made

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
        """The running form."""
        return _Each(self._projection(inputs[0]))

    def describe(self) -> str:
        """One line for people."""
        return "project " + ", ".join(
            name if isinstance(column, str) and name == column else f"{name} = {_shown(column)}"
            for name, column in self.columns.items()
        )

    def _projection(self, schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        columns = dict(self.columns)
        if is_timed(schema):
            columns.setdefault(TIME, TIME)
        names = list(columns)
        expressions = {n: c for n, c in columns.items() if isinstance(c, pc.Expression)}

        def project(batch: pa.RecordBatch) -> pa.RecordBatch:
            made = _evaluated(batch, expressions) if expressions else {}
            for name, column in columns.items():
                if isinstance(column, str):
                    made[name] = batch.column(column)
                elif name not in expressions:
                    made[name] = column(batch)
            return pa.RecordBatch.from_arrays([made[name] for name in names], names)

        return project


@dataclass(frozen=True, slots=True, eq=False)
class MapBatch(Stateless):
    """Puts out what a function makes of each batch.

    The function is called with batches of any length, also with none of the rows; what it makes
    of a row must not depend on the rows beside it, or results depend on how rows are cut into
    batches. Where rows have `_time`, it has to pass that on.

    Attributes:
        function: Batch to batch.
        keeps: Columns that it passes on unchanged.
    """

    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    keeps: frozenset[str] = _NOTHING

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns that the function makes of no rows.

        Raises:
            ValueError: It cannot, or loses `_time`.
        """
        (schema,) = known(inputs)
        made = _tried(self.function, schema)
        if is_timed(schema) and not is_timed(made):
            message = f"it takes rows with {TIME} and does not pass that on"
            raise ValueError(message)
        return unique(made)

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The columns that were named."""
        return self.keeps

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """The running form."""
        return _Each(self.function)

    def describe(self) -> str:
        """One line for people."""
        return f"map {_shown(self.function)}"


@dataclass(frozen=True, slots=True)
class DivertLate(Stateless):
    """Passes rows that are not before the watermark, and puts the others aside as late.

    In front of operators without state, which do not look at times.
    """

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of its input."""
        return known(inputs)[0]

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """All columns."""
        return frozenset(inputs[0].names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """The running form."""
        return _Sieve(is_timed(inputs[0]))

    def describe(self) -> str:
        """One line for people."""
        return "divert late rows"


class _Each(Operator):
    """Puts out what a function makes of each batch."""

    def __init__(self, function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._function = function

    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        context.emit(self._function(batch))


class _Sieve(Operator):
    """Puts aside late rows."""

    def __init__(self, timed: bool) -> None:
        self._timed = timed

    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        rows = on_time(batch, context)
        if rows is not None:
            context.emit(rows if self._timed else batch)


def _evaluated(
    batch: pa.RecordBatch, expressions: Mapping[str, pc.Expression]
) -> dict[str, pa.Array]:
    options = acero.ProjectNodeOptions(list(expressions.values()), list(expressions))
    made = _run(batch, "project", options)
    return {name: made.column(name).combine_chunks() for name in expressions}


def _run(batch: pa.RecordBatch, node: str, options: acero.ExecNodeOptions) -> pa.Table:
    source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    steps = [acero.Declaration("table_source", source), acero.Declaration(node, options)]
    # On threads of Arrow's own, the parts of a long batch could change places.
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False)


def _tried(function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema) -> pa.Schema:
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
    try:
        return function(empty).schema
    # Functions of the user's may raise anything; Arrow has errors that are no ValueError.
    except Exception as error:
        message = f"it cannot handle its input: {type(error).__name__}: {error}"
        raise ValueError(message) from error


def _shown(what: object) -> str:
    return what.__qualname__ if callable(what) and hasattr(what, "__qualname__") else str(what)
