"""Ordering and grouping of rows by their values, independent of the order of arrival."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.operator import require

Direction = Literal["ascending", "descending"]

_BITS = {pa.float64(): pa.int64(), pa.float32(): pa.int32()}


def check_sortable(schema: pa.Schema, columns: Sequence[str], *, lists: bool = False) -> None:
    """Refuse columns by which rows cannot be ordered; `lists` of integers, such as stamps, can."""
    for column in columns:
        kind = schema.field(column).type
        fits = _sortable(kind) or (lists and _is_integers(kind))
        require(fits, f"rows cannot be ordered by {column}, which has the type {kind}")


def ordered(
    rows: pa.Table, first: Sequence[tuple[str, Direction]], then: Sequence[str] | None = None
) -> pa.Table:
    """Order rows by `first`, then ascending by the values of `then`, by default all columns.

    Nulls come last. The order is total on the named columns: floats that are equal but not
    identical (-0.0 and 0.0, NaNs) are ordered by their bits. A list comes after its beginning.
    """
    if rows.num_rows < 2:
        return rows
    columns: list[pa.ChunkedArray] = []
    keys: list[tuple[str, Direction]] = []
    for name, direction in first:
        for column in _elements(rows.column(name)):
            columns.append(column)
            keys.append((str(len(keys)), direction))
    for name in rows.column_names if then is None else then:
        for column in _elements(_bits(rows.column(name))):
            columns.append(column)
            keys.append((str(len(keys)), "ascending"))
    values = pa.Table.from_arrays(columns, [name for name, _ in keys])
    return rows.take(pc.sort_indices(values, sort_keys=keys))


def positions(rows: int) -> pa.Array:
    """Return 0, 1, 2, ... as int64."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), rows)), 1)


def one_of_equal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unify floats that count as equal: zeros of either sign, and all NaNs."""
    if column.type not in _BITS:
        return column
    nan, zero = (pa.scalar(value, column.type) for value in (math.nan, 0.0))
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def group_ids(rows: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Number the rows such that rows with equal values have equal ids; null is a value."""
    ids = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for name in columns:
        column = rows.column(name)
        if column.type in _BITS:
            # -0.0 and 0.0 are one value.
            column = pc.add(column, pa.scalar(0.0, column.type))
        encoded = _combined(column).dictionary_encode("encode")
        codes = pc.cast(encoded.indices, pa.int64())
        # Renumbered after each column, so that the product of the counts fits 64 bits.
        ids = pc.add(pc.multiply(ids, len(encoded.dictionary)), codes)
        ids = pc.cast(ids.dictionary_encode().indices, pa.int64())
    return ids


def starts(ids: pa.Array) -> pa.Array:
    """Return for each row the position of the first row of its run; equal ids are adjacent.

    >>> starts(pa.array([7, 7, 3])).to_pylist()
    [0, 0, 2]
    """
    index = positions(len(ids))
    if len(ids) < 2:
        return index
    changed = pa.concat_arrays([pa.array([True]), pc.not_equal(ids[1:], ids[:-1])])
    return pc.cumulative_max(pc.if_else(changed, index, 0))


def first_of_each(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the first row of each group of rows with equal values, in their order."""
    if not columns:
        return rows.slice(0, 1)
    numbered = pa.table({"id": group_ids(rows, columns), "at": positions(rows.num_rows)})
    grouped = numbered.group_by("id", use_threads=False)
    firsts = grouped.aggregate([("at", "min")]).column("at_min")
    return rows.take(firsts.take(pc.sort_indices(firsts)))


def _combined(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    integers = _BITS.get(column.type)
    if integers is None:
        return column
    return pa.chunked_array([chunk.view(integers) for chunk in column.chunks], integers)


def _elements(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """The columns by which a column is ordered: of lists, if there is an element, and which."""
    if not _is_integers(column.type):
        yield column
        return
    lengths = pc.list_value_length(column)
    for at in range(max(pc.max(lengths).as_py() or 0, 1)):
        yield pc.greater(lengths, at)
        yield pc.list_element(pc.list_slice(column, at, at + 1, return_fixed_size_list=True), 0)


def _is_integers(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_integer(kind.value_type))


def _sortable(kind: pa.DataType) -> bool:
    return (
        pa.types.is_integer(kind)
        or kind in _BITS
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_decimal256(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    )
