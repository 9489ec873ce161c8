"""Columns of floats that are compared within a tolerance, where their cells differ.

Sums of floats are rounded at each step, so that another order of the rows gives other last digits.
A fingerprint tells those apart; so the rows of the cells that differ are looked at: rows that are
equal in all other columns are one group, and within it each such column has to have as many values
on both sides, and in their order the one as close to the other as is declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from capstan.audit.row_diff import Side, within
from capstan.audit.row_view import place_of
from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.region_sql import quoted

_GROUP = ("x1", "x2")


@dataclass(frozen=True, slots=True)
class Close:
    """Which columns are compared within a tolerance.

    Attributes:
        columns: DOUBLE columns, by name.
        tolerance: Values `a` and `b` are equal up to `tolerance * max(1, |a|, |b|)`.
    """

    columns: tuple[str, ...] = ()
    tolerance: float = 0.0

    def alike(self, a: Column, b: Column) -> Column:
        """Whether two values are equal within the tolerance; NULL and NaN are to themselves."""
        apart = F.abs(a - b)
        scale = F.greatest(F.lit(1.0), F.abs(a), F.abs(b))
        near = (apart <= F.lit(self.tolerance) * scale) & (apart < F.lit(float("inf")))
        return a.eqNullSafe(b) | F.coalesce(near, F.lit(False))


@dataclass(frozen=True, slots=True)
class Apart:
    """What differs beyond the tolerance.

    Attributes:
        cells: The differing cells, gathered.
        count: How many they are.
        expected: The side that says what should be there, of its rows those that may differ.
        actual: The side that says what is there.
    """

    cells: DataFrame
    count: int
    expected: Side
    actual: Side


@contextmanager
def beyond(
    expected: Side, actual: Side, cells: DataFrame, count: int, close: Close
) -> Iterator[Apart]:
    """What of some differing cells differs beyond a tolerance, as long as the `with` block lasts.

    Args:
        expected: What should be there.
        actual: What is there.
        cells: The cells whose fingerprints differ, gathered.
        count: How many they are.
        close: The columns that are compared within a tolerance.
    """
    names = [field.name for field in expected.fields]
    columns = [name for name in close.columns if name in names]
    if not count or not columns:
        yield Apart(cells, count, expected, actual)
        return
    close = replace(close, columns=tuple(columns))
    groups = _groups(expected, actual, cells, close).persist()
    try:
        places = groups.select(*place_of(groups)).distinct()
        left = places.count()
        sides = [_of_groups(side, groups, close) for side in (expected, actual)]
        # Computed again it may have other last digits, and so not be found by its hash.
        computed = sides[0].view.frame.persist()
        try:
            yield Apart(within(cells, places), left, *sides)
        finally:
            computed.unpersist()
    finally:
        groups.unpersist()


def _groups(expected: Side, actual: Side, cells: DataFrame, close: Close) -> DataFrame:
    """Groups in some cells that differ beyond the tolerance: their place, and `x1, x2 BIGINT`."""
    rows = _values(expected, 1, cells, close).unionByName(_values(actual, -1, cells, close))
    group = [*place_of(cells), *_GROUP, "column"]
    order = Window.partitionBy(*group, "sign").orderBy("value")
    ranked = rows.withColumn("rank", F.row_number().over(order))
    wanted, found = (F.when(F.col("sign") == sign, F.col("value")) for sign in (1, -1))
    pairs = ranked.groupBy(*group, "rank").agg(
        F.sum("sign").alias("net"), F.max(wanted).alias("wanted"), F.max(found).alias("found")
    )
    differs = (F.col("net") != 0) | ~close.alike(F.col("wanted"), F.col("found"))
    return pairs.where(differs).select(*place_of(cells), *_GROUP).distinct()


def _values(side: Side, sign: int, cells: DataFrame, close: Close) -> DataFrame:
    """One row for each row of a side and each close column, with the value that it has there."""
    data = side.view.data
    values = [
        F.col(quoted(name)) if data is None else data.getField(name) for name in close.columns
    ]
    rows = side.view.frame.select(
        *side.view.place, *_hashes(side, close), F.array(*values).alias("values")
    )
    return within(rows, cells).select(
        *place_of(cells),
        *_GROUP,
        F.lit(sign).alias("sign"),
        F.posexplode("values").alias("column", "value"),
    )


def _hashes(side: Side, close: Close) -> list[Column]:
    """The hashes of all columns of a row but the close ones."""
    fields = [field for field in side.fields if field.name not in close.columns]
    pairs = zip(_GROUP, row_hashes(fields, side.view.data), strict=True)
    return [column.alias(name) for name, column in pairs]


def _of_groups(side: Side, groups: DataFrame, close: Close) -> Side:
    """A side with its rows of some groups alone."""
    names = [*place_of(groups), *_GROUP]
    wanted = groups.select(*(F.col(name).alias(f"_apart_{name}") for name in names))
    own = [*side.view.place, *_hashes(side, close)]
    same = [
        column.eqNullSafe(F.col(f"_apart_{name}")) for name, column in zip(names, own, strict=True)
    ]
    frame = side.view.frame.join(wanted, reduce(lambda a, b: a & b, same), "left_semi")
    return replace(side, view=replace(side.view, frame=frame))
