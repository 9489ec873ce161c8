"""A tape of what a stateful query of Spark's own has put out: verified, replayed, and its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

from capstan.capture.run import capture
from capstan.core.config import ByColumn, EventTime, Source, Stream
from capstan.demo import flights
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape
from capstan.verify import verify
from tests.bench.workloads.running_totals import run_totals, totals_kept
from tests.support.sample_streams import HOUR, declared

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DAYS = 3


@pytest.mark.nightly
def test_what_a_stateful_query_puts_out_is_captured_and_replayed(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, table, checkpoint = (
        tmp_path / "source",
        str(tmp_path / "totals"),
        str(tmp_path / "state"),
    )
    lake = Lake.at(tmp_path / "lake")
    stream = Stream(
        name="totals",
        source=Source(format="delta", path=table),
        workers=ByColumn(by="column", column="origin"),
        time=EventTime(domain="event", column="until", every=HOUR, lateness=24 * HOUR),
    )
    # It goes on from its own state when there is more, and so does the capture.
    for days in (range(2), range(2, DAYS)):
        flights.feed(source, days=days)
        run_totals(spark, source, table, checkpoint)
        capture(spark, lake, stream)

    tape = open_tape(lake, "totals")
    actual = verify(spark, lake, tape, deep=True)
    assert actual.valid
    assert sum(worker.records for worker in actual.workers) == DAYS * len(flights.AIRPORTS)

    done = replay(
        spark, lake, declared(stream), Request("totals", "totals_again", partial=True)
    ).certificate.to_json()
    assert done["audit"]["passed"]  # type: ignore[index]
    again = pl.read_delta(lake.table("totals_again"))
    expected = pl.read_delta(table).join(again, on=["origin", "until"], how="semi")
    columns = ["origin", "until", "departures", "delay_minutes"]
    assert again.select(columns).sort(columns).equals(expected.select(columns).sort(columns))
    assert again.height > 0

    newest = pl.read_delta(table).sort("departures").group_by("origin").last()
    kept = {row.key.origin: tuple(row.value) for row in totals_kept(spark, checkpoint).collect()}
    assert kept == {
        row["origin"]: (row["departures"], row["delay_minutes"]) for row in newest.to_dicts()
    }
    flown = pl.concat([pl.read_parquet(path) for path in sorted((tmp_path / "source").iterdir())])
    assert (
        sum(departures for departures, _ in kept.values())
        == flown.filter(~pl.col("cancelled")).height
    )
