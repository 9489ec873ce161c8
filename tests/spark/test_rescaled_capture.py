"""A capture that is rescaled: workers close, others open, and every law holds across the change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest
from pyspark.errors import StreamingQueryException

from capstan.capture.batch import classify, micro_batch
from capstan.capture.batch.roster import next_worker_number
from capstan.capture.run import capture
from capstan.core.config import ByColumn, ByKey
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.feed import Consumed
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.telemetry import instrumentation
from capstan.verify import verify
from tests.support import lake_contents
from tests.support.sample_streams import HOUR, START, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from capstan.core.config import Stream


def by_key(source: Path, count: int) -> Stream:
    return little_stream(source, workers=ByKey(by="key", columns=("place", "id"), count=count))


@pytest.fixture(scope="module")
def rescaled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Path]:
    """A stream of 4 workers that was rescaled to 6 and captured on, and then to 2."""
    root = tmp_path_factory.mktemp("rescaled")
    lake, source = Lake.at(root / "lake"), root / "source"
    lay(source, "0", rows(range(40)))
    capture(spark, lake, by_key(source, 4))
    lay(source, "1", rows(range(40, 80)))
    done = capture(spark, lake, by_key(source, 6), rescale=6)
    assert (done.batches, done.fed, done.late) == (1, 40, {})
    capture(spark, lake, by_key(source, 2), rescale=2)
    lay(source, "2", [*rows(range(80, 120)), (500, "b", START, 1, "came late")])
    done = capture(spark, lake, by_key(source, 2))
    assert (done.batches, done.fed, done.late) == (1, 41, {"late": 1})
    return lake, source


def test_old_workers_are_closed_and_new_ones_go_on(spark: SparkSession, rescaled) -> None:
    lake, _ = rescaled
    tape = open_tape(lake, "little")
    states = index.worker_states(tape, newest_cut(tape))
    assert [state.label for state in states] == [str(n) for n in range(12)]
    assert [state.worker for state in states if not state.closed] == [10, 11]
    actual = verify(spark, lake, tape, deep=True)
    assert actual.valid
    assert sum(worker.records for worker in actual.workers) == 120
    # In each rescale all that closes and all that opens stands in one commit.
    events = pl.read_delta(tape.paths.events)
    changed = events.group_by("commit").agg(pl.col("worker").sort()).sort("commit")["worker"]
    assert changed[1].to_list() == list(range(10))
    assert changed[3].to_list() == list(range(4, 12))


def test_the_frontier_never_moves_back(rescaled) -> None:
    tape = open_tape(rescaled[0], "little")
    before: tuple[int, ...] = ()
    for commit in range(newest_cut(tape).commit + 1):
        states = index.worker_states(tape, index.find_cut(tape, commit))
        (now,) = index.frontier_of(tape, states).elements
        assert tuple(now) >= before
        before = tuple(now)


def test_a_key_keeps_its_worker_between_two_rescales(rescaled) -> None:
    records = pl.read_delta(open_tape(rescaled[0], "little").paths.records)
    by_batch = {0: range(4), 2: range(4, 10), 4: range(10, 12)}
    for batch, workers in by_batch.items():
        actual = set(records.filter(pl.col("batch") == batch)["worker"])
        assert actual <= set(workers)
        assert len(actual) > 1


def test_a_replay_over_the_change_has_every_record_once(spark: SparkSession, rescaled) -> None:
    lake, source = rescaled
    outcome = replay(
        spark, lake, declared(by_key(source, 2)), Request("little", "all", partial=True)
    )
    assert outcome.certificate.audit["passed"]
    actual = pl.read_delta(lake.table("all"))
    ids = sorted(actual["id"].to_list())
    # The last two hours are not complete, as lateness says.
    assert ids == list(range(len(ids)))
    assert len(ids) > 80
    assert set(actual["_worker"]) <= set(range(12))


def test_batches_are_numbered_on_and_the_feed_says_what_they_are(rescaled) -> None:
    lake, source = rescaled
    feed = pl.read_delta(lake.stream("little").feed).sort("batch")
    assert feed.select("batch", "origin", "number").rows() == [
        (0, "capture", 0),
        (1, "rescale", None),
        (2, "capture", 1),
        (3, "rescale", None),
        (4, "capture", 2),
    ]
    rescales = feed.filter(pl.col("origin") == "rescale")
    assert [json.loads(text) for text in rescales["detail"]] == [
        {"count": 6, "first": 4, "was": 4},
        {"count": 2, "first": 10, "was": 6},
    ]
    files = [[path.rpartition("/")[2] for path in paths] for paths in feed["files"].drop_nulls()]
    assert files == [["0.parquet"], ["1.parquet"], ["2.parquet"]]
    assert sorted(path.stem for path in source.iterdir()) == ["0", "1", "2"]


def test_a_number_that_nobody_asked_for_is_refused(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    lay(source, "0", rows(range(12)))
    capture(spark, lake, by_key(source, 2))
    before = lake_contents.tape(lake)
    for stream, rescale, printed in (
        (by_key(source, 3), None, "has 2 workers, but is declared with 3"),
        (by_key(source, 3), 4, "to 4 workers: it is declared with 3 workers"),
        (little_stream(source), 3, "declared with workers that are not by key"),
    ):
        with pytest.raises(InvalidRequestError, match="CAP-RESCALE.*" + printed):
            capture(spark, lake, stream, rescale=rescale)
    # The key itself, and how workers are told apart, never change.
    other = replace(by_key(source, 3), workers=ByKey(by="key", columns=("id",), count=3))
    for stream in (other, little_stream(source, workers=ByColumn("place"))):
        with pytest.raises(InvalidRequestError, match="CAP-DECLARED"):
            capture(spark, lake, stream)
    assert lake_contents.tape(lake) == before
    # As many as there are is no change.
    assert capture(spark, lake, by_key(source, 2), rescale=2).batches == 0
    assert lake_contents.tape(lake) == before


def test_workers_left_by_a_killed_batch_are_closed(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    lay(source, "0", rows(range(40)))

    def cut_off(point: str, _: dict[str, object]) -> None:
        if point == "capture.workers":
            raise InterruptedError

    with instrumentation.subscribe(cut_off), pytest.raises(StreamingQueryException):
        capture(spark, lake, by_key(source, 2))
    # Its checkpoint is lost before any of its events is there.
    (source / "0.parquet").unlink()
    capture(spark, lake, by_key(source, 2), reseat=True)
    lay(source, "1", rows(range(40)))

    assert capture(spark, lake, by_key(source, 3), rescale=3).records == 40

    tape = open_tape(lake, "little")
    states = index.worker_states(tape, newest_cut(tape))
    assert [state.closed for state in states] == [True, True, False, False, False]
    (frontier,) = index.frontier_of(tape, states).elements
    assert tuple(frontier) > tuple(tape.time_type.minimum)
    assert verify(spark, lake, tape, deep=True).valid


def test_too_many_workers_are_refused_before_writing(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    lay(source, "0", rows(range(12)))
    stream = little_stream(source)
    monkeypatch.setattr("capstan.capture.batch.roster.MAX_WORKERS", 4)
    monkeypatch.setattr(micro_batch, "MAX_WORKERS", 4)
    capture(spark, lake, stream)
    before = lake_contents.tape(lake), lake_contents.feed(lake)
    others = [(n, f"place {n}", START + 10 * HOUR, n, None) for n in range(50)]
    lay(source, "1", [*others, (51, None, START, 1, None)])

    with pytest.raises(
        InvalidRequestError, match="CAP-WORKERS.*column place has more than 4 values"
    ):
        capture(spark, lake, stream)

    assert (lake_contents.tape(lake), lake_contents.feed(lake)) == before
    assert next_worker_number(open_tape(lake, "little")) == 3
    prepared = classify.prepare(spark.read.parquet(str(source)), stream)
    actual = micro_batch.scan_batch(prepared, stream, [Consumed()], ())
    assert actual is not None
    assert len(actual.labels) == 5
    # As the error says, those that may come can be named; the same batch ends by that.
    named = replace(stream, workers=ByColumn("place", ("a", "b", "c")))
    done = capture(spark, lake, named)
    assert (done.batches, done.records, done.late) == (1, 0, {"unknown-worker": 51})
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid
