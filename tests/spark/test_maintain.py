"""Maintenance: what it writes anew, what it leaves, and that no answer changes by it."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from capstan.api.context import Context
from capstan.capture.run import capture
from capstan.cli import main
from capstan.errors import SystemFailureError
from capstan.errors.translation import to_capstan_error
from capstan.jobs import handlers
from capstan.maintenance import cleanup
from capstan.maintenance.cleanup import vacuum
from capstan.maintenance.compact_records import compact_records
from capstan.maintenance.compaction import compact_table
from capstan.maintenance.retire import retire
from capstan.maintenance.run import maintain
from capstan.storage.compaction.growing_tables import files_of, index_tables, ledger_tables
from capstan.storage.compaction.merging import PART_ROWS
from capstan.storage.compaction.policy import INDEX
from capstan.storage.delta import arrow_writer
from capstan.storage.delta.arrow_writer import LOG, retention_of
from capstan.storage.lake import Lake
from capstan.storage.tape.feed import BatchEntry, Origin, register_batch, synthetic_batches
from capstan.storage.tape.tape import newest_cut
from capstan.telemetry import instrumentation
from capstan.verify import verify
from capstan.verify.verified_ledger import load_verified
from capstan.verify.violations_ledger import known_violations
from tests.bench.counters import Scan, Watch, commits
from tests.support import lake_contents
from tests.support import sample_streams as little
from tests.support.bulk_tapes import lay_compacted_runs
from tests.support.jvmless_lake import Books
from tests.support.sixteen_workers import KIB, NAME, ROWS, SIZES, Sixteen, make
from tests.support.work_between import Between

BATCHES = 6
DAY = 86_400


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Sixteen:
    return make(spark, tmp_path_factory.mktemp("maintain"), BATCHES)


@pytest.fixture(scope="module")
def unkept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Sixteen:
    """Four days on tape as they were captured; not to be changed."""
    return make(spark, tmp_path_factory.mktemp("unkept"), 4)


def read(made: Sixteen, into: str, **asked: object) -> Scan:
    """What a replay into a new table reads of the records."""
    with Watch(made.spark) as watch:
        assert made.replay(into, **asked).certificate.published
    (scan,) = watch.scans(made.tape.paths.records)
    return scan


def rows(made: Sixteen, table: str) -> list[str]:
    actual = lake_contents.rows(made.lake.table(table))
    assert actual
    return actual


@pytest.mark.nightly
def test_one_worker_of_sixteen_reads_a_sixteenth(made: Sixteen) -> None:
    before = lake_contents.tape(made.lake, NAME)
    until = {"until": f"2020-01-{BATCHES:02}"}
    whole = read(made, "all_before", **until)
    one = read(made, "one_before", workers=("3",), **until)
    assert one.bytes > whole.bytes / 2
    assert verify(made.spark, made.lake, made.tape).valid

    done = maintain(made.spark, made.lake, [NAME], sizes=SIZES)
    records, *_ = done.tables[NAME]
    assert done.refusal is None
    # The last hours can still receive records: their batch waits. All else is written once.
    assert records.files_before == BATCHES
    assert abs(records.rewritten / whole.bytes - 1) < 0.01
    assert lake_contents.tape(made.lake, NAME) == before
    after = read(made, "all_after", **until)
    clustered = read(made, "one_after", workers=("3",), **until)
    assert after.files == records.files - 1
    assert clustered.bytes * 12 <= after.bytes
    # Of a worker's files those of other times are left out too.
    day = read(made, "day_after", workers=("3",), since="2020-01-02", until="2020-01-03")
    assert day.files < clustered.files
    assert rows(made, "one_after") == rows(made, "one_before")
    assert rows(made, "all_after") == rows(made, "all_before")
    with Watch(made.spark) as watch:
        assert verify(made.spark, made.lake, made.tape).valid
    assert watch.jobs == 0
    assert verify(made.spark, made.lake, made.tape, deep=True, remember=False).valid


def test_a_second_maintenance_changes_nothing(made: Sixteen) -> None:
    maintain(made.spark, made.lake, [NAME], sizes=SIZES)
    known = sorted(Path(made.lake.root).rglob("*"))
    again = maintain(made.spark, made.lake, [NAME], sizes=SIZES).to_json()
    assert (again["rewritten"], again["vacuumed"]) == (0, 0)
    assert sorted(Path(made.lake.root).rglob("*")) == known


def test_the_feed_keeps_its_rows_where_they_belong(unkept: Sixteen, tmp_path: Path) -> None:
    made = unkept.copied(tmp_path)
    [feed] = [table for table in index_tables(made.tape) if table.name == "feed"]
    for batch, origin in ((4, Origin.IDLE), (5, Origin.CAPTURE)):
        register_batch(made.tape, BatchEntry(batch, origin))
    rows = lake_contents.rows(feed.path)

    done = compact_table(made.spark, replace(feed, sizes=SIZES), ended=True)

    assert done.files < done.files_before
    assert lake_contents.rows(feed.path) == rows
    assert [item.batch for item in synthetic_batches(made.tape)] == [4]
    # Rows of another origin stay in files of their own, however often it is looked at.
    again = compact_table(made.spark, replace(feed, sizes=SIZES), ended=True)
    assert (again.rewritten, again.files) == (0, done.files)


@pytest.mark.nightly
def test_a_table_that_is_followed_tells_nothing_new(made: Sixteen, tmp_path: Path) -> None:
    made.lay(BATCHES)
    made.capture()

    def new(table: str) -> int:
        query = (
            made.spark.readStream.format("delta")
            .load(table)
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / Path(table).name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(item["numInputRows"] for item in query.recentProgress)

    paths = made.tape.paths
    assert new(paths.records) == (BATCHES + 1) * ROWS
    assert new(paths.events) > 0
    done = maintain(made.spark, made.lake, [NAME], sizes=replace(SIZES, many=1, full=KIB, share=1))
    assert done.tables[NAME][0].rewritten > 0
    compact_table(made.spark, replace(index_tables(made.tape)[0], sizes=SIZES))
    assert (new(paths.records), new(paths.events)) == (0, 0)


def test_others_commit_while_maintenance_is_about_to(spark: SparkSession, tmp_path: Path) -> None:
    made = make(spark, tmp_path, 3)
    requested = {"follow": "f"}

    def capture_and_follow() -> None:
        made.lay(3)
        made.capture()
        assert made.replay("copy", **requested).certificate.published

    def the_same_again() -> None:
        assert maintain(spark, made.lake, [NAME], sizes=SIZES).to_json()["rewritten"] > 0

    for work, more in ((capture_and_follow, True), (the_same_again, False)):
        if not more:
            made.lay(4)
            made.lay(5)
            made.capture()
        between = Between("maintain.written", work)
        with instrumentation.subscribe(between):
            actual = compact_records(spark, made.lake, made.tape, SIZES)
        assert between.done
        # Of two that take the same files one lands, and the other finds nothing left to do.
        assert (actual.rewritten > 0) == more
    assert verify(spark, made.lake, made.tape, deep=True).valid
    tape = lake_contents.tape(made.lake, NAME)
    assert len(tape["records"]) == 6 * ROWS
    made.replay("copy", **requested)
    made.replay("whole")
    assert rows(made, "copy") == rows(made, "whole")


def follow(made: Sixteen) -> None:
    for _ in range(3):
        made.replay("copy", follow="f")


def keep_up(made: Sixteen) -> None:
    for _ in range(2):
        done = maintain(made.spark, made.lake, [NAME], sizes=SIZES)
        # Others may take files of a table each time that it looks; that is told, and no failure.
        assert {item.code for item in done.busy} <= {"CAP-CONFLICT"}
        for table in (*index_tables(made.tape), *ledger_tables(made.lake)):
            compact_table(made.spark, replace(table, sizes=replace(INDEX, many=2)))


@pytest.mark.nightly
def test_capture_follow_and_maintain_at_once(spark: SparkSession, tmp_path: Path) -> None:
    made = make(spark, tmp_path, 2)
    failures: list[BaseException] = []

    def begin(work: Callable[[Sixteen], None]) -> threading.Thread:
        own = replace(made, spark=spark.newSession())

        def carry_out() -> None:
            try:
                work(own)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=carry_out)
        thread.start()
        return thread

    others = [begin(follow), begin(keep_up)]
    for day in range(2, 5):
        made.lay(day)
        made.capture()
    for thread in others:
        thread.join()
    assert failures == []
    made.replay("copy", follow="f")
    made.replay("whole")
    assert rows(made, "copy") == rows(made, "whole")
    assert len(lake_contents.tape(made.lake, NAME)["records"]) == 5 * ROWS
    assert verify(spark, made.lake, made.tape, deep=True).valid


def test_damaged_records_are_named_and_left_as_they_are(unkept: Sixteen, tmp_path: Path) -> None:
    made, spark = unkept.copied(tmp_path), unkept.spark
    path = made.tape.paths.records
    spark.sql(f"UPDATE delta.`{path}` SET data.text = 'x' WHERE batch = 1 AND data.id = 7")
    damaged = lake_contents.rows(path)
    known = commits(path)
    done = maintain(spark, made.lake, [NAME], sizes=SIZES)
    assert done.refusal is not None
    assert (done.refusal.code, done.refusal.exit_code) == ("CAP-TAPE", 1)
    assert done.tables[NAME][0].damaged == [(1, 1)]
    assert lake_contents.rows(path) == damaged
    # The batches around it were put together, each on its own side.
    assert len(commits(path) - known) == 2
    # All else was kept up.
    assert any(table.checkpoint for table in done.tables[NAME])


def test_maintenance_reports_violations_nobody_replayed(unkept: Sixteen, tmp_path: Path) -> None:
    made, spark = unkept.copied(tmp_path), unkept.spark
    events = spark.read.format("delta").load(made.tape.paths.events)
    last = events.where("worker = 3 AND kind = 'progress'").orderBy(F.desc("seq")).limit(1)
    # It moves nothing, and has not the number that is next.
    none = F.filter("updates", lambda _: F.lit(False))
    stray = last.withColumn("seq", F.col("seq") + 5).withColumn("updates", none)
    stray.write.format("delta").mode("append").save(made.tape.paths.events)

    done = maintain(spark, made.lake, [NAME], sizes=SIZES)

    refusal = done.refusal
    assert refusal is not None
    assert (refusal.code, refusal.exit_code, refusal.fields["worker"]) == ("CAP-VIOLATION", 1, 3)
    assert [item["error"] for item in done.to_json()["violations"]] == ["CAP-VIOLATION"]  # type: ignore[attr-defined]
    (known,) = known_violations(made.lake)
    assert (known.stream, known.worker, known.rule) == (NAME, 3, "seq")
    # What is sound is verified for good, and all else was kept up.
    assert set(load_verified(made.lake, made.tape, newest_cut(made.tape)).starts) == {
        *range(16)
    } - {3}
    assert done.tables[NAME][0].rewritten > 0


def test_a_tape_that_cannot_be_read_holds_up_no_other(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    for name in ("index", "payload", "whole"):
        little.lay_in(tmp_path / name, little.rows(range(20)), files=2)
        capture(spark, Lake.at(made), little.little_stream(tmp_path / name, name=name))
    # In another place, where Spark knows no log as it was before.
    lake = Lake.at(shutil.copytree(made, tmp_path / "lake"))
    for table in (lake.stream("index").events, lake.stream("payload").records):
        Path(table, "_delta_log", f"{1:020}.json").unlink()

    done = maintain(spark, lake, lake.streams())

    assert [(item.code, item.fields["stream"]) for item in done.failed] == [
        ("CAP-DAMAGED", "index"), ("CAP-DAMAGED", "payload"),
    ]  # fmt: skip
    assert done.streams == ["whole"]
    assert {table.table for table in done.tables["whole"]} >= {"records", "events", "feed"}
    assert "ledger verified" in {table.table for table in done.tables[""]}
    refusal = done.refusal
    assert refusal is not None
    assert (refusal.code, refusal.exit_code) == ("CAP-DAMAGED", 5)
    assert "stream index: " in refusal.message
    assert "payload" in refusal.message

    # Neither the job nor the command refuses what it can do before Spark.
    answer = handlers.maintain({}, Context(lake.root, spark=spark))
    assert (answer.value["streams"], answer.refusal and answer.refusal.exit_code) == (["whole"], 5)
    capsys.readouterr()
    assert main(["--lake", lake.root, "maintain", "--all"]) == 5
    printed = capsys.readouterr().err
    assert "CAP-DAMAGED: stream index: " in printed
    assert "CAP-DAMAGED: stream payload: " in printed
    assert printed.count("_delta_log from a backup") == 2


def test_what_nobody_needs_is_deleted_and_nothing_else(
    unkept: Sixteen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, spark = unkept.copied(tmp_path), unkept.spark
    path = Path(made.tape.paths.records)
    left = path / "part-left-by-a-killed-writer.parquet"
    left.write_bytes(b"nothing")
    maintain(spark, made.lake, [NAME], sizes=SIZES)
    there = set(path.glob("*.parquet"))
    assert left in there
    old = time.time() - 8 * DAY
    for file in there:
        os.utime(file, (old, old))
    # What was put together a moment ago may still be read; what no commit has named is old.
    assert vacuum(spark, "records", str(path)) == 1
    assert set(path.glob("*.parquet")) == there - {left}
    at_once = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    arrow_writer.set_properties(str(path), at_once)
    assert vacuum(spark, "records", str(path)) == 0
    monkeypatch.setattr(cleanup, "LEASE", timedelta(0))
    gone = vacuum(spark, "records", str(path))
    files = {path / item.path for item in files_of(str(path), "batch") or ()}
    assert set(path.glob("*.parquet")) == files
    assert gone == len(there) - 1 - len(files) > 0
    assert verify(spark, made.lake, made.tape, deep=True).valid


@pytest.mark.nightly
def test_a_log_goes_back_for_a_week(unkept: Sixteen, tmp_path: Path) -> None:
    """The whole log is listed at each look at a table: of a year it must not be a year's."""
    made, spark = unkept.copied(tmp_path), unkept.spark
    paths = (made.tape.paths.records, made.tape.paths.events, made.tape.paths.feed)
    old = time.time() - 9 * DAY
    for path in paths:
        for file in Path(path, "_delta_log").iterdir():
            os.utime(file, (old, old))
    before = {path: lake_contents.rows(path) for path in paths}
    maintain(spark, made.lake, [NAME], sizes=SIZES)
    for path in paths:
        assert len(list(Path(path, "_delta_log").glob("*.json"))) == 1, path
        assert lake_contents.rows(path) == before[path]
    assert verify(spark, made.lake, made.tape, deep=True).valid


def test_the_log_keeps_a_stream_s_batch_times(spark: SparkSession, tmp_path: Path) -> None:
    made = make(spark, tmp_path, 1)
    assert retention_of(made.tape.paths.events, LOG) == timedelta(days=7)
    for days, kept in ((20, 21), (1, 21)):
        requested = replace(made.stream, stalled_after=timedelta(days=days))
        capture(spark, made.lake, requested)
        assert retention_of(made.tape.paths.events, LOG) == timedelta(days=kept)
    assert retention_of(made.tape.paths.records, LOG) == timedelta(days=7)


def test_a_full_disk_leaves_no_partial_maintenance(unkept: Sixteen, tmp_path: Path) -> None:
    made, spark = unkept.copied(tmp_path), unkept.spark
    tape, known = lake_contents.tape(made.lake, NAME), commits(made.lake.root)
    assert spark._jvm is not None
    driver = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    limits = resource.prlimit(driver, resource.RLIMIT_FSIZE)
    # No file of the driver's may grow beyond this: what it writes ends as on a full disk.
    resource.prlimit(driver, resource.RLIMIT_FSIZE, (8 * KIB, limits[1]))
    try:
        with pytest.raises(Exception) as full:
            maintain(spark, made.lake, [NAME], sizes=SIZES)
    finally:
        resource.prlimit(driver, resource.RLIMIT_FSIZE, limits)
    assert (to_capstan_error(full.value).code, to_capstan_error(full.value).exit_code) == (
        "CAP-DISK-FULL",
        5,
    )

    def refuse(point: str, _: dict[str, object]) -> None:
        if point in ("maintain.written", "retire.written"):
            raise PermissionError(errno.EACCES, "Permission denied")

    with instrumentation.subscribe(refuse):
        with pytest.raises(SystemFailureError, match="CAP-NO-ACCESS"):
            maintain(spark, made.lake, [NAME], sizes=SIZES)
        assert commits(made.lake.root) == known
        with pytest.raises(SystemFailureError, match="CAP-NO-ACCESS"):
            retire(spark, made.lake, NAME, "2020-01-02")
    assert lake_contents.tape(made.lake, NAME) == tape
    # The same again goes on, and finishes what was begun.
    done = maintain(spark, made.lake, [NAME], sizes=SIZES)
    assert done.retired == {NAME: ROWS}
    assert done.tables[NAME][0].rewritten > 0
    assert verify(spark, made.lake, made.tape, deep=True).valid


def test_rows_of_a_run_are_together_in_a_compacted_ledger(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake.at(tmp_path)
    books = Books(lake, NAME, lake.table("copy"))
    lay_compacted_runs(books, PART_ROWS, 3)
    for part in range(2):
        # Between those of the others, so that all files are compacted into one.
        at = datetime(2020, 1, 1, 0, 30 * part, tzinfo=UTC)
        done = {"identity": "i", "generation": 1, "at": at}
        books.append("runs", {**done, "run": "copy-00000000-1", "step": "done", "detail": "{}"})
    [ledger] = [table for table in ledger_tables(lake) if table.name == "ledger runs"]
    compact_table(spark, ledger, ended=True)
    [file] = deltalake.DeltaTable(ledger.path).file_uris()
    found = pq.ParquetFile(file)
    assert found.metadata.num_row_groups == 3
    named = found.read(["run", "at"])
    assert named.num_rows == 2 * PART_ROWS + 2
    assert named.equals(named.sort_by([("run", "ascending"), ("at", "ascending")]))
