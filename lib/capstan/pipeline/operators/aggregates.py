"""Aggregates of groups of rows: sums, counts, extremes, means, first and last values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from capstan.pipeline.operators.ordering import check_sortable
from capstan.pipeline.operators.time_buffer import field_of


class AggregateKind(StrEnum):
    """Function of an aggregate."""

    SUM = "sum"
    COUNT = "count"
    COUNT_DISTINCT = "count_distinct"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One result column of a grouping.

    Nulls are ignored, except by `count` without a column, `first` and `last`. A sum, mean,
    minimum or maximum without values is null.

    Attributes:
        kind: Function of the aggregate.
        column: Input column; None for the number of rows.
        name: Name of the result column.
    """

    kind: AggregateKind
    column: str | None
    name: str

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the result, given the columns of the rows.

        Raises:
            ValueError: The column is missing, or its type does not fit.
        """
        if self.column is None:
            return pa.int64()
        kind = field_of(schema, self.column).type
        if self.kind in (AggregateKind.COUNT, AggregateKind.COUNT_DISTINCT):
            return pa.int64()
        if self.kind in (AggregateKind.SUM, AggregateKind.MEAN):
            summed = sum_type(kind)
            if summed is None:
                raise ValueError(f"{self.column} has the type {kind}, which has no {self.kind}")
            return summed if self.kind is AggregateKind.SUM else pa.float64()
        check_sortable(schema, [self.column])
        return kind

    def __str__(self) -> str:
        return f"{self.kind}({self.column or '*'})"


def sum_of(column: str, name: str | None = None) -> Aggregate:
    """Sum of the values: 64 bits for integers, 38 digits for decimals; fails when it is larger."""
    return _of(AggregateKind.SUM, column, name)


def count_rows(name: str = "count") -> Aggregate:
    """Number of rows."""
    return Aggregate(AggregateKind.COUNT, None, name)


def count_of(column: str, name: str | None = None) -> Aggregate:
    """Number of values that are not null."""
    return _of(AggregateKind.COUNT, column, name)


def count_distinct(column: str, name: str | None = None) -> Aggregate:
    """Number of distinct values that are not null."""
    return _of(AggregateKind.COUNT_DISTINCT, column, name)


def min_of(column: str, name: str | None = None) -> Aggregate:
    """Least value."""
    return _of(AggregateKind.MIN, column, name)


def max_of(column: str, name: str | None = None) -> Aggregate:
    """Greatest value."""
    return _of(AggregateKind.MAX, column, name)


def mean_of(column: str, name: str | None = None) -> Aggregate:
    """Mean of the values, as a float."""
    return _of(AggregateKind.MEAN, column, name)


def first_of(column: str, name: str | None = None) -> Aggregate:
    """Value of the first row by time, then by the tie columns, then by value."""
    return _of(AggregateKind.FIRST, column, name)


def last_of(column: str, name: str | None = None) -> Aggregate:
    """Value of the last row by time, then by the tie columns, then by value."""
    return _of(AggregateKind.LAST, column, name)


def sum_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a sum of values, or None when values of that type have no sum."""
    if pa.types.is_signed_integer(kind):
        return pa.int64()
    if pa.types.is_unsigned_integer(kind):
        return pa.uint64()
    if pa.types.is_float64(kind) or pa.types.is_float32(kind):
        return pa.float64()
    if pa.types.is_decimal128(kind):
        return pa.decimal128(38, kind.scale)
    return None


def _of(kind: AggregateKind, column: str, name: str | None) -> Aggregate:
    return Aggregate(kind, column, name or f"{kind.value}_{column}")
