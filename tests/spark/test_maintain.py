"""Maintenance: what it writes anew, what it leaves, and that no answer changes by it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from capstan import steps
from capstan.bench.counters import Scan, Watch, commits
from capstan.capture.run import capture
from capstan.declare import ByKey, Declarations, EventTime, Source, Stream, Transform
from capstan.maintain import upkeep
from capstan.maintain.compact import compact_index, compact_records
from capstan.maintain.run import maintain
from capstan.maintain.runs import Sizes
from capstan.maintain.tables import files_of, index_tables
from capstan.replay.request import Request
from capstan.replay.run import Outcome, replay
from capstan.tape import delta
from capstan.tape.lake import Lake
from capstan.tape.tape import Tape, open_tape
from capstan.testing import contents
from capstan.verify import verify

WORKERS, BATCHES, ROWS = 16, 6, 1600
KIB = 2**10
SIZES = Sizes(file=40 * KIB, full=16 * KIB, share=KIB, least=2 * KIB, many=4, fan=4)
HOURLY = Transform(
    name="hourly",
    sql="SELECT _worker, _time.event AS hour, count(*) AS n FROM records GROUP BY ALL",
    time="hour",
    grain=timedelta(hours=1),
    worker="_worker",
)
DAY = 86_400
FIRST_DAY = 18_262
"""2020-01-01, in days since 1970."""


@dataclass(frozen=True, slots=True)
class Made:
    """A stream of 16 workers, of which each micro-batch is a day."""

    spark: SparkSession
    lake: Lake
    stream: Stream
    declared: Declarations

    @property
    def tape(self) -> Tape:
        return open_tape(self.lake, self.stream.name)

    def lay(self, day: int) -> None:
        """A file of rows, wide enough that a file's size is that of its rows."""
        second = (FIRST_DAY + day) * DAY + F.col("id") * (DAY // ROWS)
        text = F.concat(
            *(F.sha2(F.concat_ws("-", "id", F.lit(f"{day}{n}")), 512) for n in range(2))
        )
        rows = self.spark.range(ROWS).select(
            "id", F.timestamp_seconds(second).alias("ts"), text.alias("text")
        )
        rows.coalesce(1).write.mode("append").parquet(str(self.stream.source.path))

    def capture(self) -> None:
        result = capture(self.spark, self.lake, self.stream)
        assert result.fed == result.records

    def replay(self, into: str, **asked: object) -> Outcome:
        request = Request(self.stream.name, into, **{"partial": True, **asked})  # type: ignore[arg-type]
        return replay(self.spark, self.lake, self.declared, request)

    def read(self, into: str, **asked: object) -> Scan:
        """What a replay into a new table reads of the records."""
        with Watch(self.spark) as watch:
            assert self.replay(into, direct=True, **asked).certificate["published"]
        (scan,) = watch.scans(self.tape.paths.records)
        return scan


def make(spark: SparkSession, root: Path, days: int) -> Made:
    stream = Stream(
        name="rows",
        source=Source("parquet", str(root / "source"), {"maxFilesPerTrigger": "1"}),
        workers=ByKey(("id",), WORKERS),
        time=EventTime(column="ts", every=timedelta(hours=1)),
    )
    transforms = {HOURLY.name: HOURLY}
    declared = Declarations(root / "streams.yaml", {stream.name: stream}, transforms, {}, {})
    made = Made(spark, Lake.at(root / "lake"), stream, declared)
    for day in range(days):
        made.lay(day)
    made.capture()
    return made


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(spark, tmp_path_factory.mktemp("maintain"), BATCHES)


def rows(made: Made, table: str) -> list[str]:
    found = contents.rows(made.lake.table(table))
    assert found
    return found


def test_one_worker_of_sixteen_reads_a_sixteenth(made: Made) -> None:
    before = contents.tape(made.lake, "rows")
    until = {"until": f"2020-01-{BATCHES:02}"}
    whole = made.read("all_before", **until)
    one = made.read("one_before", workers=("3",), **until)
    assert one.bytes > whole.bytes / 2
    assert verify(made.spark, made.lake, made.tape).valid

    done = maintain(made.spark, made.lake, ["rows"], sizes=SIZES)
    records, *_ = done.tables["rows"]
    assert done.refusal is None
    # The last hours can still receive records: their batch waits. All else is written once.
    assert records.files_before == BATCHES
    assert abs(records.rewritten / whole.bytes - 1) < 0.01
    assert contents.tape(made.lake, "rows") == before
    after = made.read("all_after", **until)
    clustered = made.read("one_after", workers=("3",), **until)
    assert after.files == records.files - 1
    assert clustered.bytes * 12 <= after.bytes
    # Of a worker's files those of other times are left out too.
    day = made.read("day_after", workers=("3",), since="2020-01-02", until="2020-01-03")
    assert day.files < clustered.files
    assert rows(made, "one_after") == rows(made, "one_before")
    assert rows(made, "all_after") == rows(made, "all_before")
    with Watch(made.spark) as watch:
        assert verify(made.spark, made.lake, made.tape).valid
    assert watch.jobs == 0
    assert verify(made.spark, made.lake, made.tape, deep=True, remember=False).valid


def test_a_second_maintenance_changes_nothing(made: Made) -> None:
    maintain(made.spark, made.lake, ["rows"], sizes=SIZES)
    known = sorted(Path(made.lake.root).rglob("*"))
    again = maintain(made.spark, made.lake, ["rows"], sizes=SIZES).as_json()
    assert (again["rewritten"], again["vacuumed"]) == (0, 0)
    assert sorted(Path(made.lake.root).rglob("*")) == known


def test_a_table_that_is_followed_tells_nothing_new(made: Made, tmp_path: Path) -> None:
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
        return sum(each["numInputRows"] for each in query.recentProgress)

    paths = made.tape.paths
    assert new(paths.records) == (BATCHES + 1) * ROWS
    assert new(paths.events) > 0
    done = maintain(
        made.spark, made.lake, ["rows"], sizes=replace(SIZES, many=1, full=KIB, share=1)
    )
    assert done.tables["rows"][0].rewritten > 0
    compact_index(made.spark, replace(index_tables(made.tape)[0], sizes=SIZES))
    assert (new(paths.records), new(paths.events)) == (0, 0)


class Between:
    """Does some work at a point of other work, once: between its reading and its commit."""

    def __init__(self, point: str, work: Callable[[], object]) -> None:
        self.point, self.work, self.done = point, work, False

    def __call__(self, point: str, _: dict[str, object]) -> None:
        if point == self.point and not self.done:
            self.done = True
            self.work()


def test_others_commit_while_maintenance_is_about_to(spark: SparkSession, tmp_path: Path) -> None:
    made = make(spark, tmp_path, 4)
    asked = {"follow": "f"}

    def capture_and_follow() -> None:
        made.lay(4)
        made.capture()
        assert made.replay("copy", **asked).certificate["published"]

    def the_same_again() -> None:
        assert maintain(spark, made.lake, ["rows"], sizes=SIZES).as_json()["rewritten"] > 0

    for work, more in ((capture_and_follow, True), (the_same_again, False)):
        if not more:
            for day in range(5, 9):
                made.lay(day)
            made.capture()
        between = Between("maintain.written", work)
        with steps.listening(between):
            found = compact_records(spark, made.lake, made.tape, SIZES)
        assert between.done
        # Of two that take the same files one lands, and the other finds nothing left to do.
        assert found.commits == int(more)
    assert verify(spark, made.lake, made.tape, deep=True).valid
    tape = contents.tape(made.lake, "rows")
    assert len(tape["records"]) == 9 * ROWS
    made.replay("copy", **asked)
    made.replay("whole")
    assert rows(made, "copy") == rows(made, "whole")


def test_capture_follow_and_maintain_at_once(spark: SparkSession, tmp_path: Path) -> None:
    made = make(spark, tmp_path, 2)
    failures: list[BaseException] = []
    ended = threading.Event()

    def begin(work: Callable[[Made], None]) -> threading.Thread:
        own = replace(made, spark=spark.newSession())

        def carry_out() -> None:
            try:
                work(own)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=carry_out)
        thread.start()
        return thread

    def follow(own: Made) -> None:
        while not ended.is_set():
            own.replay("copy", follow="f")

    def keep_up(own: Made) -> None:
        while not ended.is_set():
            maintain(own.spark, own.lake, ["rows"], sizes=replace(SIZES, many=2))

    others = [begin(follow), begin(keep_up)]
    for day in range(2, 6):
        made.lay(day)
        made.capture()
    ended.set()
    for thread in others:
        thread.join()
    assert failures == []
    made.replay("copy", follow="f")
    made.replay("whole")
    assert rows(made, "copy") == rows(made, "whole")
    assert len(contents.tape(made.lake, "rows")["records"]) == 6 * ROWS
    assert verify(spark, made.lake, made.tape, deep=True).valid


def test_damaged_records_are_named_and_left_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = make(spark, tmp_path, 4)
    path = made.tape.paths.records
    spark.sql(f"UPDATE delta.`{path}` SET data.text = 'x' WHERE batch = 1 AND data.id = 7")
    damaged = contents.rows(path)
    known = commits(path)
    done = maintain(spark, made.lake, ["rows"], sizes=SIZES)
    assert done.refusal is not None
    assert (done.refusal.code, done.refusal.exit_code) == ("CAP-TAPE", 1)
    assert done.tables["rows"][0].damaged == [(0, 2)]
    assert contents.rows(path) == damaged
    assert commits(path) == known
    # All else was kept up.
    assert any(table.checkpoint for table in done.tables["rows"])


def test_what_nobody_needs_is_deleted_and_nothing_else(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(spark, tmp_path, 4)
    made.replay("copy")
    path = Path(made.tape.paths.records)
    left = path / "part-left-by-a-killed-writer.parquet"
    left.write_bytes(b"nothing")
    maintain(spark, made.lake, ["rows"], sizes=SIZES)
    there = set(path.glob("*.parquet"))
    assert left in there
    old = time.time() - 8 * DAY
    for file in there:
        os.utime(file, (old, old))
    # What was put together a moment ago may still be read; what no commit has named is old.
    assert maintain(spark, made.lake, ["rows"], sizes=SIZES).as_json()["vacuumed"] == 1
    assert set(path.glob("*.parquet")) == there - {left}
    delta.set_properties(spark, str(path), {"delta.deletedFileRetentionDuration": "0 hours"})
    assert maintain(spark, made.lake, ["rows"], sizes=SIZES).as_json()["vacuumed"] == 0
    monkeypatch.setattr(upkeep, "LEASE", timedelta(0))
    gone = maintain(spark, made.lake, ["rows"], sizes=SIZES).as_json()["vacuumed"]
    files = {path / each.path for each in files_of(str(path), "batch") or ()}
    assert set(path.glob("*.parquet")) == files
    assert gone == len(there) - 1 - len(files)
    assert verify(spark, made.lake, made.tape, deep=True).valid
    made.replay("again")
    assert rows(made, "again") == rows(made, "copy")
