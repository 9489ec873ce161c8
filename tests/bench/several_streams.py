"""Cost of a replay that joins two streams, compared with the same join in bare Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F

from capstan.errors import SystemFailureError
from capstan.pipeline import TIME, DagBuilder, Sink, pipeline
from capstan.pipeline.operators import Project, Window, WindowJoin, count_rows, max_of
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

JOINED, PLAIN = "replay of two streams", "bare join"
_MINUTE: Final = timedelta(minutes=1)
_BIDS: Final = pa.schema([(TIME, pa.int64()), ("auction", pa.int64()), ("price", pa.int64())])


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


def joins(bench: Bench) -> list[Line]:
    """The result `replay of two streams`."""
    sides = {
        JOINED: lambda rows, _: _replayed(bench, rows),
        PLAIN: lambda rows, _: _joined(bench, rows),
    }
    samples = interleave(sides, bench.options.sizes, bench.options.rounds, bench.tell)
    return [compared(samples, JOINED, PLAIN, None)]


def _replayed(bench: Bench, rows: int) -> Cost:
    lake = lake_with_ledgers(bench, "joined")
    declared = nothing_declared(bench.folder)
    name = f"{__name__}:{bids_and_prices.__name__}"
    declared = replace(declared, pipelines={"bids_and_prices": name})
    request = Request.of_streams(
        {"sent": f"{STREAM}_{rows}", "offered": f"{STREAM}_{rows}"},
        "table",
        pipeline="bids_and_prices",
    )
    bench.tidy()
    cost = bench.clock.measure(lambda: replay(bench.spark, lake, declared, request))
    _require_rows(bench, lake.table("table"), _plain(bench, lake, rows).count())
    drop(Path(lake.root))
    return cost


def _joined(bench: Bench, rows: int) -> Cost:
    lake = bench.lake_of_tapes("bare")
    frame, path = _plain(bench, lake, rows), str(Path(lake.root) / "plain")
    bench.tidy()
    cost = bench.clock.measure(lambda: frame.write.format("delta").save(path))
    drop(Path(lake.root))
    return cost


def _plain(bench: Bench, lake: Lake, rows: int) -> DataFrame:
    """The same join of the same records, which are read twice."""

    def minutes() -> DataFrame:
        tape = open_tape(lake, f"{STREAM}_{rows}")
        records = read_records(bench.spark, tape, newest_cut(tape))
        return records.select("time.event", "data.auction", "data.price")

    counted = minutes().groupBy("event", "auction").agg(F.count("*").alias("bids"))
    priced = minutes().groupBy("event", "auction").agg(F.max("price").alias("price"))
    return counted.join(priced, ["event", "auction"])


def _require_rows(bench: Bench, table: str, wanted: int) -> None:
    """Check that both sides have the same number of rows.

    Raises:
        SystemFailureError: `CAP-BENCH`.
    """
    actual = bench.spark.read.format("delta").load(table).count()
    if actual != wanted:
        raise SystemFailureError(
            "CAP-BENCH",
            f"the replay has {actual} rows, and the join {wanted}",
            "the sides of the benchmark would not do the same work; report this",
        )
