"""Cells: row count and fingerprint per worker and time, computed and compared in Spark.

Of few cells, as in audits of small runs, equality is first looked for in this process.

A frame of cells has the columns `worker INT`, `t0, t1, ... BIGINT` (one per coordinate: the value,
days or microseconds), `records BIGINT`, `h1 BIGINT`, `h2 BIGINT`. Worker and coordinates that the
table lacks are NULL. Each cell occurs once, in no order; cells without rows may be absent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from capstan.audit.result import TARGET, CellTime, Finding
from capstan.audit.row_checks import PreparedCheck, aggregate_with_checks
from capstan.audit.row_diff import RowDifferences
from capstan.audit.row_view import View, place_of, tape_view, time_of
from capstan.audit.table_shape import Shape
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.spark.session import persisted
from capstan.storage.tape import index
from capstan.storage.tape.fingerprint import row_hashes, sum_mod64
from capstan.storage.tape.tape import Cut, Tape, placed, read_events

MEASURES = ("records", "h1", "h2")

MAX_CELLS = 20_000
"""The most cells, and the most events that they are summed from."""

Place = tuple[int | None, ...]
"""The worker and coordinates of a cell; None if the table lacks them."""
Content = tuple[int, int, int]
"""The number of records of a cell and the two sums of their hashes."""


@dataclass(frozen=True, slots=True)
class CellDifference:
    """A differing cell: its worker and time, and its expected and actual measures."""

    worker: int | None
    time: CellTime
    expected: tuple[int, ...]
    actual: tuple[int, ...]

    @property
    def kind(self) -> str:
        """`missing` for too few rows, `extra` for too many, else `changed`."""
        if self.expected[0] == self.actual[0]:
            return "changed"
        return "missing" if self.actual[0] < self.expected[0] else "extra"

    def finding(self, where: str = TARGET) -> Finding:
        """The cell as a finding, with counts and fingerprints in place of rows."""
        expected, actual = (
            {"records": side[0], "fingerprint": list(side[1:])}
            for side in (self.expected, self.actual)
        )
        return Finding(self.worker, self.time, self.kind, expected, actual, where)


@dataclass(frozen=True, slots=True)
class CellComparison:
    """The comparison of two frames of cells."""

    cells: int  # with rows on either side
    differing: int
    sample: tuple[CellDifference, ...] = ()  # the first by worker and time


NO_CELLS = CellComparison(0, 0)


def promised_cells(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Collection[int],
    region: Region,
    like: Shape | None = None,
) -> DataFrame:
    """The cells that the tape's index promises; the payload is not read.

    They are summed over worker and coordinates that tables of shape `like` lack; those become NULL.
    """
    events = read_events(spark, tape, cut, workers=workers).where("kind = 'messages'")
    view = tape_view(placed(events, tape, region), tape.time_type, like)
    hashes = {name: F.col(f"fingerprint.{name}") for name in ("h1", "h2")}
    return _summed(view, F.col("records"), hashes)


def view_cells(
    view: View, sets: Mapping[str, Sequence[StructField]], checks: Sequence[PreparedCheck] = ()
) -> DataFrame:
    """The cells of some rows, in one scan, with a fingerprint per set of fields.

    The set `h` gives columns `h1` and `h2`. Checks give `c0`, `c1`, ..., the numbers of failing
    rows.
    """
    hashes: dict[str, Column] = {}
    for prefix, fields in sets.items():
        for i, column in enumerate(row_hashes(fields, view.data), start=1):
            hashes[f"{prefix}{i}"] = column
    return _summed(view, F.lit(1).cast("bigint"), hashes, checks)


def _summed(
    view: View, records: Column, hashes: Mapping[str, Column], checks: Sequence[PreparedCheck] = ()
) -> DataFrame:
    rows = view.frame.select(
        *view.place,
        records.alias("records"),
        *(column.alias(name) for name, column in hashes.items()),
        *(flag for check in checks for flag in check.flags()),
    )
    sums = {name: sum_mod64(F.col(name)) for name in hashes}
    return aggregate_with_checks(rows, checks, {"records": F.sum("records"), **sums})


def compare(expected: DataFrame, actual: DataFrame, limit: int) -> CellComparison:
    """Compare two frames of cells."""
    with persisted(gather({"expected": expected, "actual": actual})) as joined:
        differing = differs("expected", "actual")
        totals = count_cells(joined, ("expected", "actual"), {"differing": differing})
        sample: tuple[CellDifference, ...] = ()
        if totals["differing"]:
            sample = sample_cells(joined.where(differing), "expected", "actual", limit)
    return CellComparison(totals["cells"], totals["differing"], sample)


def together(comparisons: Sequence[CellComparison], limit: int) -> CellComparison:
    """Several comparisons as one, with a sample of the first differing cells."""
    sample = tuple(cell for comparison in comparisons for cell in comparison.sample)
    return CellComparison(
        sum(comparison.cells for comparison in comparisons),
        sum(comparison.differing for comparison in comparisons),
        sample[:limit],
    )


def gather(sides: Mapping[str, DataFrame]) -> DataFrame:
    """Frames of cells side by side, one row per cell of any of them.

    The measure `records` of side `a` becomes `a_records`, NULL in cells absent from `a`.
    """
    # Grouping treats NULL as a value, as places need, and avoids the cost of a null-safe join.
    renamed = [
        cells.select(
            *place_of(cells),
            *(F.col(m).alias(f"{name}_{m}") for m in cells.columns if m not in place_of(cells)),
        )
        for name, cells in sides.items()
    ]
    place = place_of(renamed[0])
    stacked = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), renamed)
    measures = [name for name in stacked.columns if name not in place]
    return stacked.groupBy(*place).agg(*(F.max(name).alias(name) for name in measures))


def differs(
    expected: str, actual: str, pairs: Sequence[tuple[str, str]] = (("h1", "h1"), ("h2", "h2"))
) -> Column:
    """Whether two sides of gathered cells differ; a cell without rows equals an absent one.

    Without `pairs` of fingerprints, only the numbers of rows are compared.
    """
    counts = _count(expected), _count(actual)
    same = [F.col(f"{expected}_{a}").eqNullSafe(F.col(f"{actual}_{b}")) for a, b in pairs]
    unequal = ~reduce(and_, same, F.lit(True))
    return (counts[0] != counts[1]) | ((counts[0] > 0) & unequal)


def _count(side: str) -> Column:
    return F.coalesce(F.col(f"{side}_records"), F.lit(0))


def count_cells(
    joined: DataFrame,
    sides: Sequence[str],
    checks: Mapping[str, Column],
    sums: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Totals over gathered cells by name, in one job.

    `cells` with rows on any side, rows per side, cells per condition, the sums, and `any`, the
    cells that meet at least one condition.
    """
    counts = [_count(side) for side in sides]
    totals = joined.agg(
        F.count_if(reduce(or_, [count > 0 for count in counts])).alias("cells"),
        *(F.sum(count).alias(side) for side, count in zip(sides, counts, strict=True)),
        *(F.count_if(condition).alias(name) for name, condition in checks.items()),
        *(F.sum(column).alias(name) for name, column in (sums or {}).items()),
        F.count_if(reduce(or_, checks.values())).alias("any"),
    ).first()
    assert totals is not None
    return {name: value or 0 for name, value in totals.asDict().items()}


def sample_cells(
    differing: DataFrame, expected: str, actual: str, limit: int
) -> tuple[CellDifference, ...]:
    """The first differing cells, by worker and time."""
    rows = differing.orderBy(*place_of(differing)).limit(limit).collect()
    return tuple(
        CellDifference(row["worker"], time_of(row), _side(row, expected), _side(row, actual))
        for row in rows
    )


def _side(row: Row, side: str) -> tuple[int, ...]:
    return tuple(row[f"{side}_{measure}"] or 0 for measure in MEASURES)


def is_retired(boxes: Sequence[Box]) -> Column:
    """Whether a cell lies in one of the boxes; a coordinate that the table lacks always matches."""
    return reduce(or_, map(_inside, boxes), F.lit(False))


def _inside(box: Box) -> Column:
    parts = [
        F.coalesce(F.col(f"t{index}") < F.lit(until), F.lit(True))
        for index, until in enumerate(box.until)
        if until is not None
    ]
    return reduce(and_, parts, F.lit(True))


def retired_differences(bad: DataFrame, expected: str, actual: str, limit: int) -> RowDifferences:
    """The differences in cells whose rows can no longer be compared one by one.

    Missing and extra rows by the numbers of rows, and one changed row for each differing cell with
    the expected number; findings have a cell's count and fingerprint.
    """
    wanted, stored = _count(expected), _count(actual)
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


def few_promised(
    tape: Tape, cut: Cut, workers: Iterable[int], region: Region, like: Shape | None
) -> dict[Place, Content] | None:
    """The cells of `promised_cells`, in this process; None if there are many."""
    keeps_worker = like is None or like.worker is not None
    columns = tape.time_type.names if like is None else like.times_for(tape.time_type)
    cells: dict[Place, Content] = {}
    events = index.messages(tape, cut, workers, region)
    for number, event in enumerate(events):
        if number == MAX_CELLS:
            return None
        times = (None if c is None else t for c, t in zip(columns, event.time, strict=True))
        place = (event.worker if keeps_worker else None, *times)
        records, h1, h2 = cells.get(place, (0, 0, 0))
        cells[place] = records + event.records, h1 + event.h1, h2 + event.h2
    return {place: (n, _signed(h1), _signed(h2)) for place, (n, h1, h2) in cells.items()}


def totals_if_equal(
    expected: Mapping[Place, Content] | None,
    stored: DataFrame,
    summed: Sequence[str] = (),
    *,
    contents: bool = True,
) -> dict[str, int] | None:
    """The totals of `count_cells` if all cells are equal, without a join; None if any may differ.

    By name: `cells` with rows, their `rows`, and the sums of `summed`. `expected` is None if there
    are too many cells. Without `contents`, only the numbers of rows are compared.
    """
    if expected is None:
        return None
    # With more cells than expected, one of them differs.
    rows = stored.limit(len(expected) + 2).collect()
    names, measures = place_of(stored), MEASURES if contents else MEASURES[:1]
    cells = {
        tuple(row[name] for name in names): tuple(row[measure] for measure in measures)
        for row in rows
        if row["records"]
    }
    wanted = {place: c[: len(measures)] for place, c in expected.items() if c[0]}
    if cells != wanted:
        return None
    sums = {name: sum(row[name] or 0 for row in rows) for name in summed}
    return {"cells": len(cells), "rows": sum(content[0] for content in cells.values()), **sums}


def _signed(value: int) -> int:
    """A sum modulo 2^64, as a BIGINT."""
    unsigned = value % 2**64
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned
