"""Joins of two streams by equal keys: within an interval of time, or in the same window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.operator import Key, Operator, OperatorContext, require
from capstan.pipeline.operators.ordering import check_sortable, ordered, positions
from capstan.pipeline.operators.time_buffer import (
    BufferedOperator,
    Length,
    RowBuffer,
    emit_timed,
    field_of,
    floor_to,
    input_schemas,
    is_timed,
    require_unit,
    unique,
    units,
    with_time,
    without_time,
)

How = Literal["inner", "left"]

_BUCKET = "#bucket"


@dataclass(frozen=True, slots=True)
class Sides:
    """Columns of a join's inputs and output; both inputs include `_time`."""

    join: _Join
    left: pa.Schema
    right: pa.Schema
    timed: bool  # whether output rows have times of their own

    @classmethod
    def of(cls, join: _Join, inputs: Sequence[pa.Schema]) -> Sides:
        """Create the columns of a join of two inputs."""
        left, right = input_schemas(inputs, 2)
        for left_key, right_key in join.pairs_of_keys():
            types = field_of(left, left_key).type, field_of(right, right_key).type
            problem = f"the keys {left_key} {types[0]} and {right_key} {types[1]} differ in type"
            require(types[0] == types[1], problem)
        return cls(join, with_time(left), with_time(right), is_timed(left) or is_timed(right))

    def schema(self) -> pa.Schema:
        """Return the output columns: left columns, right columns, and `_time` if timed.

        A right key column with the output name of its left column is left out: they are equal.
        """
        names = self.output_names()
        right = [self.right.field(name).with_name(self.join.prefix + name) for name in names]
        schema = pa.schema([*without_time(self.left), *right])
        return unique(with_time(schema) if self.timed else schema)

    def output_names(self) -> list[str]:
        """Return the names of the right columns in the output, without the prefix."""
        prefix, pairs = self.join.prefix, self.join.pairs_of_keys()
        keys = {right for left, right in pairs if prefix + right == left}
        return [name for name in self.right.names if name not in keys and name != TIME]

    def pairs(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """Return positions `l` and `r` of all pairs of rows with equal keys in the same bucket.

        Nulls match nothing.
        """
        names = [str(number) for number in range(1 + len(self.join.left_on))]
        sides = []
        for rows, on, at in ((left, self.join.left_on, "l"), (right, self.join.right_on, "r")):
            columns = [rows.column(name) for name in (*on, _BUCKET)]
            sides.append(pa.table([*columns, positions(rows.num_rows)], [*names, at]))
        pairs = sides[0].join(sides[1], names, join_type="inner", use_threads=False)
        return pairs.select(["l", "r"]).combine_chunks()

    def rows(self, left: pa.Table, right: pa.Table, pairs: pa.Table, time: pa.Array) -> pa.Table:
        """Return the output rows of pairs, with `_time`; a null `r` gives nulls on the right."""
        names = without_time(self.left).names
        columns = [left.column(name).take(pairs.column("l")) for name in names]
        columns += [right.column(name).take(pairs.column("r")) for name in self.output_names()]
        names += [self.join.prefix + name for name in self.output_names()]
        rows = pa.table([*columns, time], [*names, TIME])
        return rows.select(with_time(self.schema()).names)


def _unmatched(rows: int, matched: pa.ChunkedArray) -> pa.Array:
    """Return the positions below `rows` that are not in `matched`."""
    all_rows = positions(rows)
    return all_rows.filter(pc.invert(pc.is_in(all_rows, value_set=matched.combine_chunks())))


def _unpaired(rows: pa.Array) -> pa.Table:
    """Return pairs of the left rows at these positions without a right row."""
    return pa.table({"l": rows, "r": pa.nulls(len(rows), pa.int64())})


class _Join:
    """Base of joins: rows of two inputs, matched by equal key columns."""

    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: How
    prefix: str

    def check(self) -> None:
        """Check what all joins declare."""
        require(self.how in ("inner", "left"), f"a join is inner or left, not {self.how}")
        left, right = len(self.left_on), len(self.right_on)
        require(left == right, f"keys of {left} and {right} columns cannot match")

    def pairs_of_keys(self) -> Iterator[tuple[str, str]]:
        """Return the left and the right name of each key column."""
        return zip(self.left_on, self.right_on, strict=True)

    @property
    def key(self) -> Key:
        """The key columns of both inputs."""
        return Key.of_ports(self.left_on, self.right_on)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Return the left columns, then the right ones."""
        schema = Sides.of(self, inputs).schema()
        check_sortable(schema, schema.names, lists=True)
        return schema

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The left key columns."""
        return frozenset(self.left_on)


@dataclass(frozen=True, slots=True)
class IntervalJoin(_Join):
    """Pairs of a left row at `t` and a right one at `u` with `t + lower <= u <= t + upper`.

    Port 0 is left, port 1 is right. A pair is emitted when both times are complete, at the later
    of them. A left join emits a left row without a match once none can arrive, at
    `t + max(upper, 0)`. Null keys match nothing.

    Attributes:
        left_on: Key columns of the left input.
        right_on: Key columns of the right input, in the same order.
        lower: Least difference between the right and the left time; negative for earlier.
        upper: Greatest difference.
        how: `inner`, or `left` to keep left rows without a match.
        prefix: Prefix of the right columns' names in the output.
    """

    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    lower: Length
    upper: Length
    how: How = "inner"
    prefix: str = ""

    def __post_init__(self) -> None:
        self.check()
        require(
            units(self.lower) <= units(self.upper),
            f"the interval from {self.lower} to {self.upper} is empty",
        )

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator with empty state."""
        return _IntervalJoinOperator(self, inputs)

    def describe(self) -> str:
        """Describe the operator in one line."""
        return f"{self.how} join on {self.key}, right {self.lower} to {self.upper} later"


@dataclass(frozen=True, slots=True)
class WindowJoin(_Join):
    """Pairs of rows with equal keys in the same tumbling window.

    Port 0 is left, port 1 is right. Pairs are emitted when the window closes, at its last time.
    Null keys match nothing.

    Attributes:
        left_on: Key columns of the left input.
        right_on: Key columns of the right input, in the same order.
        size: Length of a window.
        how: `inner`, or `left` to keep left rows without a match.
        prefix: Prefix of the right columns' names in the output.
        offset: Start of windows, relative to time 0.
    """

    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    size: Length
    how: How = "inner"
    prefix: str = ""
    offset: Length = 0

    def __post_init__(self) -> None:
        self.check()
        require_unit(self.size, "a window needs a size of")

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """Create a running operator with empty state."""
        return _WindowJoinOperator(self, inputs)

    def describe(self) -> str:
        """Describe the operator in one line."""
        return f"{self.how} join on {self.key} in windows of {self.size}"


class _JoinOperator(BufferedOperator):
    """State of a join: rows of both sides whose time is incomplete."""

    def __init__(self, sides: Sides, reach: int) -> None:
        self._sides, self._reach = sides, reach
        self._waiting = (RowBuffer(sides.left), RowBuffer(sides.right))
        self._buffers: Sequence[RowBuffer] = self._waiting

    def _emit(self, parts: list[pa.Table], context: OperatorContext) -> None:
        rows = pa.concat_tables(parts)
        if rows.num_rows:
            emit_timed(ordered(rows, [(TIME, "ascending")]), context, timed=self._sides.timed)


class _IntervalJoinOperator(_JoinOperator):
    """State: incomplete rows, and complete ones that can still match a later row."""

    state_ports = (0, 1, 0, 0, 1)

    def __init__(self, spec: IntervalJoin, inputs: Sequence[pa.Schema]) -> None:
        self._lower, self._upper = units(spec.lower), units(spec.upper)
        super().__init__(Sides.of(spec, inputs), abs(self._lower) + abs(self._upper) + 1)
        self._outer = spec.how == "left"
        # Left rows with and without a match so far, and all right rows.
        self._matched = RowBuffer(self._sides.left)
        self._single = RowBuffer(self._sides.left)
        self._right = RowBuffer(self._sides.right)
        self._buffers = (*self._waiting, self._matched, self._single, self._right)

    def on_watermark(self, watermark: int, context: OperatorContext) -> None:
        parts = [self._pairs(watermark)]
        # Later rows of either side are at the watermark or after it.
        expired = self._single.take_before(watermark - max(self._upper, 0))
        self._matched.take_before(watermark - max(self._upper, 0))
        self._right.take_before(watermark + min(self._lower, 0))
        if self._outer and expired.num_rows:
            no_rows = self._sides.right.empty_table()
            time = pc.add_checked(expired.column(TIME), max(self._upper, 0))
            pairs = _unpaired(positions(expired.num_rows))
            parts.append(self._sides.rows(expired, no_rows, pairs, time))
        self._emit(parts, context)

    def _pairs(self, watermark: int) -> pa.Table:
        new_left = self._waiting[0].take_before(watermark)
        new_right = self._waiting[1].take_before(watermark)
        # Old left rows have already been matched with the old right ones.
        parts = [self._match(self._matched, new_right), self._match(self._single, new_right)]
        self._right.add(new_right)
        new = RowBuffer(self._sides.left)
        new.add(new_left)
        parts.append(self._match(new, self._right.table()))
        self._single.add(new.table())
        return pa.concat_tables(parts)

    def _match(self, buffer: RowBuffer, right: pa.Table) -> pa.Table:
        """Join the rows of a buffer; those with a match move to the matched rows."""
        left = buffer.table().combine_chunks()
        right = right.combine_chunks()
        pairs = self._pairs_within(left, right)
        times = (
            left.column(TIME).take(pairs.column("l")),
            right.column(TIME).take(pairs.column("r")),
        )
        rows = self._sides.rows(left, right, pairs, pc.max_element_wise(*times))
        if buffer is not self._matched and pairs.num_rows:
            rest = _unmatched(left.num_rows, pairs.column("l"))
            self._matched.add(left.take(pc.unique(pairs.column("l"))))
            buffer.replace(left.take(rest))
        return rows

    def _pairs_within(self, left: pa.Table, right: pa.Table) -> pa.Table:
        if not left.num_rows or not right.num_rows:
            return pa.table({"l": pa.array([], pa.int64()), "r": pa.array([], pa.int64())})
        # Buckets are as long as the interval, so a left row's interval spans at most two of them.
        width = self._upper - self._lower + 1
        low = floor_to(pc.add_checked(left.column(TIME), self._lower), width)
        at = pa.concat_arrays([positions(left.num_rows)] * 2)
        both = pa.concat_tables(
            [
                left.append_column(_BUCKET, low),
                left.append_column(_BUCKET, pc.add_checked(low, width)),
            ]
        )
        buckets = floor_to(right.column(TIME), width)
        pairs = self._sides.pairs(both, right.append_column(_BUCKET, buckets))
        rows = pa.table({"l": at.take(pairs.column("l")), "r": pairs.column("r")})
        distance = pc.subtract_checked(
            right.column(TIME).take(rows.column("r")), left.column(TIME).take(rows.column("l"))
        )
        within = pc.and_(
            pc.greater_equal(distance, self._lower), pc.less_equal(distance, self._upper)
        )
        return rows.filter(within).combine_chunks()


class _WindowJoinOperator(_JoinOperator):
    """Joins all windows that close at the same time."""

    state_ports = (0, 1)

    def __init__(self, spec: WindowJoin, inputs: Sequence[pa.Schema]) -> None:
        super().__init__(Sides.of(spec, inputs), units(spec.size))
        self._size, self._offset = units(spec.size), units(spec.offset)
        self._outer = spec.how == "left"

    def on_watermark(self, watermark: int, context: OperatorContext) -> None:
        edge = (watermark - self._offset) // self._size * self._size + self._offset
        left, right = (self._closed(buffer, edge) for buffer in self._waiting)
        if not left.num_rows:
            return
        pairs = self._sides.pairs(left, right)
        if self._outer:
            pairs = pa.concat_tables(
                [pairs, _unpaired(_unmatched(left.num_rows, pairs.column("l")))]
            )
        last = pc.add_checked(left.column(_BUCKET).take(pairs.column("l")), self._size - 1)
        self._emit([self._sides.rows(left, right, pairs, last)], context)

    def _closed(self, buffer: RowBuffer, edge: int) -> pa.Table:
        rows = buffer.take_before(edge).combine_chunks()
        return rows.append_column(_BUCKET, floor_to(rows.column(TIME), self._size, self._offset))
