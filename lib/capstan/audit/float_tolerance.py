"""Comparison of float columns within a tolerance, in cells whose fingerprints differ.

Sums of floats are rounded at each step, so another order of rows changes the last digits and the
fingerprint. In such cells the rows are compared: rows that are equal in all other columns form a
group. Both sides of a group must have the same number of values in each float column, and their
sorted values must be equal within the tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from capstan.audit.row_diff import Side, within
from capstan.audit.row_view import place_of
from capstan.core.sql_names import quoted
from capstan.spark.session import persisted
from capstan.storage.tape.fingerprint import row_hashes

_GROUP = ("x1", "x2")


@dataclass(frozen=True, slots=True)
class FloatTolerance:
    """The columns in which `a` equals `b` up to `tolerance * max(1, |a|, |b|)`."""

    columns: tuple[str, ...] = ()
    tolerance: float = 0.0

    def are_equal(self, a: Column, b: Column) -> Column:
        """Whether two values are equal within the tolerance; NULL and NaN equal themselves."""
        distance = F.abs(a - b)
        scale = F.greatest(F.lit(1.0), F.abs(a), F.abs(b))
        near = (distance <= F.lit(self.tolerance) * scale) & (distance < F.lit(float("inf")))
        return a.eqNullSafe(b) | F.coalesce(near, F.lit(False))


@dataclass(frozen=True, slots=True)
class Exceeding:
    """The cells and rows that differ by more than the tolerance."""

    cells: DataFrame
    count: int
    expected: Side  # reduced to rows that may differ
    actual: Side


@contextmanager
def exceeding(
    expected: Side, actual: Side, cells: DataFrame, count: int, tolerance: FloatTolerance
) -> Iterator[Exceeding]:
    """The differing cells that exceed the tolerance, valid within the `with` block."""
    names = [field.name for field in expected.fields]
    columns = [name for name in tolerance.columns if name in names]
    if not count or not columns:
        yield Exceeding(cells, count, expected, actual)
        return
    tolerance = replace(tolerance, columns=tuple(columns))
    with persisted(_groups(expected, actual, cells, tolerance)) as groups:
        places = groups.select(*place_of(groups)).distinct()
        remaining = places.count()
        sides = [_restrict(side, groups, tolerance) for side in (expected, actual)]
        # Persisted: computed again, its last digits and thus its hashes may change.
        with persisted(sides[0].view.frame):
            yield Exceeding(within(cells, places), remaining, *sides)


def _groups(expected: Side, actual: Side, cells: DataFrame, tolerance: FloatTolerance) -> DataFrame:
    """Groups that differ by more than the tolerance: their place, and `x1, x2 BIGINT`."""
    rows = _values(expected, 1, cells, tolerance).unionByName(_values(actual, -1, cells, tolerance))
    group = [*place_of(cells), *_GROUP, "column"]
    order = Window.partitionBy(*group, "sign").orderBy("value")
    ranked = rows.withColumn("rank", F.row_number().over(order))
    values = [F.when(F.col("sign") == sign, F.col("value")) for sign in (1, -1)]
    pairs = ranked.groupBy(*group, "rank").agg(
        F.sum("sign").alias("net"),
        F.max(values[0]).alias("expected"),
        F.max(values[1]).alias("actual"),
    )
    equal = tolerance.are_equal(F.col("expected"), F.col("actual"))
    differs = (F.col("net") != 0) | ~equal
    return pairs.where(differs).select(*place_of(cells), *_GROUP).distinct()


def _values(side: Side, sign: int, cells: DataFrame, tolerance: FloatTolerance) -> DataFrame:
    """The values of a side's tolerated columns, one row per row and column."""
    data = side.view.data
    values = [
        F.col(quoted(name)) if data is None else data.getField(name) for name in tolerance.columns
    ]
    rows = side.view.frame.select(
        *side.view.place, *_hashes(side, tolerance), F.array(*values).alias("values")
    )
    return within(rows, cells).select(
        *place_of(cells),
        *_GROUP,
        F.lit(sign).alias("sign"),
        F.posexplode("values").alias("column", "value"),
    )


def _hashes(side: Side, tolerance: FloatTolerance) -> list[Column]:
    """The hashes over all columns of a row except the tolerated ones."""
    fields = [field for field in side.fields if field.name not in tolerance.columns]
    pairs = zip(_GROUP, row_hashes(fields, side.view.data), strict=True)
    return [column.alias(name) for name, column in pairs]


def _restrict(side: Side, groups: DataFrame, tolerance: FloatTolerance) -> Side:
    """A side with only the rows of some groups."""
    names = [*place_of(groups), *_GROUP]
    keys = groups.select(*(F.col(name).alias(f"_group_{name}") for name in names))
    columns = [*side.view.place, *_hashes(side, tolerance)]
    same = [
        column.eqNullSafe(F.col(f"_group_{name}"))
        for name, column in zip(names, columns, strict=True)
    ]
    frame = side.view.frame.join(keys, reduce(and_, same), "left_semi")
    return replace(side, view=replace(side.view, frame=frame))
