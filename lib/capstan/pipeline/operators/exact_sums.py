"""Exact sums of integers and decimals, in the narrowest safe type.

A partial sum may be larger than the total. So a sum is narrow, of the type of its result, as long
as all partial sums certainly fit, and wide otherwise. The result does not depend on the order in
which parts are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGITS: Final = 38
_WIDE_DIGITS: Final = 76
# With fewer digits, one group needs 10 billion rows to fill 38.
_ROOMY: Final = 28
_WORD: Final = 2**64


@dataclass(frozen=True, slots=True)
class SumForm:
    """Types of the partial sums of a column."""

    narrow: pa.DataType  # of the result, used as long as sums fit
    wide: pa.DataType  # used when they may not fit, and in checkpoints

    @classmethod
    def of(cls, narrow: pa.DataType, column: pa.DataType) -> Self:
        """Return the form of sums with the result type `narrow` of values of a column's type."""
        if pa.types.is_integer(narrow):
            return cls(narrow, pa.decimal128(_DIGITS, 0))
        if pa.types.is_decimal(column) and column.precision > _ROOMY:
            return cls(narrow, pa.decimal256(_WIDE_DIGITS, column.scale))
        return cls(narrow, narrow)

    @property
    def widens(self) -> bool:
        """Whether wide and narrow sums have different types."""
        return bool(self.wide != self.narrow)


SumForms = Mapping[str, SumForm]
"""Forms of sums, by the name of the sum's column."""


def widened(parts: pa.Table, forms: SumForms) -> pa.Table:
    """Widen all sums: the form of checkpoints, whatever the values."""
    return _as(parts, {name: form.wide for name, form in forms.items()})


def concat_sums(tables: Sequence[pa.Table], forms: SumForms) -> pa.Table:
    """Concatenate parts, with narrow sums if all of them fit."""
    narrow = {name: form.narrow for name, form in forms.items()}
    try:
        return pa.concat_tables([_as(table, narrow) for table in tables])
    except pa.ArrowInvalid:
        return pa.concat_tables([widened(table, forms) for table in tables])


def summable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cast values to a type in which no sum of them by Arrow wraps around."""
    kind = column.type
    if pa.types.is_integer(kind):
        return pc.cast(column, pa.decimal128(_DIGITS, 0)) if _may_wrap(column) else column
    if pa.types.is_decimal256(kind):
        return column
    if pa.types.is_decimal128(kind):
        if _may_exceed(column):
            return pc.cast(column, pa.decimal256(_WIDE_DIGITS, kind.scale))
        return pc.cast(column, pa.decimal128(_DIGITS, kind.scale))
    return pc.cast(column, pa.float64())


def cast_sums(sums: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """Cast sums to the type of their result."""
    try:
        return pc.cast(sums, kind)
    except pa.ArrowInvalid as error:
        message = f"{name} is too large for {kind}; cast the column to a decimal or a float first"
        raise ValueError(message) from error


def means(sums: pa.ChunkedArray, counts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the means (float) of groups with these sums and counts; null without values."""
    total, count = pc.cast(sums, pa.float64(), safe=False), pc.cast(counts, pa.float64())
    return pc.divide(total, pc.if_else(pc.equal(count, 0.0), 1.0, count))


def _as(table: pa.Table, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    for name, kind in kinds.items():
        position = table.schema.get_field_index(name)
        column = table.column(position)
        if column.type != kind:
            table = table.set_column(position, name, pc.cast(column, kind))
    return table


def _may_wrap(column: pa.ChunkedArray) -> bool:
    ends = pc.min_max(column).as_py()
    if ends["min"] is None:
        return False
    limit = 2**64 if pa.types.is_unsigned_integer(column.type) else 2**63
    return bool(len(column) * max(abs(ends["min"]), abs(ends["max"])) >= limit)


def _may_exceed(column: pa.ChunkedArray) -> bool:
    """Whether the sum of decimals may have more than 38 digits."""
    limit = 10**_DIGITS
    if len(column) * 10**column.type.precision <= limit:
        return False
    # The upper halves suffice, and take a tenth of the time of the exact extremes. Those of nulls
    # are arbitrary, which is no less safe.
    highest = max((_highest(chunk) for chunk in column.chunks), default=0)
    return bool(len(column) * (highest + 1) * _WORD > limit)


def _highest(chunk: pa.Array) -> int:
    """Return the greatest magnitude of the upper halves of decimals."""
    if not len(chunk):
        return 0
    words = np.frombuffer(chunk.buffers()[1], np.int64, 2 * (chunk.offset + len(chunk)))
    upper = words[2 * chunk.offset + 1 :: 2]
    return max(abs(int(upper.min())), abs(int(upper.max())))
