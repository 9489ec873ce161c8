"""Carries aggregates out over groups of rows.

Results depend on the rows alone, not on the order or the batches that they came in. Sums of
integers and decimals are exact or fail; they never wrap around. Sums of floats are taken in one
order that follows from the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.operators.aggregates import Aggregate, AggregateKind, sum_type
from capstan.pipeline.operators.exact_sums import SumForm, fitted, joined, summable, widened
from capstan.pipeline.operators.ordering import check_sortable, one_of_equal, ordered, positions
from capstan.pipeline.operators.time_buffer import field_of


class Reducer:
    """Aggregates over rows with given columns; holds no rows itself.

    Where all aggregates can be put together from parts (`partial`), rows are reduced to one part
    per group as they come. Otherwise they are kept until their group is complete.

    Attributes:
        partial: Whether rows are reduced as they come.
        widens: Whether a checkpoint of parts has sums in a wider type than their result.
    """

    __slots__ = ("_aggregates", "_columns", "_forms", "_schema", "_sorting", "partial", "widens")

    def __init__(
        self, schema: pa.Schema, aggregates: Sequence[Aggregate], ties: Sequence[str] = ()
    ) -> None:
        """A reducer of rows with `schema`, which has `_time`.

        Raises:
            ValueError: A column is not there, or not of a fitting type.
        """
        if not aggregates:
            message = "no aggregates"
            raise ValueError(message)
        for aggregate in aggregates:
            aggregate.result_type(schema)
        for column in ties:
            field_of(schema, column)
        check_sortable(schema, ties)
        self._schema = schema
        self._aggregates = tuple(aggregates)
        self.partial = all(_partial(aggregate, schema) for aggregate in aggregates)
        forms = sum_forms(self._aggregates, schema) if self.partial else {}
        self._forms = {f"#{name}:sum": form for name, form in forms.items()}
        self.widens = any(form.widens for form in forms.values())
        ordering = [a.column for a in aggregates if _by_order(a, schema) and a.column is not None]
        self._sorting = list(dict.fromkeys([TIME, *ties, *ordering])) if ordering else []
        used = [a.column for a in aggregates if a.column is not None]
        self._columns = list(dict.fromkeys([*used, *(ties if ordering else ())]))

    def fields(self) -> list[pa.Field]:
        """The result columns."""
        return [pa.field(a.name, a.result_type(self._schema)) for a in self._aggregates]

    def take_in(self, rows: pa.Table, by: Sequence[str]) -> pa.Table:
        """Rows as they are kept: parts of groups, or the columns that are needed.

        Args:
            rows: With the columns of the schema and those of `by`.
            by: The columns that make a group; `_time` is kept as well where rows are.
        """
        if self.partial:
            return reduced(rows, by, [step for a in self._aggregates for step in _parts(a)])
        return rows.select(list(dict.fromkeys([*by, *self._columns, TIME])))

    def joined(self, kept: Sequence[pa.Table]) -> pa.Table:
        """What was taken in at several times as one table."""
        return joined(kept, self._forms)

    def lasting(self, kept: pa.Table) -> pa.Table:
        """What was taken in, in the form of checkpoints: its types do not depend on values."""
        return widened(kept, self._forms)

    def merge(self, kept: pa.Table, by: Sequence[str]) -> pa.Table:
        """Fewer rows that stand for the same, where that is possible."""
        if not self.partial:
            return kept
        return reduced(kept, by, [_again(step) for a in self._aggregates for step in _parts(a)])

    def finish(self, kept: pa.Table, by: Sequence[str]) -> pa.Table:
        """The columns of `by`, then the results."""
        if self.partial:
            grouped = self.merge(kept, by)
        else:
            kept = ordered(kept, [], self._sorting) if self._sorting else kept
            steps = [step for a in self._aggregates for step in _whole_steps(a)]
            rows = kept.append_column("#row", positions(kept.num_rows))
            grouped = reduced(rows, by, steps)
        arrays = [grouped.column(name) for name in by]
        arrays += [self._result(a, grouped, kept) for a in self._aggregates]
        return pa.Table.from_arrays(arrays, [*by, *(a.name for a in self._aggregates)])

    def _result(self, a: Aggregate, grouped: pa.Table, rows: pa.Table) -> pa.ChunkedArray:
        if a.kind in (AggregateKind.FIRST, AggregateKind.LAST):
            return rows.column(a.column).take(grouped.column(_named(a, f"{a.kind}-at")))
        kind = a.result_type(self._schema)
        if a.kind is AggregateKind.MEAN:
            total = pc.cast(grouped.column(_named(a, "sum")), pa.float64(), safe=False)
            count = pc.cast(grouped.column(_named(a, "count")), pa.float64())
            return pc.divide(total, pc.if_else(pc.equal(count, 0.0), 1.0, count))
        if a.kind is AggregateKind.SUM:
            return fitted(grouped.column(_named(a, "sum")), kind, str(a))
        return pc.cast(grouped.column(_named(a, a.kind.value)), kind)


Step = tuple[str | None, str, str]
"""A column, a function over the values of a group, and the name of what comes out."""


def _named(aggregate: Aggregate, part: str) -> str:
    return f"#{aggregate.column}:{part}"


def _parts(a: Aggregate) -> list[Step]:
    kinds = ["sum", "count"] if a.kind is AggregateKind.MEAN else [a.kind.value]
    return [(a.column, kind, _named(a, kind)) for kind in kinds]


def _again(step: Step) -> Step:
    _, function, name = step
    return name, "sum" if function == "count" else function, name


def _whole_steps(a: Aggregate) -> list[Step]:
    if a.kind is AggregateKind.FIRST:
        return [("#row", "min", _named(a, f"{a.kind}-at"))]
    if a.kind is AggregateKind.LAST:
        return [("#row", "max", _named(a, f"{a.kind}-at"))]
    return _parts(a)


def _partial(a: Aggregate, schema: pa.Schema) -> bool:
    kept = (AggregateKind.COUNT_DISTINCT, AggregateKind.FIRST, AggregateKind.LAST)
    return a.kind not in kept and not _by_order(a, schema)


def _by_order(a: Aggregate, schema: pa.Schema) -> bool:
    if a.kind in (AggregateKind.FIRST, AggregateKind.LAST):
        return True
    summed = a.kind in (AggregateKind.SUM, AggregateKind.MEAN)
    return summed and pa.types.is_floating(schema.field(a.column).type)


def reduced(rows: pa.Table, by: Sequence[str], steps: Sequence[Step]) -> pa.Table:
    """The columns of `by`, then one column for each step, groups in order of appearance.

    Floats are summed in the order of the rows. Other sums have the type that they were surely not
    too large for, which is not always that of the result.
    """
    arrays: list[pa.ChunkedArray] = [rows.column(name) for name in by]
    names = [f"k{position}" for position in range(len(by))]
    todo: list[tuple[object, ...]] = []
    done: dict[str, str] = {}
    for column, function, name in steps:
        if name in done:
            continue
        if column is None:
            todo.append(([], "count_all"))
            done[name] = "count_all"
            continue
        arrays.append(_ready(rows.column(column), function))
        names.append(f"a{len(names)}")
        empty_is_null = pc.ScalarAggregateOptions(min_count=1)
        options = empty_is_null if function in ("sum", "min", "max") else None
        todo.append((names[-1], function, options))
        done[name] = f"{names[-1]}_{function}"
    values = pa.Table.from_arrays(arrays, names)
    grouped = values.group_by(names[: len(by)], use_threads=False).aggregate(todo)
    results = [grouped.column(f"k{position}") for position in range(len(by))]
    extremes = {name: rows.column(of).type for of, f, name in steps if of and f in ("min", "max")}
    results += [_back(grouped.column(made), extremes.get(name)) for name, made in done.items()]
    return pa.Table.from_arrays(results, [*by, *done])


def sum_forms(aggregates: Sequence[Aggregate], schema: pa.Schema) -> dict[str, SumForm]:
    """The forms of the sums that aggregates need, by the column that is summed."""
    summed = [a.column for a in aggregates if a.kind in (AggregateKind.SUM, AggregateKind.MEAN)]
    kinds = {name: field_of(schema, name).type for name in summed if name is not None}
    return {name: SumForm.of(sum_type(kind), kind) for name, kind in kinds.items()}


def _ready(column: pa.ChunkedArray, function: str) -> pa.ChunkedArray:
    if function == "sum":
        return summable(column)
    if function == "count_distinct":
        return one_of_equal(column)
    if function in ("min", "max") and pa.types.is_floating(column.type):
        # -0.0 and 0.0 are equal, so which is the least would depend on which came first.
        return pc.add(column, pa.scalar(0.0, column.type))
    if function in ("min", "max") and pa.types.is_duration(column.type):
        # Arrow orders durations, and has no extremes of them by group.
        return pc.cast(column, pa.int64())
    return column


def _back(column: pa.ChunkedArray, kind: pa.DataType | None) -> pa.ChunkedArray:
    """What was made of values, in their type where that was put aside."""
    duration = kind is not None and pa.types.is_duration(kind)
    return pc.cast(column, kind) if duration else column
