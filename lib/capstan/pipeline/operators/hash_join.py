"""Hash join: pairs of rows with equal keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.operators.ordering import positions
from capstan.pipeline.operators.time_buffer import (
    field_of,
    input_schemas,
    is_timed,
    unique,
    with_time,
    without_time,
)

How = Literal["inner", "left"]


@dataclass(frozen=True, slots=True)
class Sides:
    """Columns of a join's inputs and output; both inputs include `_time`."""

    left: pa.Schema
    right: pa.Schema
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    prefix: str  # of the right columns' names in the output
    timed: bool  # whether output rows have times of their own

    @classmethod
    def of(
        cls,
        inputs: Sequence[pa.Schema],
        left_on: Sequence[str],
        right_on: Sequence[str],
        prefix: str,
    ) -> Sides:
        """Create the columns of a join of two inputs."""
        left, right = input_schemas(inputs, 2)
        for left_key, right_key in zip(left_on, right_on, strict=True):
            types = field_of(left, left_key).type, field_of(right, right_key).type
            if types[0] != types[1]:
                message = (
                    f"the keys {left_key} {types[0]} and {right_key} {types[1]} differ in type"
                )
                raise ValueError(message)
        timed = is_timed(left) or is_timed(right)
        on = tuple(left_on), tuple(right_on)
        return cls(with_time(left), with_time(right), *on, prefix, timed)

    def schema(self) -> pa.Schema:
        """Return the output columns: left columns, right columns, and `_time` if timed.

        A right key column with the output name of its left column is left out: they are equal.
        """
        names = self.output_names()
        right = [self.right.field(name).with_name(self.prefix + name) for name in names]
        schema = pa.schema([*without_time(self.left), *right])
        return unique(with_time(schema) if self.timed else schema)

    def output_names(self) -> list[str]:
        """Return the names of the right columns in the output, without the prefix."""
        keys = {
            right
            for left, right in zip(self.left_on, self.right_on, strict=True)
            if self.prefix + right == left
        }
        return [name for name in self.right.names if name not in keys and name != TIME]

    def pairs(self, left: pa.Table, right: pa.Table, extra: Sequence[str]) -> pa.Table:
        """Return positions `l` and `r` of all pairs of rows with equal keys and `extra` columns.

        Nulls match nothing.
        """
        names = [str(number) for number in range(len(self.left_on) + len(extra))]
        sides = []
        for rows, on, at in ((left, self.left_on, "l"), (right, self.right_on, "r")):
            columns = [rows.column(name) for name in (*on, *extra)]
            sides.append(pa.table([*columns, positions(rows.num_rows)], [*names, at]))
        pairs = sides[0].join(sides[1], names, join_type="inner", use_threads=False)
        return pairs.select(["l", "r"]).combine_chunks()

    def rows(self, left: pa.Table, right: pa.Table, pairs: pa.Table, time: pa.Array) -> pa.Table:
        """Return the output rows of pairs, with `_time`; a null `r` gives nulls on the right."""
        names = without_time(self.left).names
        columns = [left.column(name).take(pairs.column("l")) for name in names]
        columns += [right.column(name).take(pairs.column("r")) for name in self.output_names()]
        names += [self.prefix + name for name in self.output_names()]
        rows = pa.table([*columns, time], [*names, TIME])
        return rows.select(with_time(self.schema()).names)


def unmatched(rows: int, matched: pa.ChunkedArray) -> pa.Array:
    """Return the positions below `rows` that are not in `matched`."""
    all_rows = positions(rows)
    return all_rows.filter(pc.invert(pc.is_in(all_rows, value_set=matched.combine_chunks())))


def unpaired(rows: pa.Array) -> pa.Table:
    """Return pairs of the left rows at these positions without a right row."""
    return pa.table({"l": rows, "r": pa.nulls(len(rows), pa.int64())})
