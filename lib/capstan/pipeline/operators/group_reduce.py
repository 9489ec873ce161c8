"""Evaluation of aggregates over groups of rows.

Results depend on the rows alone, not on their order or batches. Sums of integers and decimals are
exact or fail; they never wrap around. Floats are summed in one order, which follows from the
values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import require
from capstan.pipeline.operators.aggregates import Aggregate, AggregateKind, sum_type
from capstan.pipeline.operators.exact_sums import (
    SumForm,
    cast_sums,
    concat_sums,
    means,
    summable,
    widened,
)
from capstan.pipeline.operators.ordering import check_sortable, one_of_equal, ordered, positions
from capstan.pipeline.operators.time_buffer import (
    field_of,
    input_schemas,
    is_timed,
    unique,
    with_time,
)

ENDS: Final = {AggregateKind.FIRST: "min", AggregateKind.LAST: "max"}
"""Aggregates that are the value of one row, and which of the rows that is."""


class Reducer:
    """Aggregates over rows with given columns; holds no rows itself.

    If all aggregates can be merged from partial results, rows are reduced to one part per group
    as they arrive. Otherwise the rows are kept until their group is complete.
    """

    def __init__(
        self, schema: pa.Schema, aggregates: Sequence[Aggregate], ties: Sequence[str] = ()
    ) -> None:
        """Create a reducer of rows with `schema`, which includes `_time`."""
        require(aggregates, "no aggregates")
        for aggregate in aggregates:
            aggregate.result_type(schema)
        for column in ties:
            field_of(schema, column)
        check_sortable(schema, ties)
        self._schema = schema
        self._aggregates = tuple(aggregates)
        # Whether rows are reduced as they arrive.
        self.partial = all(_partial(aggregate, schema) for aggregate in aggregates)
        forms = sum_forms(self._aggregates, schema) if self.partial else {}
        self._forms = {f"#{name}:sum": form for name, form in forms.items()}
        # Whether checkpointed parts have wider sums than results.
        self.widens = any(form.widens for form in forms.values())
        self._sorting = sorting_of(aggregates, schema, ties)
        used = [a.column for a in aggregates if a.column is not None]
        self._columns = list(dict.fromkeys([*used, *(ties if self._sorting else ())]))

    def fields(self) -> list[pa.Field]:
        """Return the result columns."""
        return [pa.field(a.name, a.result_type(self._schema)) for a in self._aggregates]

    def accumulate(self, rows: pa.Table, by: Sequence[str]) -> pa.Table:
        """Convert rows to their stored form: parts of groups, or only the required columns."""
        if self.partial:
            return reduce_groups(rows, by, [step for a in self._aggregates for step in _parts(a)])
        return rows.select(list(dict.fromkeys([*by, *self._columns, TIME])))

    def concat(self, stored: Sequence[pa.Table]) -> pa.Table:
        """Concatenate several results of `accumulate`."""
        return concat_sums(stored, self._forms)

    def to_checkpoint(self, stored: pa.Table) -> pa.Table:
        """Convert stored rows to the form of checkpoints, whose types do not depend on values."""
        return widened(stored, self._forms)

    def merge(self, stored: pa.Table, by: Sequence[str]) -> pa.Table:
        """Merge the parts of each group; stored rows are returned as they are."""
        if not self.partial:
            return stored
        parts = [(name, f) for a in self._aggregates for _, f, name in _parts(a)]
        return reduce_groups(stored, by, [(name, merged_by(f), name) for name, f in parts])

    def finish(self, stored: pa.Table, by: Sequence[str]) -> pa.Table:
        """Return the columns of `by`, then the results."""
        if self.partial:
            grouped = self.merge(stored, by)
        else:
            stored = ordered(stored, [], self._sorting) if self._sorting else stored
            steps = [step for a in self._aggregates for step in _row_steps(a)]
            rows = stored.append_column("#row", positions(stored.num_rows))
            grouped = reduce_groups(rows, by, steps)
        arrays = [grouped.column(name) for name in by]
        arrays += [self._result(a, grouped, stored) for a in self._aggregates]
        return pa.Table.from_arrays(arrays, [*by, *(a.name for a in self._aggregates)])

    def _result(self, a: Aggregate, grouped: pa.Table, rows: pa.Table) -> pa.ChunkedArray:
        if a.kind in ENDS:
            return rows.column(a.column).take(grouped.column(_part_name(a, f"{a.kind}-at")))
        return result_of(a, self._schema, lambda part: grouped.column(_part_name(a, part)))


def result_columns(
    inputs: Sequence[pa.Schema],
    by: Sequence[str],
    aggregates: Sequence[Aggregate],
    ties: Sequence[str],
    between: Sequence[pa.Field] = (),
) -> pa.Schema:
    """Return the columns of aggregates by key: keys, `between`, results, `_time` if timed."""
    (schema,) = input_schemas(inputs)
    keys = [field_of(schema, column) for column in by]
    check_sortable(schema, by)
    results = Reducer(with_time(schema), aggregates, ties).fields()
    columns = pa.schema([*keys, *between, *results])
    return unique(with_time(columns) if is_timed(schema) else columns)


Step = tuple[str | None, str, str]
"""An input column, a function over the values of a group, and the name of the result."""


def _part_name(aggregate: Aggregate, part: str) -> str:
    return f"#{aggregate.column}:{part}"


def parts_of(a: Aggregate) -> tuple[str, ...]:
    """Return the functions of the values from whose results that of an aggregate follows."""
    return ("sum", "count") if a.kind is AggregateKind.MEAN else (a.kind.value,)


def result_of(
    a: Aggregate, schema: pa.Schema, part: Callable[[str], pa.ChunkedArray]
) -> pa.ChunkedArray:
    """Return the results of an aggregate, given the merged results of each of its parts."""
    if a.kind is AggregateKind.MEAN:
        return means(part("sum"), part("count"))
    values, kind = part(a.kind.value), a.result_type(schema)
    return cast_sums(values, kind, str(a)) if a.kind is AggregateKind.SUM else pc.cast(values, kind)


def _parts(a: Aggregate) -> list[Step]:
    return [(a.column, part, _part_name(a, part)) for part in parts_of(a)]


def merged_by(function: str) -> str:
    """Return the function that merges results of a function."""
    return "sum" if function == "count" else function


def _row_steps(a: Aggregate) -> list[Step]:
    at = _part_name(a, f"{a.kind}-at")
    return [("#row", ENDS[a.kind], at)] if a.kind in ENDS else _parts(a)


def _partial(a: Aggregate, schema: pa.Schema) -> bool:
    return a.kind is not AggregateKind.COUNT_DISTINCT and not _by_order(a, schema)


def sorting_of(
    aggregates: Sequence[Aggregate], schema: pa.Schema, ties: Sequence[str]
) -> list[str]:
    """Return the columns by which rows must be ordered; none if no result depends on order."""
    columns = [a.column for a in aggregates if a.column is not None and _by_order(a, schema)]
    return list(dict.fromkeys([TIME, *ties, *columns])) if columns else []


def _by_order(a: Aggregate, schema: pa.Schema) -> bool:
    summed = a.kind in (AggregateKind.SUM, AggregateKind.MEAN)
    return a.kind in ENDS or (summed and pa.types.is_floating(schema.field(a.column).type))


def reduce_groups(rows: pa.Table, by: Sequence[str], steps: Sequence[Step]) -> pa.Table:
    """Return the columns of `by`, then a column per step, groups in order of appearance.

    Floats are summed in the order of the rows. Other sums have a type that certainly holds
    them, which is not always that of the result.
    """
    keys = [f"k{number}" for number in range(len(by))]
    values = {key: rows.column(name) for key, name in zip(keys, by, strict=True)}
    aggregations: list[tuple[object, ...]] = []
    results: dict[str, tuple[str, pa.DataType | None]] = {}
    for column, function, name in steps:
        if name in results:
            continue
        if column is None:
            aggregations.append(([], "count_all"))
            results[name] = "count_all", None
            continue
        value, extreme = f"a{len(values)}", function in ("min", "max")
        values[value] = _prepared(rows.column(column), function)
        empty_is_null = extreme or function == "sum"
        options = pc.ScalarAggregateOptions(min_count=1) if empty_is_null else None
        aggregations.append((value, function, options))
        kind = rows.column(column).type
        changed = extreme and pa.types.is_duration(kind)
        results[name] = f"{value}_{function}", kind if changed else None
    grouped = pa.table(values).group_by(keys, use_threads=False).aggregate(aggregations)
    columns = {name: grouped.column(key) for key, name in zip(keys, by, strict=True)}
    for name, (column, kind) in results.items():
        result = grouped.column(column)
        columns[name] = result if kind is None else pc.cast(result, kind)
    return pa.table(columns)


def sum_forms(aggregates: Sequence[Aggregate], schema: pa.Schema) -> dict[str, SumForm]:
    """Return the forms of the sums that aggregates need, by the summed column."""
    summed = [a.column for a in aggregates if a.kind in (AggregateKind.SUM, AggregateKind.MEAN)]
    kinds = {name: field_of(schema, name).type for name in summed if name is not None}
    return {name: SumForm.of(sum_type(kind), kind) for name, kind in kinds.items()}


def _prepared(column: pa.ChunkedArray, function: str) -> pa.ChunkedArray:
    if function == "sum":
        return summable(column)
    if function == "count_distinct":
        return one_of_equal(column)
    if function in ("min", "max") and pa.types.is_floating(column.type):
        # -0.0 and 0.0 are equal, so the extreme would depend on the order of the rows.
        return pc.add(column, pa.scalar(0.0, column.type))
    if function in ("min", "max") and pa.types.is_duration(column.type):
        # Arrow can order durations, but has no grouped extremes of them.
        return pc.cast(column, pa.int64())
    return column
