"""Exact sums of integers and decimals, in as few bits as hold them.

A part of a sum may be larger than the sum. So a sum is narrow, of the type of its result, as long
as all that is summed surely fits, and wide otherwise: what comes out at the end does not depend on
which parts came together first.
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
# Of fewer digits it takes 10 thousand million rows of one group to fill 38.
_ROOMY: Final = 28
_WORD: Final = 2**64


@dataclass(frozen=True, slots=True)
class SumForm:
    """The types that sums of a column are kept in.

    Attributes:
        narrow: As long as they fit; that of the result.
        wide: Where they may not fit, and in checkpoints.
    """

    narrow: pa.DataType
    wide: pa.DataType

    @classmethod
    def of(cls, narrow: pa.DataType, column: pa.DataType) -> Self:
        """The form of sums of type `narrow` of values of the type of a column."""
        if pa.types.is_integer(narrow):
            return cls(narrow, pa.decimal128(_DIGITS, 0))
        if pa.types.is_decimal(column) and column.precision > _ROOMY:
            return cls(narrow, pa.decimal256(_WIDE_DIGITS, column.scale))
        return cls(narrow, narrow)

    @property
    def widens(self) -> bool:
        """Whether wide sums are of another type than narrow ones."""
        return bool(self.wide != self.narrow)


SumForms = Mapping[str, SumForm]
"""By column, of those that are sums."""


def widened(parts: pa.Table, forms: SumForms) -> pa.Table:
    """The parts with wide sums: the form that a checkpoint has, whatever the values are."""
    return _as(parts, {name: form.wide for name, form in forms.items()})


def joined(tables: Sequence[pa.Table], forms: SumForms) -> pa.Table:
    """All parts as one table, with narrow sums if all of them fit.

    Raises:
        pyarrow.ArrowInvalid: One does not fit its wide form either.
    """
    narrow = {name: form.narrow for name, form in forms.items()}
    try:
        return pa.concat_tables([_as(table, narrow) for table in tables])
    except pa.ArrowInvalid:
        return pa.concat_tables([widened(table, forms) for table in tables])


def summable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values in a type in which Arrow's sum of any of them does not wrap around."""
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


def fitted(sums: pa.ChunkedArray, kind: pa.DataType, what: str) -> pa.ChunkedArray:
    """The sums in the type of their result.

    Args:
        sums: Narrow or wide.
        kind: The type.
        what: They are, for the error.

    Raises:
        ValueError: One does not fit.
    """
    try:
        return pc.cast(sums, kind)
    except pa.ArrowInvalid as error:
        message = f"{what} is too large for {kind}; make the column a decimal or a float before"
        raise ValueError(message) from error


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
    # The upper halves are enough, and take a tenth of the time that their least and greatest do.
    # Where a value is null they can be anything, which makes it no less safe.
    highest = max((_highest(chunk) for chunk in column.chunks), default=0)
    return bool(len(column) * (highest + 1) * _WORD > limit)


def _highest(chunk: pa.Array) -> int:
    """The greatest upper half of decimals, by magnitude."""
    if not len(chunk):
        return 0
    words = np.frombuffer(chunk.buffers()[1], np.int64, 2 * (chunk.offset + len(chunk)))
    upper = words[2 * chunk.offset + 1 :: 2]
    return max(abs(int(upper.min())), abs(int(upper.max())))
