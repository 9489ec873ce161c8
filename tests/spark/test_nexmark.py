"""Nexmark: each query as a pipeline gives what Spark's SQL gives over the same events."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from capstan.audit import played_records
from capstan.capture.run import capture, close
from capstan.core.config import ByKey, EventTime, Source, Stream
from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.pipeline import pipelines
from capstan.pipeline.spark.runner import play
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.tape import Tape, newest_cut, open_tape
from tests.bench.workloads import nexmark, nexmark_events, nexmark_queries, nexmark_sql
from tests.support.jvmless_lake import lay_records
from tests.support.local_runner import everything
from tests.support.sample_streams import MARKET_EVENTS
from tests.support.tape_play import play_tape

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

# Two minutes of events, or a little more: many windows, and gaps of ten seconds for most bidders.
TIMES = TimeType.of(event=Kind.TIMESTAMP)
ROWS_AT_LEAST = {
    0: 2_700, 1: 2_700, 2: 5, 3: 3, 4: 5, 5: 60, 7: 13, 8: 3, 9: 90, 11: 100, 14: 500, 18: 500,
    19: 500, 20: 300, 21: 2_700, 22: 2_700,
}  # fmt: skip


def recorded(events: DataFrame, batches: int) -> DataFrame:
    """The events as they are on a tape of two workers, captured in so many micro-batches."""
    time = F.struct(F.col("dateTime").alias("event")).alias("_time")
    worker = (F.col("event") % 2).cast("int").alias("_worker")
    # Not in order of time: what comes late by less than the lateness is on tape in a later batch.
    batch = F.pmod(F.xxhash64("event"), F.lit(batches)).alias("_batch")
    place = F.col("event").alias("_pos")
    return events.select(worker, time, batch, place, "dateTime", "person", "auction", "bid")


def multiset(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row) for row in frame.collect())


# Daily, an aggregate over an aggregate, and a join over windows; the others nightly.
DAILY = (4, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=() if number in DAILY else pytest.mark.nightly)
        for number in sorted(nexmark_sql.QUERIES)
    ],
)
def test_pipelines_give_what_sql_gives(events: DataFrame, number: int) -> None:
    expected = multiset(nexmark_sql.asked(events, number))
    assert expected.total() >= ROWS_AT_LEAST[number]
    pipeline = pipelines().get(f"nexmark_q{number}")
    for peers, batches in ((1, 1), (2, 50), (3, 50), (8, 1)):
        played = play(
            events.sparkSession,
            recorded(events.repartition(peers), batches),
            pipeline,
            everything(TIMES),
            peers=peers,
        )
        actual = multiset(played.sinks["out"].drop("_time"))
        played.release()
        assert actual == expected, peers
        assert played.trimmed == {"out": 0}
        assert played.put_aside == {}


@pytest.mark.parametrize("batches", [1, 50])
def test_a_tape_gives_what_the_queries_are_run_over(
    events: DataFrame, tmp_path: Path, batches: int
) -> None:
    spark, expected = events.sparkSession, recorded(events, batches)
    data = F.struct("dateTime", "person", "auction", "bid").alias("data")
    place = [F.col(f"_{name}").alias(name) for name in ("worker", "batch", "time", "pos")]
    # Not `toArrow`: it refuses nulls around fields that are never null.
    expected.select(*place, data).coalesce(1).write.parquet(str(tmp_path / "rows"))
    rows = pq.read_table(tmp_path / "rows")
    assert len(set(rows["batch"].to_pylist())) == batches
    lake = Lake.at(tmp_path)
    lay_records(lake, "nexmark", ["even", "odd"], rows)
    tape = open_tape(lake, "nexmark")
    cut, workers = newest_cut(tape), {0: "even", 1: "odd"}
    assert cut.batch == batches - 1
    read = played_records(
        spark, tape, cut, workers, Region(Box.everything(TIMES)), place=True
    ).select(expected.columns)
    assert multiset(read) == multiset(expected)
    # And one of them over the tape itself.
    pipeline = pipelines().get("nexmark_q7")
    reach = everything(TIMES)
    played = play_tape(spark, tape, cut, workers, pipeline, reach, Antichain(), peers=3)
    assert multiset(played.sinks["out"].drop("_time")) == multiset(nexmark_sql.asked(events, 7))
    played.release()


@pytest.fixture(scope="module")
def captured(events: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Tape]:
    """Tapes of the events, captured in so many micro-batches, each of a file of the source."""
    spark, tapes = events.sparkSession, dict[int, Tape]()

    def captured_in(batches: int) -> Tape:
        if batches in tapes:
            return tapes[batches]
        folder = tmp_path_factory.mktemp(f"captured-{batches}")
        # Dealt out: every file has events of the whole time.
        events.repartition(batches).write.format("delta").save(str(folder / "source"))
        stream = Stream(
            name="nexmark",
            source=Source(
                format="delta", path=str(folder / "source"), options={"maxFilesPerTrigger": "1"}
            ),
            workers=ByKey(columns=("event",), count=2),
            time=EventTime(
                column="dateTime", every=timedelta(microseconds=1), lateness=timedelta(hours=1)
            ),
        )
        lake = Lake.at(folder / "lake")
        actual = capture(spark, lake, stream)
        assert (actual.batches, actual.records) == (batches, MARKET_EVENTS)
        tapes[batches], closed = close(spark, lake, "nexmark")
        assert closed == 2
        return tapes[batches]

    return captured_in


def answered(
    tape: Tape, spark: SparkSession, number: int, peers: int
) -> Counter[tuple[object, ...]]:
    """What a query gives over all of a tape."""
    cut = newest_cut(tape)
    workers = index.worker_labels(tape, cut)
    pipeline, reach = pipelines().get(f"nexmark_q{number}"), everything(tape.time_type)
    played = play_tape(spark, tape, cut, workers, pipeline, reach, Antichain(), peers=peers)
    actual = multiset(played.sinks["out"].drop("_time"))
    played.release()
    return actual


def test_what_was_captured_gives_what_sql_gives(
    events: DataFrame, captured: Callable[[int], Tape]
) -> None:
    for number, peers in ((8, 3), (11, 2)):
        actual = answered(captured(3), events.sparkSession, number, peers)
        assert actual == multiset(nexmark_sql.asked(events, number))
        assert actual.total() >= ROWS_AT_LEAST[number]


@pytest.mark.nightly
@pytest.mark.parametrize("batches", [1, 50])
@pytest.mark.parametrize("number", sorted(nexmark_sql.QUERIES))
def test_captured_in_any_batches_any_workers_give_what_sql_gives(
    events: DataFrame, captured: Callable[[int], Tape], batches: int, number: int
) -> None:
    expected = multiset(nexmark_sql.asked(events, number))
    assert expected.total() >= ROWS_AT_LEAST[number]
    for peers in (1, 2, 3, 8):
        actual = answered(captured(batches), events.sparkSession, number, peers)
        assert actual == expected, peers


def test_every_query_is_registered() -> None:
    assert nexmark_queries.q0 is not None
    numbers = {int(n.removeprefix("nexmark_q")) for n in pipelines().names if "nexmark" in n}
    assert numbers == {*nexmark_sql.QUERIES, 12} == set(nexmark_sql.ASKS)


def test_a_query_by_the_clock_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidRequestError, match="current_timestamp has no fixed value"):
        pipelines().get("nexmark_q12").dag()


def test_events_are_the_same_in_any_number_of_partitions(spark: SparkSession) -> None:
    one = multiset(nexmark_events.events(spark, 1_000, seed=3, partitions=1))
    many = multiset(nexmark_events.events(spark, 1_000, seed=3, partitions=7))
    assert one == many
    assert len(one) == 1_000
    other = multiset(nexmark_events.events(spark, 1_000, seed=4, partitions=1))
    assert one != other


def test_the_bids_among_the_events_are_the_bids(spark: SparkSession) -> None:
    events = nexmark_events.events(spark, 500, seed=5, events_per_second=100)
    columns = ["auction", "bidder", "price", "channel", "url", "dateTime", "extra"]
    among = events.where("bid IS NOT NULL").select("dateTime", "bid.*").select(columns)
    alone = nexmark.bids(spark, 460, seed=5, events_per_second=100)
    assert multiset(among) == multiset(alone)


def test_the_shape_of_people_and_auctions(spark: SparkSession) -> None:
    events = nexmark_events.events(spark, 50_000, seed=1, events_per_second=1_000, partitions=2)
    rows = events.where("bid IS NULL").orderBy("event").collect()
    assert [r.event % 50 for r in rows[:5]] == [0, 1, 2, 3, 0]
    people = [r.person for r in rows if r.person is not None]
    sold = [r for r in rows if r.auction is not None]
    assert [p.id for p in people] == list(range(1_000, 2_000))
    assert [r.auction.id for r in sold] == list(range(1_000, 4_000))
    assert {p.state for p in people} == set(nexmark_events.STATES)
    assert {r.auction.category for r in sold} == set(range(10, 15))
    hot = cold = 0
    for row in sold:
        auction, turn = row.auction, row.event // 50
        seller = auction.seller - 1_000
        assert max(0, turn - 999) <= seller <= turn + 10 or seller == turn - turn % 100
        hot += seller == turn - turn % 100
        cold += seller > turn
        length = (auction.expires - row.dateTime).total_seconds()
        # In events of a thousandth of a second each: 100 auctions are 1,666 events.
        assert 0 < length <= 2 * 1.667
        assert auction.reserve > auction.initialBid >= 100
    assert hot / len(sold) == pytest.approx(3 / 4, abs=0.03)
    assert cold > 0
    assert all(len(p.extra) in range(80, 101) for p in people)
    assert len({p.emailAddress for p in people}) == 1_000
    assert all(len(p.creditCard) == 19 for p in people)
