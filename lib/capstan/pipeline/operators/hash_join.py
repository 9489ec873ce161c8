"""Pairs of rows with equal keys, found by a hash join."""

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
    is_timed,
    known,
    unique,
    with_time,
    without_time,
)

How = Literal["inner", "left"]


@dataclass(frozen=True, slots=True)
class Sides:
    """The columns of a join: whose they are, and what they are called in its output.

    Attributes:
        left: The columns of the left input, `_time` included.
        right: Those of the right one.
        left_on: The key columns of the left input.
        right_on: Those of the right one, in the same order.
        prefix: What is put before the names of the right columns.
        timed: Whether rows of the output have times of their own.
    """

    left: pa.Schema
    right: pa.Schema
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    prefix: str
    timed: bool

    @classmethod
    def of(
        cls,
        inputs: Sequence[pa.Schema],
        left_on: Sequence[str],
        right_on: Sequence[str],
        prefix: str,
    ) -> Sides:
        """The columns of a join of two inputs.

        Raises:
            ValueError: A key column is not there, or its type is another one on the other side.
        """
        left, right = known(inputs, 2)
        for mine, other in zip(left_on, right_on, strict=True):
            types = field_of(left, mine).type, field_of(right, other).type
            if types[0] != types[1]:
                message = f"the keys {mine} {types[0]} and {other} {types[1]} cannot be equal"
                raise ValueError(message)
        timed = is_timed(left) or is_timed(right)
        on = tuple(left_on), tuple(right_on)
        return cls(with_time(left), with_time(right), *on, prefix, timed)

    def schema(self) -> pa.Schema:
        """What comes out: left columns, right columns, perhaps `_time`.

        A right key column that is called like the left one is left out: they are equal.

        Raises:
            ValueError: Two columns have one name.
        """
        right = [self.right.field(name).with_name(self.prefix + name) for name in self.kept()]
        made = pa.schema([*without_time(self.left), *right])
        return unique(with_time(made) if self.timed else made)

    def kept(self) -> list[str]:
        """The right columns that come out."""
        same = {
            other
            for mine, other in zip(self.left_on, self.right_on, strict=True)
            if self.prefix + other == mine
        }
        return [name for name in self.right.names if name not in same and name != TIME]

    def pairs(self, left: pa.Table, right: pa.Table, extra: Sequence[str]) -> pa.Table:
        """Positions `l` and `r` of all pairs of rows with equal keys; null equals nothing.

        Args:
            left: Rows of the left input.
            right: Rows of the right input.
            extra: Names of further columns, of both, that have to be equal too.
        """
        names = [str(number) for number in range(len(self.left_on) + len(extra))]
        sides = []
        for rows, on, at in ((left, self.left_on, "l"), (right, self.right_on, "r")):
            columns = [rows.column(name) for name in (*on, *extra)]
            sides.append(pa.table([*columns, positions(rows.num_rows)], [*names, at]))
        found = sides[0].join(sides[1], names, join_type="inner", use_threads=False)
        return found.select(["l", "r"]).combine_chunks()

    def joined(self, left: pa.Table, right: pa.Table, pairs: pa.Table, time: pa.Array) -> pa.Table:
        """The output rows of some pairs, `_time` included; a null `r` gives nulls on the right."""
        names = without_time(self.left).names
        columns = [left.column(name).take(pairs.column("l")) for name in names]
        columns += [right.column(name).take(pairs.column("r")) for name in self.kept()]
        names += [self.prefix + name for name in self.kept()]
        rows = pa.table([*columns, time], [*names, TIME])
        return rows.select(with_time(self.schema()).names)


def unmatched(rows: int, matched: pa.ChunkedArray) -> pa.Array:
    """The positions below `rows` that are not in `matched`."""
    every = positions(rows)
    return every.filter(pc.invert(pc.is_in(every, value_set=matched.combine_chunks())))


def alone(positions_of: pa.Array) -> pa.Table:
    """Pairs of these left rows with nothing."""
    return pa.table({"l": positions_of, "r": pa.nulls(len(positions_of), pa.int64())})
