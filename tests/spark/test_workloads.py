"""Workloads as Spark sees them: generated bids, the feed's types, and the declared transform."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from capstan.core.config import load_config
from capstan.demo import flights
from capstan.errors import InvalidRequestError
from tests.bench.workloads import nexmark

PROJECT = Path(__file__).resolve().parents[2]
# auction, bidder, price, channel, url, length of extra and its beginning
GOLDEN = [
    (
        1000,
        1001,
        2990,
        "Google",
        "https://www.nexmark.com/7f9a2/1549c/fbc9a/item.htm?query=1",
        68,
        "e317d59e",
    ),
    (
        1000,
        1001,
        42144370,
        "channel-2874",
        "https://www.nexmark.com/57fad/9803e/f1417/item.htm?query=1&channel_id=2874",
        79,
        "088ce9d5",
    ),
    (
        1048,
        1001,
        194,
        "channel-209",
        "https://www.nexmark.com/4346d/3763e/ab447/item.htm?query=1&channel_id=209",
        61,
        "e5c8bc64",
    ),
]
START = datetime(2015, 7, 15, tzinfo=UTC)


def in_microseconds(frame: DataFrame) -> list[Row]:
    """The rows with their time as microseconds, which no session's zone can move."""
    return frame.withColumn("dateTime", frame.dateTime.cast("double")).collect()


def test_bids_are_the_same_in_any_number_of_partitions(spark: SparkSession) -> None:
    one = Counter(in_microseconds(nexmark.bids(spark, 3_000, partitions=1)))
    seven = nexmark.bids(spark, 3_000, partitions=7)
    assert seven.rdd.getNumPartitions() == 7
    assert Counter(in_microseconds(seven)) == one
    assert sum(one.values()) == 3_000
    assert len(one) == 3_000


def test_fewer_bids_are_the_first_of_more(spark: SparkSession) -> None:
    few = in_microseconds(nexmark.bids(spark, 100, partitions=2))
    many = in_microseconds(nexmark.bids(spark, 500, partitions=3))
    assert many[:100] == few


def test_the_first_bids_are_known(spark: SparkSession) -> None:
    rows = nexmark.bids(spark, 1_000, seed=7, partitions=2).collect()
    actual = [(*tuple(row)[:5], len(row.extra), row.extra[:8]) for row in rows]
    assert [actual[0], actual[2], actual[-1]] == GOLDEN


def test_another_seed_gives_other_bids_at_the_same_times(spark: SparkSession) -> None:
    one = in_microseconds(nexmark.bids(spark, 200, seed=1))
    two = in_microseconds(nexmark.bids(spark, 200, seed=2))
    assert [row.dateTime for row in one] == [row.dateTime for row in two]
    for column in ("auction", "price", "channel", "url", "extra"):
        assert [row[column] for row in one] != [row[column] for row in two]


def test_columns_and_types(spark: SparkSession) -> None:
    frame = nexmark.bids(spark, 0)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("auction", "bigint"),
        ("bidder", "bigint"),
        ("price", "bigint"),
        ("channel", "string"),
        ("url", "string"),
        ("dateTime", "timestamp"),
        ("extra", "string"),
    ]
    assert frame.count() == 0


def test_bids_are_numbered_among_all_events(spark: SparkSession) -> None:
    rows = in_microseconds(nexmark.bids(spark, 200, events_per_second=1_000, partitions=1))
    numbers = [round((row.dateTime - START.timestamp()) * 1_000) for row in rows]
    assert numbers == [k for k in range(250) if k % 50 >= 4][:200]
    odd = in_microseconds(nexmark.bids(spark, 47, events_per_second=3, partitions=1))
    assert odd[46].dateTime - START.timestamp() == 18


def test_bids_join_the_people_and_auctions_of_their_time(spark: SparkSession) -> None:
    rows = in_microseconds(nexmark.bids(spark, 46_000, events_per_second=1_000, partitions=2))
    hot_auction = hot_bidder = 0
    for row in rows:
        turn = round((row.dateTime - START.timestamp()) * 1_000) // 50
        last_auction, auction, bidder = turn * 3 + 2, row.auction - 1000, row.bidder - 1000
        hot_auction += auction == last_auction - last_auction % 100
        hot_bidder += bidder == turn - turn % 100 + 1
        assert max(0, last_auction - 199) <= auction <= last_auction + 10
        assert 0 <= bidder <= turn + 11
    assert hot_auction / len(rows) == pytest.approx(1 / 2, abs=0.02)
    assert hot_bidder / len(rows) == pytest.approx(3 / 4, abs=0.02)


def test_the_shape_of_bids(spark: SparkSession) -> None:
    nexmark.bids(spark, 20_000, partitions=2).createOrReplaceTempView("bids_for_shape")
    row = spark.sql(
        r"""
        SELECT min(price) AS least, max(price) AS most, percentile(price, 0.5) AS middle,
            min(length(extra)) AS short, max(length(extra)) AS long, avg(length(extra)) AS mean,
            avg(IF(channel IN ('Google', 'Facebook', 'Baidu', 'Apple'), 1, 0)) AS hot,
            count(DISTINCT channel) AS channels,
            count_if(url NOT RLIKE
                '^https://www\\.nexmark\\.com(/[0-9a-f]{5}){3}/item\\.htm\\?query=1(&channel_id=[0-9]+)?$'
            ) AS other_urls,
            count_if((channel LIKE 'channel-%') != (url LIKE '%&channel_id=%')) AS mixed,
            count_if(url LIKE '%channel_id%'
                AND substring_index(url, '=', -1) != substring_index(channel, '-', -1)) AS crossed
        FROM bids_for_shape
        """
    ).first()
    assert row is not None
    assert (row.other_urls, row.mixed, row.crossed) == (0, 0, 0)
    assert (row.short, row.long) == (54, 81)
    assert row.mean == pytest.approx(67.5, abs=0.5)
    assert 100 <= row.least < 110
    assert 90_000_000 < row.most <= 100_000_000
    assert row.middle == pytest.approx(100_000, rel=0.1)
    assert row.hot == pytest.approx(0.5, abs=0.02)
    assert 4_000 < row.channels <= 10_004


@pytest.mark.parametrize(
    ("rows", "changed"),
    [
        (-1, {}),
        (2**60, {}),
        (1, {"events_per_second": 0}),
        (1, {"events_per_second": 1_000_001}),
        (1, {"seed": 2**63}),
        (1, {"partitions": 0}),
    ],
)
def test_numbers_out_of_range_are_refused(
    spark: SparkSession, rows: int, changed: dict[str, int]
) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-NEXMARK"):
        nexmark.bids(spark, rows, **changed)


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the feed of 12 days in February, a blizzard among them."""
    folder = tmp_path_factory.mktemp("lake") / "sources" / "flights"
    flights.feed(folder, days=range(35, 47))
    return folder


def test_the_feed_reads_as_declared(spark: SparkSession, fed: Path) -> None:
    source = (
        load_config(PROJECT / "dags" / "streams.yaml", lake=str(fed.parents[1]))
        .stream("flights")
        .source
    )
    assert source.schema is not None
    assert source.path == str(fed)
    actual = spark.read.parquet(source.path)
    declared = spark.read.schema(source.schema).parquet(source.path)
    assert actual.schema == declared.schema
    assert declared.count() == pl.scan_parquet(fed / "*.parquet").select(pl.len()).collect().item()


def test_the_stream_takes_the_files_in_order(
    spark: SparkSession, fed: Path, tmp_path: Path
) -> None:
    source = (
        load_config(PROJECT / "dags" / "streams.yaml", lake=str(fed.parents[1]))
        .stream("flights")
        .source
    )
    assert source.schema is not None
    seen: list[tuple[date, date, int]] = []

    def note(batch: DataFrame, number: int) -> None:
        days = "to_date(arrived)"
        row = batch.selectExpr(f"min({days})", f"max({days})", "count(*)").collect()[0]
        seen.append(tuple(row))

    stream = spark.readStream.format(source.format).schema(source.schema)
    query = (
        stream.options(**source.options)
        .option("maxFilesPerTrigger", "5")
        .load(source.path)
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    first = date(2013, 2, 5)
    spans = [((low - first).days, (high - first).days) for low, high, _ in seen]
    assert spans == [(0, 4), (5, 9), (10, 11)]
    assert sum(rows for *_, rows in seen) == pl.read_parquet(fed / "*.parquet").height


def test_flights_by_day_counts_as_polars_does(spark: SparkSession, fed: Path) -> None:
    spark.read.parquet(str(fed)).selectExpr(
        "*",
        "CAST(array_position(array('EWR', 'JFK', 'LGA'), origin) - 1 AS INT) AS _worker",
        "named_struct('event', date_trunc('HOUR', sched_dep)) AS _time",
        "origin AS _label",
    ).createOrReplaceTempView("records")
    transform = load_config(PROJECT / "dags" / "streams.yaml", lake="/lake").transforms[
        "flights_by_day"
    ]
    assert transform.sql is not None
    result = spark.sql(transform.sql)
    kinds = {field.name: field.dataType.simpleString() for field in result.schema}
    assert kinds == {
        "_worker": "int",
        "origin": "string",
        "day": "timestamp",
        "departures": "bigint",
        "cancelled": "bigint",
        "delay_minutes": "bigint",
        "mean_delay_minutes": "double",
    }
    assert {transform.time, transform.worker, *transform.keys} <= set(kinds)
    expected = (
        pl.read_parquet(fed / "*.parquet")
        .group_by("origin", pl.col("sched_dep").dt.date().alias("day"))
        .agg(
            (~pl.col("cancelled")).sum().alias("departures"),
            pl.col("cancelled").sum().alias("cancelled"),
            pl.col("dep_delay").sum().alias("delay_minutes"),
        )
    )
    actual = {
        (row.origin, row.day): row
        for row in result.withColumn("day", result.day.cast("date")).collect()
    }
    assert len(actual) == expected.height
    for origin, day, departures, cancelled, delay in expected.iter_rows():
        row = actual[origin, day]
        assert row._worker == ["EWR", "JFK", "LGA"].index(origin)
        assert (row.departures, row.cancelled) == (departures, cancelled)
        if departures:
            assert row.delay_minutes == delay
            assert abs(row.mean_delay_minutes - delay / departures) <= 0.005 + 1e-9
        else:
            assert row.mean_delay_minutes is None
    blizzard = actual["LGA", date(2013, 2, 8) + timedelta(days=1)]
    assert blizzard.cancelled > blizzard.departures
