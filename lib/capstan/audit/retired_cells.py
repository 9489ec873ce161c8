"""Cells whose records were deleted from the tape: they are judged by the index, as wholes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from capstan.audit.cells import sample_cells
from capstan.audit.result import Finding
from capstan.audit.row_diff import RowDifferences
from capstan.core.times import Box


def is_lost(boxes: Sequence[Box]) -> Column:
    """Whether a cell lies in one of some boxes; a coordinate that is not kept may be any."""
    return reduce(lambda a, b: a | b, [_inside(box) for box in boxes], F.lit(False))


def _inside(box: Box) -> Column:
    parts = [
        F.coalesce(F.col(f"t{index}") < F.lit(until), F.lit(True))
        for index, until in enumerate(box.until)
        if until is not None
    ]
    return reduce(lambda a, b: a & b, parts, F.lit(True))


def lost_differences(bad: DataFrame, expected: str, actual: str, limit: int) -> RowDifferences:
    """What differs in cells whose rows cannot be told one by one any more.

    Args:
        bad: The cells that differ, gathered.
        expected: The side that says what should be there.
        actual: The side that says what is there.
        limit: How many findings to give at most.

    Returns:
        Rows that are missing and extra by the numbers of rows, and one that is changed for each
        cell that has as many rows as it should; findings have a cell's count and fingerprint.
    """
    wanted, found = (F.coalesce(F.col(f"{side}_records"), F.lit(0)) for side in (expected, actual))
    totals = bad.agg(
        F.sum(F.greatest(wanted - found, F.lit(0))).alias("missing"),
        F.sum(F.greatest(found - wanted, F.lit(0))).alias("extra"),
        F.count_if(wanted == found).alias("changed"),
    ).first()
    assert totals is not None
    findings = tuple(
        Finding(
            cell.worker, cell.time, cell.kind, to_finding(cell.expected), to_finding(cell.actual)
        )
        for cell in sample_cells(bad, expected, actual, limit)
    )
    return RowDifferences({name: n or 0 for name, n in totals.asDict().items()}, findings)


def to_finding(side: tuple[int, ...]) -> dict[str, object]:
    """What a finding says of one side of a cell."""
    records, h1, h2 = side
    return {"records": records, "fingerprint": [h1, h2]}


def merge(one: RowDifferences, other: RowDifferences) -> RowDifferences:
    """The differences of both."""
    totals = {name: one.totals[name] + other.totals[name] for name in one.totals}
    return RowDifferences(totals, (*one.findings, *other.findings))
