"""A table of aggregates by key, into which rows are folded in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import require
from capstan.pipeline.operators.aggregates import Aggregate, AggregateKind, sum_type
from capstan.pipeline.operators.exact_sums import concat_sums, widened
from capstan.pipeline.operators.group_reduce import (
    ENDS,
    Step,
    merged_by,
    parts_of,
    reduce_groups,
    result_of,
    sorting_of,
    sum_forms,
)
from capstan.pipeline.operators.ordering import (
    first_of_each,
    group_ids,
    one_of_equal,
    ordered,
    positions,
)
from capstan.pipeline.operators.time_buffer import constant, field_of

FIRST_TIME: Final = "#first"
LAST_TIME: Final = "#last"
_ROW: Final = "#row"
_COMPACT: Final = 65_536


class AggregateTable:
    """The aggregates of each key over all rows so far.

    Rows are collected, and folded in when there are twice as many as keys. So the cost per row
    does not depend on the number of keys. A fold puts states before rows, so sums of floats
    continue in the order of the rows.
    """

    def __init__(
        self,
        schema: pa.Schema,
        by: Sequence[str],
        aggregates: Sequence[Aggregate],
        ties: Sequence[str],
    ) -> None:
        """Create an empty table; `schema` includes `_time`, and `ties` order rows of one time."""
        self._schema = schema
        self._by = list(by)
        self._aggregates = tuple(aggregates)
        self._sorting = sorting_of(aggregates, schema, ties)
        used = [a.column for a in aggregates if a.column is not None]
        names = dict.fromkeys([*by, *used, *(ties if self._sorting else ()), TIME])
        self.rows = pa.schema([field_of(schema, name) for name in names])
        # Columns with distinct counts each need a table of their own.
        distinct = [a for a in aggregates if a.kind is AggregateKind.COUNT_DISTINCT]
        self._values = list(dict.fromkeys(a.column for a in distinct if a.column is not None))
        self.tables = 1 + len(self._values)
        forms = sum_forms(self._aggregates, schema)
        self._forms = {f"#sum:{name}": form for name, form in forms.items()}
        # Whether its checkpoint has wider sums than results.
        self.widens = any(form.widens for form in forms.values())
        self._keys = [self.rows.field(name) for name in by]
        self._state: pa.Table = self._parts(self.rows.empty_table())
        self._distinct = [self._pairs(self.rows.empty_table(), name) for name in self._values]
        self._waiting: list[pa.Table] = []
        self._count = 0
        self.least: int | None = None  # of any row

    def add(self, rows: pa.Table) -> None:
        """Add rows with the columns `rows`; none may be before a row that was added earlier."""
        if not rows.num_rows:
            return
        if self._sorting:
            rows = ordered(rows, [], self._sorting)
        if self.least is None:
            self.least = pc.min(rows.column(TIME)).as_py()
        self._waiting.append(rows)
        self._count += rows.num_rows
        if self._count >= max(_COMPACT, 2 * self._state.num_rows):
            self._fold()

    def results(self, keys: pa.Table | None = None) -> pa.Table:
        """Return key columns, results, and time of the last row of each key, or of these keys."""
        self._fold()
        state = self._state if keys is None else self._states_of(keys)
        arrays = [state.column(name) for name in self._by]
        arrays += [self._result(a, state) for a in self._aggregates]
        names = [*self._by, *(a.name for a in self._aggregates), TIME]
        return pa.Table.from_arrays([*arrays, state.column(LAST_TIME)], names)

    def checkpoint(self) -> list[pa.Table]:
        """Return the complete state, as tables that have the key columns."""
        self._fold()
        return [widened(self._state, self._forms), *self._distinct]

    def restore(self, tables: Sequence[pa.Table]) -> None:
        """Restore the result of `checkpoint`, also one with narrow sums."""
        state, *distinct = tables
        narrow = self._parts(self.rows.empty_table())
        wide = widened(narrow, self._forms)
        fits = state.schema in (narrow.schema, wide.schema)
        fits = fits and [t.schema for t in distinct] == [t.schema for t in self._distinct]
        require(fits, "the state has other aggregates")
        # An earlier format may distinguish NaNs.
        distinct = [self._pairs(t, name) for t, name in zip(distinct, self._values, strict=True)]
        self._state, self._distinct = state, distinct
        self._waiting, self._count = [], 0
        self.least = pc.min(state.column(FIRST_TIME)).as_py()

    def _fold(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        both = concat_sums([self._state, self._parts(rows)], self._forms)
        state = concat_sums([self._merged(both)], self._forms)
        distinct = [
            first_of_each(pa.concat_tables([seen, self._pairs(rows, name)]), [*self._by, name])
            for seen, name in zip(self._distinct, self._values, strict=True)
        ]
        # Everything is computed before anything is stored, so a failure changes nothing.
        self._state = state.combine_chunks()
        self._distinct = [seen.combine_chunks() for seen in distinct]
        self._waiting, self._count = [], 0

    def _parts(self, rows: pa.Table) -> pa.Table:
        """Convert each row to a state of one row."""
        arrays = [rows.column(name) for name in self._by]
        names = list(self._by)
        for part, _ in self._steps():
            arrays.append(self._part(part, rows))
            names.append(part)
        return pa.Table.from_arrays(arrays, names)

    def _part(self, part: str, rows: pa.Table) -> pa.ChunkedArray:
        if part in (FIRST_TIME, LAST_TIME):
            return rows.column(TIME)
        function, column = part.removeprefix("#").split(":", 1)
        if function == "rows":
            return pa.chunked_array([constant(1, rows.num_rows)])
        values = rows.column(column)
        if function == "count":
            return pc.cast(pc.is_valid(values), pa.int64())
        return pc.cast(values, sum_type(values.type)) if function == "sum" else values

    def _steps(self) -> list[tuple[str, str]]:
        """Return the parts of a state, and the function that merges two of each."""
        steps = [(FIRST_TIME, "min"), (LAST_TIME, "max")]
        counted = [a for a in self._aggregates if a.kind is not AggregateKind.COUNT_DISTINCT]
        for a in counted:
            steps += [(_name(a, f), merged_by(f)) for f in parts_of(a)]
        return list(dict.fromkeys(steps))

    def _merged(self, parts: pa.Table) -> pa.Table:
        """Merge the states of each key, in their order."""
        numbered = parts.append_column(_ROW, positions(parts.num_rows))
        ends = [kind for kind in ENDS if any(a.kind is kind for a in self._aggregates)]
        steps: list[Step] = [(part, f, part) for part, f in self._steps() if f not in ENDS]
        steps += [(_ROW, ENDS[kind], f"#at:{kind}") for kind in ends]
        merged = reduce_groups(numbered, self._by, steps)
        for part, function in self._steps():
            if function in ENDS:
                values = parts.column(part).take(merged.column(f"#at:{function}"))
                merged = merged.append_column(part, values)
        return merged.select(parts.column_names)

    def _pairs(self, rows: pa.Table, name: str) -> pa.Table:
        pairs = rows.select(list(dict.fromkeys([*self._by, name])))
        pairs = pairs.filter(pc.is_valid(pairs.column(name)))
        if name not in self._by:
            position = pairs.schema.get_field_index(name)
            values = one_of_equal(pairs.column(name))
            pairs = pairs.set_column(position, pairs.schema.field(name), values)
        return first_of_each(pairs, pairs.column_names)

    def _states_of(self, rows: pa.Table) -> pa.Table:
        """Return the states of the keys of some rows."""
        keys = pa.concat_tables([self._state.select(self._by), rows.select(self._by)])
        ids = group_ids(keys, self._by)
        count = self._state.num_rows
        return self._state.filter(pc.is_in(ids[:count], value_set=ids[count:]))

    def _result(self, a: Aggregate, state: pa.Table) -> pa.ChunkedArray:
        if a.kind is AggregateKind.COUNT_DISTINCT:
            return self._distinct_counts(a, state)
        return result_of(a, self._schema, lambda part: state.column(_name(a, part)))

    def _distinct_counts(self, a: Aggregate, state: pa.Table) -> pa.ChunkedArray:
        assert a.column is not None
        pairs = self._distinct[self._values.index(a.column)]
        keys = pa.concat_tables([state.select(self._by), pairs.select(self._by)])
        ids = group_ids(keys, self._by).to_numpy(zero_copy_only=False)
        count = state.num_rows
        counts = np.bincount(ids[count:], minlength=int(ids.max(initial=-1)) + 1)
        return pa.chunked_array([pa.array(counts[ids[:count]], pa.int64())])


def _name(a: Aggregate, function: str) -> str:
    return "#rows:" if a.column is None else f"#{function}:{a.column}"
