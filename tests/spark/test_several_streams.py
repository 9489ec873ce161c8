"""Replays of several captured streams: Nexmark's people, auctions and bids, each its own tape."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from capstan.capture.run import capture, close
from capstan.core.config import ByKey, EventTime, ProjectConfig, Source, Stream
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import replay, rollback
from capstan.replay.standalone_audit import audit_run, require_auditable
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger.certificate import Certificate
from tests.bench.workloads import nexmark_sql
from tests.bench.workloads.nexmark_streams import REFERENCES
from tests.support import several_streams
from tests.support.sample_streams import MARKET_EVENTS, NAME, lay_in, little_stream, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = {"people": "person", "auctions": "auction", "bids": "bid"}
SQL = {"market_q3": nexmark_sql.QUERIES[3], "market_q8": nexmark_sql.QUERIES[8]}
SQL["market_bids"] = """
    SELECT A.id, B.price, P.name FROM auction AS A
    JOIN bid AS B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
    JOIN person AS P ON P.id = B.bidder
"""
SHOWN = {
    "market_q3": ("name", "city", "state", "id"),
    "market_q8": ("id", "name", "starttime"),
    "market_bids": ("id", "bid_price", "bidder_name"),
}
READS = {
    "market_q3": ("people", "auctions"),
    "market_q8": ("people", "auctions"),
    "market_bids": tuple(KINDS),
}
TEN_SECONDS = 10_000_000
Rows = Counter[tuple[object, ...]]


def multiset(frame: DataFrame) -> Rows:
    return Counter(tuple(row) for row in frame.collect())


@dataclass
class Market:
    """Tapes of people, auctions and bids of one lake."""

    spark: SparkSession
    folder: Path
    events: DataFrame
    streams: dict[str, Stream] = field(default_factory=dict)
    reads: dict[str, list[str]] = field(default_factory=dict)

    @property
    def lake(self) -> Lake:
        return Lake.at(self.folder / "lake")

    @property
    def declarations(self) -> ProjectConfig:
        return ProjectConfig(Path("streams.yaml"), self.streams, {}, {}, {}, REFERENCES)

    def capture(
        self, name: str, where: str = "true", *, of: str = "", files: int = 1, ends: bool = False
    ) -> None:
        """Append events of a kind to a stream's source, in so many files, and capture them."""
        kind, path = KINDS[of or name], str(self.folder / name)
        rows = self.events.where(f"{kind} IS NOT NULL").select("dateTime", f"{kind}.*")
        rows.where(where).repartition(files).write.format("delta").mode("append").save(path)
        # Files of a source with several have events of the whole time.
        self.streams[name] = Stream(
            name=name,
            source=Source(format="delta", path=path, options={"maxFilesPerTrigger": "1"}),
            workers=ByKey(columns=("dateTime",), count=2),
            time=EventTime(
                column="dateTime",
                every=timedelta(microseconds=1),
                lateness=timedelta(hours=1 if files > 1 else 0),
            ),
        )
        actual = capture(self.spark, self.lake, self.streams[name])
        assert (actual.batches, actual.late) == (files, {})
        if ends:
            close(self.spark, self.lake, name)

    def request(self, query: str, **fields: Any) -> Request:
        streams = {name: self.reads.get(name, [name]) for name in READS[query]}
        return Request.of_streams(streams, query, pipeline=query, **fields)

    def again(self, query: str, **fields: Any) -> ReplayResult:
        return replay(self.spark, self.lake, self.declarations, self.request(query, **fields))

    def replay(self, query: str, **fields: Any) -> Certificate:
        done = self.again(query, **fields)
        assert done.certificate is not None
        assert done.certificate.audit is not None
        assert done.certificate.audit["passed"]
        return done.certificate

    def rows(self, query: str) -> Rows:
        return multiset(delta.load(self.spark, self.lake.table(query)).select(*SHOWN[query]))

    def by_sql(self, query: str, before: int | None = None) -> Rows:
        """The answer of batch SQL over the events before a time in microseconds."""
        for kind in KINDS.values():
            rows = self.events.where(f"{kind} IS NOT NULL").select("dateTime", f"{kind}.*")
            rows = rows if before is None else rows.where(f"unix_micros(dateTime) < {before}")
            rows.createOrReplaceTempView(kind)
        actual = self.spark.sql(SQL[query])
        if query == "market_q8" and before is not None:
            # A window is written once it is over.
            actual = actual.where(f"unix_micros(starttime) + {TEN_SECONDS} <= {before}")
        return multiset(actual)


@pytest.mark.parametrize(
    "query", ["market_q3", pytest.param("market_q8", marks=pytest.mark.nightly)]
)
def test_a_stream_that_lags_holds_the_others_back(
    events: DataFrame, tmp_path: Path, query: str
) -> None:
    market = Market(events.sparkSession, tmp_path, events)
    [(middle,)] = events.agg(F.expr("bigint(avg(unix_micros(dateTime)))")).collect()
    # Auctions are on two tapes.
    market.reads = {"auctions": ["east", "west"]}
    for number, name in enumerate(market.reads["auctions"]):
        market.capture(name, f"id % 2 = {number}", of="auctions", ends=True)
    market.capture("people", f"unix_micros(dateTime) < {middle}")
    [[meet]] = make_plan(market.lake, market.declarations, market.request(query)).frontier.elements
    first = market.replay(query, follow="nightly", peers=2)
    whole, below = market.by_sql(query), market.by_sql(query, meet)
    assert market.rows(query) == below
    assert 0 < below.total() < whole.total()
    parts = {part["source"]: part for part in first.streams or ()}
    assert parts["auctions/east"]["frontier"] == []
    assert first.frontier == parts["people"]["frontier"] != []
    # Auctions beyond the meet are on tape, and were not read.
    sold = parts["auctions/east"]["records"], parts["auctions/west"]["records"]
    assert min(sold) > 0
    assert sum(sold) < MARKET_EVENTS * 3 / 50
    assert first.records == sum(part["records"] for part in parts.values())
    market.capture("people", f"unix_micros(dateTime) >= {middle}", ends=True)
    second = market.replay(query, follow="nightly", peers=2)
    assert market.rows(query) == whole
    assert second.pipeline is not None
    assert second.pipeline["resumed"] is not None
    assert [part["cut"] for part in second.streams or ()] == [1, 1, 2]
    assert market.again(query, follow="nightly", peers=2).unchanged
    rollback(market.spark, market.lake, market.declarations, str(second.run))
    assert market.rows(query) == below


@pytest.mark.nightly
@pytest.mark.parametrize("files", [1, 50])
def test_streams_of_any_batches_any_workers_give_what_sql_gives(
    events: DataFrame, tmp_path: Path, files: int
) -> None:
    market = Market(events.sparkSession, tmp_path, events)
    for name in KINDS:
        market.capture(name, files=files, ends=True)
    for query in SQL:
        expected = market.by_sql(query)
        assert expected.total() > 0
        for peers in (1, 2, 5):
            run = str(market.replay(query, peers=peers).run)
            assert market.rows(query) == expected, (query, peers)
            history = require_auditable(market.lake, run, None)
            assert audit_run(market.spark, market.lake, market.declarations, history).audit.passed
            rollback(market.spark, market.lake, market.declarations, run)


@pytest.mark.nightly
def test_chosen_workers_join_with_all_of_another_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, source = Lake.at(tmp_path / "lake"), tmp_path / "source"
    lay_in(source, rows(range(30)), 1)
    orders = little_stream(source)
    payments = little_stream(source, name="payments", workers=ByKey(columns=("id",), count=2))
    for stream in (orders, payments):
        capture(spark, lake, stream)
        close(spark, lake, stream.name)
    streams = {stream.name: stream for stream in (orders, payments)}
    declared = ProjectConfig(Path("streams.yaml"), streams, {}, {}, {}, several_streams.REFERENCES)

    def replayed(into: str, **chosen: Any) -> Certificate:
        request = Request.of_streams(
            {"orders": NAME, "payments": "payments"}, into, pipeline="paid_by_seller", **chosen
        )
        done = replay(spark, lake, declared, request).certificate
        assert done is not None
        assert done.audit is not None
        assert done.audit["passed"]
        return done

    def shown(into: str) -> Rows:
        return multiset(delta.load(spark, lake.table(into)).select("_worker", "id", "paid_amount"))

    replayed("whole")
    assert shown("whole").total() == 30
    first = replayed("parts", workers_of={"orders": ("a", "c")})
    assert [part["left_out"] for part in first.streams or ()] == [["b"], []]
    numbers = {row[0] for row in shown("parts")}
    assert len(numbers) == 2
    second = replayed("parts", workers=("b",), peers=2)
    assert shown("parts") == shown("whole")
    history = require_auditable(lake, str(first.run), None)
    assert audit_run(spark, lake, declared, history).audit.passed
    rollback(spark, lake, declared, str(second.run))
    assert {row[0] for row in shown("parts")} == numbers
    assert shown("parts") == Rows(row for row in shown("whole").elements() if row[0] in numbers)
