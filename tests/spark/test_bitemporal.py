"""Streams whose times say both what happened when, and what was known when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from capstan.capture.run import capture
from capstan.core.config import EventTime, LatePolicy
from capstan.errors import IncompleteError
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.tape.tape import open_tape
from capstan.verify import verify
from tests.support.sample_streams import HOUR, START, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake

BOTH = EventTime(domain="epoch, event", column="at", every=HOUR)
CORRECTIONS = [(100, "a", START, 1, "corrected later"), (101, "d", START + HOUR, 2, "new place")]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two files in order of time, and a third one with what became known only then."""
    folder = tmp_path / "source"
    lay(folder, "0", rows(range(20)))
    lay(folder, "1", rows(range(20, 40)))
    lay(folder, "2", CORRECTIONS)
    return folder


def ids(lake: Lake, name: str) -> list[int]:
    return sorted(pl.read_delta(lake.table(name))["id"].to_list())


def test_nothing_is_late_and_a_range_completes_by_what_was_known(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    stream = little_stream(source, time=BOTH)

    done = capture(spark, lake, stream)

    assert (done.fed, done.records, done.late) == (42, 42, {})
    assert done.frontier == [[3, "0001-01-01T00:00:00.000000Z"]]
    tape = open_tape(lake, "little")
    assert tape.time_type.names == ("epoch", "event")
    verification = verify(spark, lake, tape, deep=True)
    assert verification.valid
    assert [worker.label for worker in verification.workers] == ["a", "b", "c", "d"]
    times = pl.read_delta(tape.paths.records).select("batch", pl.col("time").struct.field("epoch"))
    assert (times["batch"] == times["epoch"]).all()

    until = "2024-05-01T05:00:00Z"
    with pytest.raises(IncompleteError) as open_still:
        replay(spark, lake, declared(stream), Request("little", "early", until=until))
    assert open_still.value.code == "CAP-INCOMPLETE"
    # Half an hour a row: ten rows lie before 05:00, known since the first micro-batch.
    then = Request("little", "early", until=until, known_at=1)
    assert replay(spark, lake, declared(stream), then).to_json()["records"] == 10
    assert ids(lake, "early") == list(range(10))
    now = replace(then, known_at=2)
    actual = replay(spark, lake, declared(stream), now).to_json()
    assert (actual["records"], actual["published"], actual["audit"]["passed"]) == (12, True, True)
    assert ids(lake, "early") == [*range(10), 100, 101]
    assert replay(spark, lake, declared(stream), now).unchanged


def test_under_a_bound_of_lateness_ranges_of_events_complete(
    spark: SparkSession, lake: Lake, source: Path
) -> None:
    time = replace(BOTH, lateness=2 * HOUR)
    stream = little_stream(source, time=time)

    done = capture(spark, lake, stream)

    # Number 39 is at 19:30.
    assert done.frontier == [[3, "2024-05-01T17:00:00.000000Z"]]
    assert done.late == {"late": 2}
    late = pl.read_delta(open_tape(lake, "little").paths.late)
    assert late["frontier"].to_list() == [[{"epoch": 2, "event": START + 17 * HOUR}]] * 2
    request = Request("little", "early", until="event=2024-05-01T17:00:00Z")
    assert replay(spark, lake, declared(stream), request).to_json()["records"] == 34
    assert ids(lake, "early") == list(range(34))


def test_an_advanced_record_keeps_its_epoch(spark: SparkSession, lake: Lake, source: Path) -> None:
    time = replace(BOTH, lateness=2 * HOUR)
    stream = little_stream(source, time=time, late=LatePolicy.ADVANCE)

    assert capture(spark, lake, stream).records == 42

    tape = open_tape(lake, "little")
    stored = pl.read_delta(tape.paths.records).filter(pl.col("batch") == 2)
    assert stored["time"].to_list() == [{"epoch": 2, "event": START + 17 * HOUR}] * 2
    assert verify(spark, lake, tape, deep=True).valid
    # A followed replay goes on by a frontier of both coordinates: no epoch that is over returns.
    followed = Request("little", "all", follow="nightly")
    assert replay(spark, lake, declared(stream), followed).to_json()["records"] == 42
    lay(source, "3", rows(range(40, 60)))
    capture(spark, lake, stream)
    assert replay(spark, lake, declared(stream), followed).to_json()["records"] == 20
    assert len(ids(lake, "all")) == 62
