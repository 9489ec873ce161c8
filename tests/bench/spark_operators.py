"""Cost of replays whose operators Spark computes, compared with the same in bare Spark SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from capstan.errors import SystemFailureError
from capstan.pipeline import TIME, DagBuilder, Sink, pipeline
from capstan.pipeline.operators import (
    Deduplicate,
    Project,
    SessionWindow,
    TopN,
    Window,
    WindowJoin,
    count_rows,
    max_of,
)
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import newest_cut, open_tape, read_records
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import STREAM, Bench, drop, nothing_declared
from tests.bench.measures import Line, compared, interleave
from tests.bench.replay import lake_with_ledgers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GOAL: Final = 2.5
_MINUTE: Final = timedelta(minutes=1)
_GAP: Final = timedelta(minutes=2)
_FIRST: Final = 10
_BIDS: Final = pa.schema([(TIME, pa.int64()), ("auction", pa.int64()), ("price", pa.int64())])


def _single(operator: object) -> DagBuilder:
    """A graph of one operator over the bids."""
    builder = DagBuilder().source("sent", _BIDS).operator("made", operator)  # type: ignore[arg-type]
    return builder.connect("sent", "made").sink_for("made", "out")


@pipeline(name="bids_and_prices", sinks=[Sink("out")])
def bids_and_prices() -> DagBuilder:
    """By auction and minute the number of bids of one stream, and the best one of the other."""
    counted = Window.tumbling(_MINUTE, [count_rows("bids")], by=["auction"])
    priced = Window.tumbling(_MINUTE, [max_of("price")], by=["auction"])
    both = WindowJoin(("auction",), ("auction",), _MINUTE, prefix="other_")
    shown = Project({"auction": "auction", "bids": "bids", "price": "other_max_price"})
    return (
        DagBuilder()
        .source("sent", _BIDS)
        .source("offered", _BIDS)
        .operator("counted", counted)
        .operator("priced", priced)
        .operator("both", both)
        .stateless_operator("shown", shown)
        .connect("sent", "counted")
        .connect("offered", "priced")
        .connect("counted", "both")
        .connect("priced", "both")
        .connect("both", "shown")
        .sink_for("shown", "out")
    )


@pipeline(name="bids_by_minute", sinks=[Sink("out")])
def bids_by_minute() -> DagBuilder:
    """By auction and minute the number of bids and the best one."""
    return _single(Window.tumbling(_MINUTE, [count_rows("bids"), max_of("price")], by=["auction"]))


@pipeline(name="bid_sessions", sinks=[Sink("out")])
def bid_sessions() -> DagBuilder:
    """By auction the number of bids of each session, and the best one."""
    return _single(SessionWindow(_GAP, (count_rows("bids"), max_of("price")), by=("auction",)))


@pipeline(name="best_bids", sinks=[Sink("out")])
def best_bids() -> DagBuilder:
    """The best bids of each minute."""
    return _single(TopN(_FIRST, (("price", "descending"),), window=_MINUTE))


@pipeline(name="first_bids", sinks=[Sink("out")])
def first_bids() -> DagBuilder:
    """The first bid of each auction."""
    return _single(Deduplicate(("auction",)))


def _joined(bids: Callable[[], DataFrame]) -> DataFrame:
    """The records are read twice, as by the pipeline."""
    counted = bids().groupBy("event", "auction").agg(F.count("*").alias("bids"))
    priced = bids().groupBy("event", "auction").agg(F.max("price").alias("price"))
    return counted.join(priced, ["event", "auction"])


def _by_minute(bids: Callable[[], DataFrame]) -> DataFrame:
    grouped = bids().groupBy(F.window("event", "1 minute"), "auction")
    return grouped.agg(F.count("*").alias("bids"), F.max("price").alias("price"))


def _sessions(bids: Callable[[], DataFrame]) -> DataFrame:
    grouped = bids().groupBy(F.session_window("event", f"{_GAP.seconds} seconds"), "auction")
    return grouped.agg(F.count("*").alias("bids"), F.max("price").alias("price"))


def _best(bids: Callable[[], DataFrame]) -> DataFrame:
    over = Over.partitionBy(F.window("event", "1 minute"))
    order = F.desc("price"), "event", "auction"
    rank = F.row_number().over(over.orderBy(*order))
    return bids().withColumn("rank", rank).where(F.col("rank") <= _FIRST)


def _firsts(bids: Callable[[], DataFrame]) -> DataFrame:
    rank = F.row_number().over(Over.partitionBy("auction").orderBy("event", "price"))
    return bids().withColumn("rank", rank).where("rank = 1").drop("rank")


@dataclass(frozen=True, slots=True)
class _Case:
    """A pipeline, and the same in Spark SQL."""

    pipeline: Callable[[], DagBuilder]
    plain: Callable[[Callable[[], DataFrame]], DataFrame]
    sources: tuple[str, ...] = ()  # of several streams


JOIN: Final = {"join of two streams": _Case(bids_and_prices, _joined, ("sent", "offered"))}
OPERATORS: Final = {
    "windows": _Case(bids_by_minute, _by_minute),
    "sessions": _Case(bid_sessions, _sessions),
    "first rows of windows": _Case(best_bids, _best),
    "deduplication": _Case(first_bids, _firsts),
}


def joins(bench: Bench) -> list[Line]:
    """The result of `join`."""
    return _compared(bench, JOIN)


def operators(bench: Bench) -> list[Line]:
    """The results of `operators`."""
    return _compared(bench, OPERATORS)


def _compared(bench: Bench, cases: Mapping[str, _Case]) -> list[Line]:
    lines = []
    for name, case in cases.items():
        replayed, plain = f"replay of a pipeline: {name}", f"Spark SQL: {name}"

        def measured(rows: int, _: int, case: _Case = case) -> Cost:
            return _replayed(bench, case, rows)

        def bare(rows: int, _: int, case: _Case = case) -> Cost:
            return _written(bench, case, rows)

        sides = {replayed: measured, plain: bare}
        samples = interleave(sides, bench.options.sizes, bench.options.rounds, bench.tell)
        lines.append(compared(samples, replayed, plain, _GOAL))
    return lines


def _replayed(bench: Bench, case: _Case, rows: int) -> Cost:
    lake, name = lake_with_ledgers(bench, "operators"), case.pipeline.__name__
    declared = nothing_declared(bench.folder)
    declared = replace(declared, pipelines={name: f"{__name__}:{name}"})
    stream = f"{STREAM}_{rows}"
    if case.sources:
        streams = dict.fromkeys(case.sources, stream)
        request = Request.of_streams(streams, "table", pipeline=name)
    else:
        request = Request(stream, "table", pipeline=name)
    bench.tidy()
    cost = bench.clock.measure(lambda: replay(bench.spark, lake, declared, request))
    _require_rows(bench, lake.table("table"), _plain(bench, case, lake, rows).count())
    drop(Path(lake.root))
    return cost


def _written(bench: Bench, case: _Case, rows: int) -> Cost:
    lake = bench.lake_of_tapes("bare")
    frame, path = _plain(bench, case, lake, rows), str(Path(lake.root) / "plain")
    bench.tidy()
    cost = bench.clock.measure(lambda: frame.write.format("delta").save(path))
    drop(Path(lake.root))
    return cost


def _plain(bench: Bench, case: _Case, lake: Lake, rows: int) -> DataFrame:
    """The same of the same records in Spark SQL."""

    def bids() -> DataFrame:
        tape = open_tape(lake, f"{STREAM}_{rows}")
        records = read_records(bench.spark, tape, newest_cut(tape))
        return records.select("time.event", "data.auction", "data.price")

    return case.plain(bids)


def _require_rows(bench: Bench, table: str, wanted: int) -> None:
    """Check that both sides have the same number of rows.

    Raises:
        SystemFailureError: `CAP-BENCH`.
    """
    actual = bench.spark.read.format("delta").load(table).count()
    if actual != wanted:
        raise SystemFailureError(
            "CAP-BENCH",
            f"the replay has {actual} rows, and Spark SQL {wanted}",
            "the sides of the benchmark would not do the same work; report this",
        )
