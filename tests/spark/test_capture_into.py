"""Streams that a streaming query of the user's records by `capture_into`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import capstan
from capstan.capture.query.source_reconciliation import reconcile
from capstan.capture.run import close, put_back
from capstan.errors import InvalidRequestError
from capstan.storage.tape.tape import open_tape
from tests.support.airflow_api import until
from tests.support.attached_job import ORDERS, ZONE, Job, finish
from tests.support.docs import blocks, page

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def test_a_restarted_query_records_each_row_once(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"), (2, "bob", "10:20"), (-3, "cid", "10:30"))
    job.arrive("b", (4, "ann", "12:30"))
    job.run()
    job.arrive("c", (5, "bob", "13:30"), (6, "dan", "09:30"))
    job.run()
    job.run()
    assert job.recorded() == [(1, "10:10"), (2, "10:20"), (4, "12:30"), (5, "13:30")]
    assert job.is_sound()
    [row] = [row for row in capstan.Context(job.lake.root).streams().rows if row["captured"]]
    assert (row["stream"], row["records"], row["late"]) == ("orders", 4, 1)
    assert job.spark.conf.get("spark.sql.session.timeZone") == ZONE


def test_another_query_is_refused_until_it_replaces_the_first(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    with pytest.raises(StreamingQueryException, match="CAP-CHECKPOINT"):
        job.run("-other")
    assert job.recorded() == [(1, "10:10")]
    (job.source / "a.json").unlink()
    job.arrive("b", (2, "bob", "11:10"))
    job.run("-new", reseat=True)
    job.arrive("c", (3, "bob", "12:10"))
    # What has replaced the first query goes on; the first one may not come back.
    job.run("-new", reseat=True)
    with pytest.raises(StreamingQueryException, match="replaced by that one"):
        job.run(reseat=True)
    assert job.recorded() == [(1, "10:10"), (2, "11:10"), (3, "12:10")]
    assert job.is_sound()


def test_late_records_are_put_back_while_the_query_runs(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    job.arrive("b", (2, "ann", "14:10"))
    query = job.start()
    try:
        job.arrive("c", (3, "ann", "10:30"))
        query.processAllAvailable()
        assert [row[0] for row in job.recorded()] == [1, 2]
        assert put_back(job.spark, job.lake, "orders").records == 1
        job.arrive("d", (4, "bob", "15:10"))
        query.processAllAvailable()
    finally:
        query.stop()
    assert [row[0] for row in job.recorded()] == [1, 2, 3, 4]
    assert job.is_sound()


def test_outside_of_a_query_it_is_refused(job: Job) -> None:
    into = capstan.capture_into("orders", lake=job.lake.root, **ORDERS)
    with pytest.raises(InvalidRequestError, match="outside of a streaming query"):
        into(job.spark.range(1), 0)
    assert job.lake.streams() == []


def test_a_restored_checkpoint_repeats_no_batch(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    job.back_up()
    job.arrive("b", (2, "bob", "11:10"))
    job.arrive("c", (3, "ann", "12:10"))
    job.run()
    before = job.version()
    job.restore()
    job.run()
    assert job.version() == before
    job.arrive("d", (4, "bob", "13:10"))
    job.run()
    assert job.numbers() == [1, 2, 3, 4]
    assert job.is_sound()


def test_a_restored_checkpoint_with_another_batch_is_refused(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    job.back_up()
    job.arrive("b", (2, "bob", "11:10"))
    job.run()
    job.restore()
    # The query takes another file for the batch whose number is on tape.
    (job.source / "b.json").unlink()
    job.arrive("c", (3, "ann", "12:10"))
    before = job.version()
    with pytest.raises(StreamingQueryException, match="with other input than batch 1 on the tape"):
        job.run()
    assert job.version() == before
    assert job.numbers() == [1, 2]


def test_operators_keep_their_state_over_repeated_batches(job: Job) -> None:
    def once() -> DataFrame:
        return job.frame().withWatermark("at", "1 day").dropDuplicatesWithinWatermark(["id"])

    job.arrive("a", (1, "ann", "10:10"))
    job.run(frame=once())
    job.back_up()
    job.arrive("b", (2, "bob", "11:10"))
    job.run(frame=once())
    job.restore()
    job.run(frame=once())
    job.arrive("c", (2, "bob", "11:10"), (3, "ann", "11:20"))
    job.run(frame=once())
    assert job.numbers() == [1, 2, 3]
    assert job.is_sound()


def test_batches_that_were_not_recorded_are_missed(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    job.arrive("b", (2, "ann", "11:10"))
    finish(job.start_with(lambda frame, _: frame.collect()))
    job.arrive("c", (3, "ann", "12:10"))
    with pytest.raises(StreamingQueryException, match="is at batch 2, but the tape is at batch 0"):
        job.run()
    assert job.numbers() == [1]


def test_a_query_with_a_past_takes_over_after_inserted_batches(job: Job) -> None:
    for number in range(1, 4):
        job.arrive(str(number), (number, "ann", f"1{number}:10"))
    job.run()
    for name in ("late", "later"):
        job.arrive(name, (9, "ann", "10:05"))
        job.run()
        assert put_back(job.spark, job.lake, "orders").records == 1
        (job.source / f"{name}.json").unlink()
    finish(job.start_with(lambda frame, _: frame.collect(), "-other"))
    job.arrive("a", (4, "ann", "14:10"))
    job.run("-other", reseat=True)
    job.arrive("b", (5, "ann", "15:10"))
    job.run("-other")
    assert job.numbers() == [1, 2, 3, 4, 5, 9, 9]
    assert job.is_sound()


def test_new_columns_and_workers_are_taken_between_two_runs(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    wider = job.frame().withColumn("channel", F.lit("web"))
    job.arrive("b", (2, "bob", "11:10"))
    job.run(frame=wider)
    three = {**ORDERS["workers"], "count": 3}
    job.arrive("c", (3, "ann", "12:10"))
    with pytest.raises(StreamingQueryException, match="CAP-RESCALE"):
        job.run(frame=wider, workers=three)
    job.run(frame=wider, workers=three, rescale=3)
    job.arrive("d", (4, "ann", "13:10"))
    job.run(frame=wider, workers=three, rescale=3)
    assert job.numbers() == [1, 2, 3, 4]
    assert job.is_sound()
    with pytest.raises(StreamingQueryException, match="CAP-SCHEMA"):
        job.arrive("e", (5, "ann", "14:10"))
        job.run(frame=job.frame().withColumn("id", F.lit("text")), workers=three)


def test_a_closed_stream_takes_no_more(job: Job) -> None:
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    close(job.spark, job.lake, "orders")
    job.arrive("b", (2, "bob", "11:10"))
    with pytest.raises(StreamingQueryException, match="CAP-CLOSED"):
        job.run()
    assert job.numbers() == [1]


def test_a_query_without_new_records_advances_idle_workers(job: Job) -> None:
    job.spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "200")
    time = {**ORDERS["time"], "every": "1 second", "lateness": "1 second", "idle_after": "1 second"}
    job.arrive("a", (1, "ann", "10:10"))
    query = job.start(time=time)
    try:
        query.processAllAvailable()
        first = job.version()
        until(lambda: job.version() > first or None, 60)
        # It is the query's next batch, whatever has been inserted.
        job.arrive("b", (2, "ann", "10:20"))
        query.processAllAvailable()
    finally:
        query.stop()
    assert job.numbers() == [1]
    [row] = [row for row in capstan.Context(job.lake.root).streams().rows if row["captured"]]
    assert row["late"] == 1
    assert job.is_sound()


def test_a_function_of_the_callers_records_on_two_tapes(job: Job) -> None:
    into = {
        name: capstan.capture_into(name, lake=job.lake.root, **ORDERS) for name in ("ann", "rest")
    }

    def record(frame: DataFrame, batch: int) -> None:
        is_ann = F.col("customer") == "ANN"
        into["ann"](frame.where(is_ann), batch)
        into["rest"](frame.where(~is_ann), batch)

    job.arrive("a", (1, "ann", "10:10"), (2, "bob", "10:20"))
    finish(job.start_with(record))
    job.arrive("b", (3, "ann", "11:10"))
    finish(job.start_with(record))
    rows = capstan.Context(job.lake.root).streams().rows
    counts = {row["stream"]: row["records"] for row in rows if row["captured"]}
    assert counts == {"ann": 2, "rest": 1}


def test_the_example_of_the_documentation_runs(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job.arrive("a", (1, "ann", "10:10"), (2, "bob", "10:20"))
    (program,) = blocks(page("attach"), "python")
    made: dict[str, Any] = {"orders": job.frame().withColumnRenamed("at", "ordered_at")}
    # The JVM, which may be older than this test, has another working folder.
    exec(program.replace('"./checkpoints', f'"{tmp_path}/checkpoints'), made)
    finish(made["query"])
    assert job.numbers() == [1, 2]
    (declaration,) = blocks(page("attach"), "yaml")
    config = tmp_path / "streams.yaml"
    config.write_text(declaration, encoding="utf-8")
    into = capstan.capture_into("orders", config=config)
    assert into.stream == made["into"].stream


def declare(folder: Path, source: str) -> Path:
    path = folder / "streams.yaml"
    path.write_text(
        f"""
streams:
  orders:
    source: {source}
    workers: {{by: key, columns: [customer], count: 2}}
    time: {{domain: event, column: at, every: 1 hour, lateness: 1 hour}}
"""
    )
    return path


def test_a_declaration_must_agree(tmp_path: Path) -> None:
    config = declare(tmp_path, "{format: query}")
    declared = capstan.capture_into("orders", lake=tmp_path, config=config)
    assert capstan.capture_into("orders", lake=tmp_path, config=config, **ORDERS).stream == (
        declared.stream
    )
    three = {**ORDERS["workers"], "count": 3}
    with pytest.raises(InvalidRequestError, match="workers.count 3, but is declared with 2"):
        capstan.capture_into("orders", lake=tmp_path, config=config, workers=three)
    with pytest.raises(InvalidRequestError, match="late fail, but is declared with dead-letter"):
        capstan.capture_into("orders", lake=tmp_path, config=config, late="fail")
    with pytest.raises(InvalidRequestError, match="workers"):
        capstan.capture_into("others", lake=tmp_path, config=config)
    other = declare(tmp_path, "{format: rate}")
    with pytest.raises(InvalidRequestError, match="declared with a source of its own"):
        capstan.capture_into("orders", lake=tmp_path, config=other)


def test_a_frame_is_captured_like_a_declared_source(job: Job, tmp_path: Path) -> None:
    config = declare(tmp_path, "{format: query}")
    job.arrive("a", (1, "ann", "10:10"), (2, "bob", "10:20"))
    job.arrive("b", (3, "ann", "12:30"))
    context = capstan.Context(job.lake.root, config=config, spark=job.spark)
    result = context.capture("orders", frame=job.frame())
    assert (result.batches, result.records) == (2, 3)
    job.arrive("c", (4, "ann", "13:30"))
    assert context.capture("orders", frame=job.frame()).records == 1
    assert job.recorded() == [(1, "10:10"), (2, "10:20"), (3, "12:30"), (4, "13:30")]
    assert job.spark.conf.get("spark.sql.session.timeZone") == ZONE
    # A query of its own would write to the same tape by another checkpoint.
    with pytest.raises(StreamingQueryException, match="CAP-CHECKPOINT"):
        job.run()


def test_what_only_the_query_knows_is_refused_by_name(job: Job, tmp_path: Path) -> None:
    config = declare(tmp_path, "{format: query}")
    job.arrive("a", (1, "ann", "10:10"))
    job.run()
    context = capstan.Context(job.lake.root, config=config, spark=job.spark)
    assert context.capture("orders").batches == 0
    with pytest.raises(InvalidRequestError, match="which alone can replace its checkpoint"):
        context.capture("orders", reseat=True)
    with pytest.raises(InvalidRequestError, match="is recorded by a query of its own"):
        context.capture("orders", frame=job.frame())
    stream = context.declarations.stream("orders")
    with pytest.raises(InvalidRequestError, match="only the query knows which rows") as refused:
        reconcile(job.spark, open_tape(job.lake, "orders"), stream)
    assert refused.value.code == "CAP-NO-FEED"
    assert job.numbers() == [1]
