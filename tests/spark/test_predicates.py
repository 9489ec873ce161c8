"""Regions and workers as SQL: Spark keeps exactly the rows that the region has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.core.times import AdjoiningRanges, Antichain, Box, Coordinate, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.storage.tape.region_sql import literal, number_sql, region_sql, workers_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAIRS = TimeType((Coordinate.of("epoch", Kind.BIGINT), Coordinate.of("step", Kind.BIGINT)))
GRID = [(a, b) for a in range(5) for b in range(5)]


@pytest.mark.parametrize(
    "region",
    [
        Region(Box((None, None), (None, None))),
        Region(Box((1, None), (4, 3))),
        Region(Box((None, None), (None, None)), Antichain.of([(1, 3), (3, 1)])),
        Region(Box((None, None), (None, None)), Antichain.of([])),
        Region(
            Box((None, 1), (None, None)), Antichain.of([(4, 4)]), Antichain.of([(0, 2), (2, 0)])
        ),
        Region(Box((None, None), (None, None)), None, Antichain.of([])),
        Region(Box((3, None), (1, None))),
    ],
    ids=["all", "box", "below", "closed", "between", "nothing new", "empty"],
)
def test_spark_keeps_what_the_region_has(spark: SparkSession, region: Region) -> None:
    frame = spark.createDataFrame(GRID, "epoch BIGINT, step BIGINT")
    condition = region_sql(PAIRS, region, ("epoch", "step"))
    got = {(row.epoch, row.step) for row in frame.where(condition).collect()}
    assert got == {time for time in GRID if region.contains(Time(time))}


def test_spark_numbers_a_time_as_its_range_is_numbered(spark: SparkSession) -> None:
    ranges = AdjoiningRanges((1, 3, 4, 8))
    frame = spark.createDataFrame(GRID, "epoch BIGINT, step BIGINT")
    number = number_sql(PAIRS.coordinates[-1], ranges, "step")
    rows = frame.selectExpr("epoch", "step", f"{number} AS number").collect()
    assert {row.number for row in rows} == {0, 1, 2}
    assert all(row.number == ranges.number((row.epoch, row.step)) for row in rows)


def test_literals_at_the_ends_of_their_types(spark: SparkSession) -> None:
    ends = {
        Kind.BIGINT: (-(2**63), 2**63 - 1),
        Kind.DATE: (-719162, 2932896),
        Kind.TIMESTAMP: (-62135596800000000, 253402300799999999),
    }
    for kind, (low, high) in ends.items():
        coordinate = Coordinate.of("c", kind)
        row = spark.sql(
            f"SELECT {literal(coordinate, low)} = {literal(coordinate, low)} AS same, "
            f"{literal(coordinate, low)} < {literal(coordinate, high)} AS less"
        ).collect()[0]
        assert (row.same, row.less) == (True, True)
    moment = literal(Coordinate.of("c", Kind.TIMESTAMP), -62135596800000000)
    micros = spark.sql(f"SELECT unix_micros({moment}) AS value").collect()[0].value
    assert micros == -62135596800000000


def test_no_worker_is_no_row() -> None:
    assert workers_sql([], "worker") == "false"
    assert workers_sql([2, 0, 2], "worker") == "worker IN (0, 2)"
