"""Cost of `capture_into` compared with a plain function for `foreachBatch`, in the same query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from capstan.capture.query.attached_query import CaptureInto
from capstan.core.config import Source
from capstan.core.config.sources import QUERY
from capstan.errors import SystemFailureError
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.lake import Lake
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import Bench, drop, stream
from tests.bench.measures import Line, compared, interleave

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ATTACHED, PLAIN = "capture_into", "plain foreachBatch sink"
GOAL = 1.2


def attached(bench: Bench) -> list[Line]:
    """The result `capture_into`."""
    samples = interleave(
        {
            ATTACHED: lambda rows, _: _recorded(bench, rows),
            PLAIN: lambda rows, _: _appended(bench, rows),
        },
        bench.options.sizes,
        bench.options.rounds,
        bench.tell,
    )
    return [compared(samples, ATTACHED, PLAIN, GOAL)]


def _recorded(bench: Bench, rows: int) -> Cost:
    place = bench.place("attach")
    lake, (source, _) = Lake.at(place / "lake"), bench.batches(rows)
    declared = replace(stream("bids", source, 1), source=Source(QUERY))
    cost = _run(bench, rows, CaptureInto(lake, declared), place)
    _require_all(lake.stream("bids").records, rows)
    drop(place)
    return cost


def _appended(bench: Bench, rows: int) -> Cost:
    place = bench.place("append")
    table = str(place / "table")

    def append(frame: DataFrame, batch: int) -> None:
        # As Delta's documentation has it: a repeated batch is skipped.
        once = {"txnAppId": "bids", "txnVersion": str(batch)}
        frame.write.format("delta").mode("append").options(**once).save(table)

    cost = _run(bench, rows, append, place)
    _require_all(table, rows)
    drop(place)
    return cost


def _run(bench: Bench, rows: int, record: Callable[[DataFrame, int], None], place: Path) -> Cost:
    """The cost of a query over all files of a source."""
    source, files = bench.batches(rows)
    columns = bench.spark.read.parquet(str(source)).schema
    reader = bench.spark.readStream.schema(columns).option("maxFilesPerTrigger", files)
    bids = reader.parquet(str(source))

    def run() -> None:
        writer = bids.writeStream.foreachBatch(record).trigger(availableNow=True)
        writer.option("checkpointLocation", str(place / "checkpoint")).start().awaitTermination()

    bench.tidy()
    return bench.clock.measure(run)


def _require_all(table: str, rows: int) -> None:
    """Check that a table has all rows.

    Raises:
        SystemFailureError: `CAP-BENCH`.
    """
    actual = OpenedTable(table).count()
    if actual != rows:
        raise SystemFailureError(
            "CAP-BENCH",
            f"{rows} bids were written, and {actual} are in {table}",
            "the sides of the benchmark would not do the same work; report this",
        )
