"""Cells whose records were deleted from the tape; they are compared as a whole, by the index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from capstan.audit.cells import sample_cells
from capstan.audit.row_diff import RowDifferences
from capstan.core.times import Box


def is_retired(boxes: Sequence[Box]) -> Column:
    """Whether a cell lies in one of the boxes; a coordinate that the table lacks always matches."""
    return reduce(lambda a, b: a | b, [_inside(box) for box in boxes], F.lit(False))


def _inside(box: Box) -> Column:
    parts = [
        F.coalesce(F.col(f"t{index}") < F.lit(until), F.lit(True))
        for index, until in enumerate(box.until)
        if until is not None
    ]
    return reduce(lambda a, b: a & b, parts, F.lit(True))


def retired_differences(bad: DataFrame, expected: str, actual: str, limit: int) -> RowDifferences:
    """The differences in cells whose rows can no longer be compared one by one.

    Args:
        bad: The differing cells, gathered.
        expected: The expected side.
        actual: The actual side.
        limit: The most findings to return.

    Returns:
        Missing and extra rows by the numbers of rows, and one changed row for each differing cell
        with the expected number; findings have a cell's count and fingerprint.
    """
    wanted, stored = (F.coalesce(F.col(f"{side}_records"), F.lit(0)) for side in (expected, actual))
    totals = bad.agg(
        F.sum(F.greatest(wanted - stored, F.lit(0))).alias("missing"),
        F.sum(F.greatest(stored - wanted, F.lit(0))).alias("extra"),
        F.count_if(wanted == stored).alias("changed"),
    ).first()
    assert totals is not None
    findings = tuple(cell.finding() for cell in sample_cells(bad, expected, actual, limit))
    return RowDifferences({name: n or 0 for name, n in totals.asDict().items()}, findings)


def merge(one: RowDifferences, other: RowDifferences) -> RowDifferences:
    """Two sets of differences combined."""
    totals = {name: one.totals[name] + other.totals[name] for name in one.totals}
    return RowDifferences(totals, (*one.findings, *other.findings))
