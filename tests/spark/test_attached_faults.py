"""Queries of the user's that cannot be recorded, or that end in the midst of it."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkConf
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import capstan
from capstan.capture.batch import checkpoint_guard
from capstan.cli import main
from capstan.telemetry import instrumentation
from tests.support.attached_job import ORDERS, Job, finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DECLARED = """
streams:
  orders:
    source: %s
    workers: {by: key, columns: [customer], count: 2}
    time: {domain: event, column: at, every: 1 hour, lateness: 1 hour}
"""


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def test_of_two_queries_that_begin_at_once_one_is_the_writer(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.arrive("a", (1, "ann", "10:10"), (2, "bob", "10:20"))
    # Either finds a tape without a writer.
    both, placed = threading.Barrier(2, timeout=60), checkpoint_guard._placed

    def place(*arguments: Any) -> checkpoint_guard.Checkpoint:
        both.wait()
        return placed(*arguments)

    monkeypatch.setattr(checkpoint_guard, "_placed", place)
    queries = {name: job.start(name) for name in ("-one", "-two")}
    for query in queries.values():
        with suppress(StreamingQueryException):
            finish(query)
    failed = [name for name, query in queries.items() if query.exception() is not None]
    (refused,) = failed
    assert "CAP-CHECKPOINT" in str(queries[refused].exception())
    job.arrive("b", (3, "ann", "11:10"))
    (writer,) = set(queries) - {refused}
    job.run(writer)
    with pytest.raises(StreamingQueryException, match="CAP-CHECKPOINT"):
        job.run(refused)
    assert job.numbers() == [1, 2, 3]
    assert job.is_sound()


def test_a_query_without_a_checkpoint_is_refused(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    query = job.frame().writeStream.foreachBatch(job.into()).start()
    with pytest.raises(StreamingQueryException, match="CAP-CHECKPOINT.* has no checkpoint"):
        finish(query)
    assert job.lake.streams() == []


def test_a_checkpoint_that_each_start_takes_anew_is_refused(job: Job, tmp_path: Path) -> None:
    job.spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    job.arrive("a", (1, "ann", "10:10"))
    query = job.frame().writeStream.foreachBatch(job.into()).start()
    with pytest.raises(StreamingQueryException, match="CAP-CHECKPOINT.* has no checkpoint"):
        finish(query)
    assert job.lake.streams() == []
    # A query with a name continues in the folder of that name.
    for number in (1, 2):
        job.arrive(str(number), (number, "ann", "10:10"))
        writer = job.frame().where("id < 3").writeStream.queryName("orders")
        finish(writer.foreachBatch(job.into()).start())
    assert job.numbers() == [1, 1, 2]


def test_a_frame_that_is_given_again_is_recorded_once(job: Job) -> None:
    into, results = job.into(), []

    def record(frame: DataFrame, batch: int) -> None:
        for attempt in range(2):
            into(frame.where("id > 1"), batch)
            results.append((batch, attempt, into.last and into.last.records))

    job.arrive("a", (1, "ann", "10:10"), (2, "bob", "10:20"))
    job.arrive("b", (3, "ann", "11:10"))
    finish(job.start_with(record))
    assert results == [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)]
    assert job.numbers() == [2, 3]
    assert job.is_sound()


def test_threads_of_a_function_record_on_tapes_of_their_own(job: Job) -> None:
    into = {
        name: capstan.capture_into(name, lake=job.lake.root, **ORDERS) for name in ("ann", "bob")
    }

    def record(frame: DataFrame, batch: int) -> None:
        def share(name: str) -> None:
            into[name](frame.where(F.lower("customer") == name), batch)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(share, into))

    job.arrive("a", (1, "ann", "10:10"), (2, "bob", "10:20"))
    job.arrive("b", (3, "ann", "11:10"))
    finish(job.start_with(record))
    rows = capstan.Context(job.lake.root).streams().rows
    counts = {row["stream"]: row["records"] for row in rows if row["captured"]}
    assert counts == {"ann": 2, "bob": 1}


def test_what_is_available_now_is_recorded_once(job: Job) -> None:
    other = Job(job.spark, job.checkpoint.parent / "other")
    union = job.frame().unionByName(other.frame())
    job.arrive("a", (1, "ann", "10:10"))
    other.arrive("b", (2, "bob", "10:20"))
    for number in (3, 4, 5):
        job.start_with(job.into(), frame=union, availableNow=True).awaitTermination()
        # In turns, so that one of the sources has nothing new.
        (job, other)[number % 2].arrive(f"{number}", (number, "ann", f"1{number}:10"))
        assert job.numbers() == list(range(1, number))
    assert job.is_sound()


def test_a_frame_that_does_not_fit_makes_no_tape(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    frames = {
        "CAP-TIME-COLUMN.* at is not in the source": job.frame().drop("at"),
        "CAP-TIME-COLUMN.* at is integer": job.frame().withColumn("at", F.lit(1)),
        "CAP-COLUMN.* from column customer": job.frame().drop("customer"),
        "CAP-COLUMN.* Capstan uses that name": job.frame().withColumn("_time", F.lit(1)),
        "CAP-TYPE": job.frame().withColumn("more", F.expr("INTERVAL '1' DAY")),
    }
    for number, (problem, frame) in enumerate(frames.items()):
        with pytest.raises(StreamingQueryException, match=problem):
            job.run(str(number), frame)
    assert job.lake.streams() == []


def test_a_lake_that_is_missing_is_made_for_a_new_query_alone(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    lake, aside = Path(job.lake.root), Path(f"{job.lake.root}-unmounted")
    lake.rename(aside)
    job.arrive("b", (2, "bob", "11:10"))
    with pytest.raises(StreamingQueryException, match="CAP-LAKE.* is at batch 1 already"):
        job.run()
    assert not lake.exists()
    aside.rename(lake)
    job.run()
    assert job.numbers() == [1, 2]
    assert job.is_sound()


def test_a_lake_that_goes_while_a_query_runs_ends_it(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    query = job.start()
    query.processAllAvailable()
    shutil.rmtree(job.lake.root)
    job.arrive("b", (2, "bob", "11:10"))
    with pytest.raises(StreamingQueryException, match="CAP-TABLE"):
        finish(query)
    assert not Path(job.lake.root).exists()


def test_a_session_without_delta_is_told_what_it_lacks(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    bare = SparkConf(loadDefaults=False)
    monkeypatch.setattr(job.spark.sparkContext, "getConf", lambda: bare)
    with pytest.raises(StreamingQueryException, match="CAP-DELTA") as refused:
        job.run()
    assert "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension" in str(refused.value)
    assert job.lake.streams() == []


@pytest.mark.parametrize("point", ["begin", "claim", "records", "events"])
def test_a_query_that_is_stopped_in_the_midst_goes_on(job: Job, point: str) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    job.arrive("b", (2, "bob", "11:10"), (3, "ann", "08:10"))
    job.arrive("c", (4, "ann", "12:10"))
    into, reached = job.into(), threading.Event()

    def stop(name: str, _: dict[str, object]) -> None:
        if name == f"capture.{point}" and not reached.is_set():
            reached.set()
            threading.Thread(target=query.stop).start()
            # Spark cancels jobs, but waits for Python.
            query.awaitTermination(1)

    query = job.start_with(into)
    with instrumentation.subscribe(stop):
        assert reached.wait(60)
        query.awaitTermination()
    # With the function of before, and with a new one.
    finish(job.start_with(into))
    job.arrive("d", (5, "bob", "13:10"))
    job.run()
    assert job.numbers() == [1, 2, 4, 5]
    [row] = [row for row in capstan.Context(job.lake.root).streams().rows if row["captured"]]
    assert (row["records"], row["late"]) == (4, 1)
    assert job.is_sound()


def test_a_function_of_the_callers_that_fails_later_records_once(job: Job) -> None:
    into, tries = job.into(), []

    def record(frame: DataFrame, batch: int) -> None:
        kept = frame.persist()
        into(kept, batch)
        kept.unpersist()
        tries.append(batch)
        if len(tries) == 1:
            raise RuntimeError("the user's own part")

    job.arrive("a", (1, "ann", "10:10"))
    with pytest.raises(StreamingQueryException, match="own part"):
        finish(job.start_with(record))
    job.arrive("b", (2, "bob", "11:10"))
    finish(job.start_with(record))
    assert tries == [0, 0, 1]
    assert job.numbers() == [1, 2]
    assert job.is_sound()


def test_a_second_frame_of_a_batch_is_refused(job: Job) -> None:
    once, again = job.into(), job.into()

    def both(frame: DataFrame, batch: int) -> None:
        once(frame.where("id = 1"), batch)
        again(frame.where("id <> 1"), batch)

    job.arrive("a", (1, "ann", "10:10"), (2, "bob", "10:20"))
    with pytest.raises(StreamingQueryException, match="CAP-REQUEST.* called twice for batch 0"):
        finish(job.start_with(both))
    with pytest.raises(StreamingQueryException, match="CAP-REQUEST.* query is at batch 0"):
        finish(job.start_with(lambda frame, batch: job.into()(frame, batch + 1), "-other"))
    assert job.numbers() == [1]


def test_batches_without_rows_come_before_the_first_worker(job: Job) -> None:
    places = {"by": "column", "column": "customer"}
    job.arrive("a", (-1, "ann", "10:10"))
    job.run(workers=places)
    job.arrive("b", (-2, "ann", "10:20"))
    job.arrive("c", (3, "ann", "10:30"))
    job.run(workers=places)
    job.arrive("d", (4, "bob", "10:40"))
    job.run(workers=places)
    assert job.numbers() == [3, 4]
    assert job.is_sound()


def test_the_frame_means_what_it_means_in_the_callers_session(job: Job) -> None:
    day = F.date_format(F.date_trunc("day", "at"), "yyyy-MM-dd")
    text = F.to_timestamp(F.lit("2024-05-01 00:00:00"))
    frame = job.frame().withColumn("day", day).withColumn("from", text)
    # In New York it is the evening before.
    job.arrive("a", (1, "ann", "02:00"))
    job.run(frame=frame)
    rows = job.spark.read.format("delta").load(job.lake.stream("orders").records)
    (row,) = rows.select("data.day", F.unix_seconds("data.from").alias("from")).collect()
    assert (row["day"], row["from"]) == ("2024-04-30", 1_714_536_000)


def test_a_stream_of_a_query_is_not_compared_with_a_source(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    config = tmp_path / "streams.yaml"
    words = ["--lake", job.lake.root, "--config", str(config), "--json", "verify", "orders"]
    source = "{format: json, path: /orders}"
    for declared in ("streams: {}", DECLARED % "{format: query}", DECLARED % source):
        config.write_text(declared, encoding="utf-8")
        assert main([*words, "--source"]) == 2
        error = json.loads(capsys.readouterr().out)
        assert error["error"] == "CAP-NO-FEED"
        assert "only the query knows which rows it makes of its sources" in error["message"]
        assert "--deep compares all records" in error["hint"]
    # What is neither declared nor recorded by a query is told to be unknown.
    assert main([*words[:-1], "others", "--source"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "CAP-STREAM"
