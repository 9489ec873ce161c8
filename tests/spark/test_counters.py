"""What Capstan costs, counted: commits, jobs, files, columns. Counts never vary with the load."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from capstan.capture.run import capture
from capstan.core.config import ByColumn, EventTime, LatePolicy, ProjectConfig, Source, Stream
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import replay
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import Tape, open_tape
from capstan.telemetry import instrumentation
from capstan.verify import event_columns, verify
from tests.bench.counters import BOOKKEEPING, Scan, Watch, commits, own_jobs
from tests.support.sample_streams import HOUR, lay, little_stream, rows

DAY = 86_400
FIRST_DAY = 18_262
"""2020-01-01, in days since 1970."""

PER_DAY = 400
WIDE = 300
"""Bytes of text in a row, so that a file's size is that of its rows."""

PLACED = rows(range(12))

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Made:
    """A stream of which each micro-batch is a day; `late-comer` comes with the last one only."""

    spark: SparkSession
    lake: Lake
    stream: Stream
    declared: ProjectConfig

    @property
    def tape(self) -> Tape:
        return open_tape(self.lake, self.stream.name)

    @property
    def source(self) -> Path:
        return Path(self.stream.source.path or "")

    def lay(self, day: int, *, late_comer: bool = False) -> None:
        names = ["ann", "bob", "late-comer"] if late_comer else ["ann", "bob"]
        who = F.element_at(F.array(*map(F.lit, names)), (F.col("id") % len(names) + 1).cast("int"))
        second = (FIRST_DAY + day) * DAY + F.col("id") * (DAY // PER_DAY)
        text = F.substring(F.repeat(F.sha2(F.col("id").cast("string"), 512), 3), 1, WIDE)
        rows = self.spark.range(PER_DAY).select(
            "id", who.alias("who"), F.timestamp_seconds(second).alias("ts"), text.alias("text")
        )
        rows.coalesce(1).write.mode("append").parquet(str(self.source))

    def capture(self) -> None:
        result = capture(self.spark, self.lake, self.stream)
        assert result.fed == result.records
        assert result.late == {}

    def replay(self, into: str, **asked: object) -> ReplayResult:
        request = Request(self.stream.name, into, **asked)  # type: ignore[arg-type]
        return replay(self.spark, self.lake, self.declared, request)

    def days(self, first: int, end: int) -> dict[str, str]:
        return {"since": f"2020-01-{first + 1:02}", "until": f"2020-01-{end + 1:02}"}

    def files(self) -> list[dict[str, object]]:
        actions = delta.open_table(self.tape.paths.records).get_add_actions(flatten=True)
        return pa.table(actions).to_pylist()

    def read(self, work: Work) -> tuple[Scan, ...]:
        with Watch(self.spark) as watch:
            work()
        return watch.scans(self.tape.paths.records)


def make(spark: SparkSession, root: Path, days: int) -> Made:
    lake = Lake.at(root / "lake")
    stream = Stream(
        name="rows",
        source=Source("parquet", str(root / "source"), {"maxFilesPerTrigger": "1"}),
        workers=ByColumn("who"),
        time=EventTime(column="ts", every=timedelta(hours=1)),
    )
    made = Made(spark, lake, stream, ProjectConfig(root / "streams.yaml", {}, {}, {}, {}))
    for day in range(days):
        made.lay(day, late_comer=day == days - 1)
    made.capture()
    return made


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(spark, tmp_path_factory.mktemp("counters"), 4)


def commits_of(made: Made, work: Work) -> list[str]:
    """The tables of the commits that `work` makes; staging is looked at before it is deleted."""
    root = Path(made.lake.root)
    before = commits(root)
    seen: set[Path] = set()

    def listen(point: str, _: dict[str, object]) -> None:
        if point == "replay.staging":
            seen.update(commits(root))

    with instrumentation.subscribe(listen):
        work()
    actual = (seen | commits(root)) - before
    return sorted(path.relative_to(root).parts[0] for path in actual)


def test_a_capture_scans_its_source_twice(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    time = EventTime(
        domain="event", column="at", every=HOUR, lateness=2 * HOUR, max_ahead=30 * HOUR
    )
    stream = little_stream(source, time=time, late=LatePolicy.FAIL)
    counted = []
    for number, moved in enumerate((0, 6, 1_000_000)):
        lay(source, str(number), [(*row[:2], row[2] + moved * HOUR, *row[3:]) for row in PLACED])
        with Watch(spark) as watch:
            done = capture(spark, Lake.at(tmp_path / "lake"), stream)
        assert done.fed == len(PLACED)
        # Each reading of a micro-batch is a scan of the rows that the source gives.
        operators = [name for execution in watch.executions for name in execution.operators]
        counted.append(operators.count("Scan ExistingRDD"))
    # The first one makes the tables. The last one has times that the clock has not come to, which
    # are looked for by themselves.
    assert counted[1] == 2 < counted[2]


def test_a_staged_replay_makes_six_commits(made: Made) -> None:
    first = commits_of(made, lambda: made.replay("six", **made.days(0, 1)))
    again = commits_of(made, lambda: made.replay("six", **made.days(1, 2)))
    assert again == ["ledger"] * 4 + ["staging", "tables"]
    # The ledgers and the target, each made once; what was verified is written down once.
    assert len(first) <= len(again) + 6


def test_a_replay_that_stands_runs_nothing(made: Made) -> None:
    made.replay("stands", **made.days(0, 2))
    before = commits(made.lake.root)
    with Watch(made.spark) as watch:
        assert made.replay("stands", **made.days(0, 2)).unchanged
    assert watch.jobs == 0
    assert watch.executions == ()
    assert commits(made.lake.root) == before


def test_a_replay_of_a_day_reads_the_files_of_that_day(made: Made) -> None:
    total = made.files()
    (scan,) = made.read(lambda: made.replay("a_day", **made.days(1, 2)))
    assert scan.files == len(total) // 4
    assert scan.rows == PER_DAY
    assert 0 < scan.bytes < sum(int(str(f["size_bytes"])) for f in total) / 3


def test_a_replay_of_a_worker_reads_the_files_that_have_it(made: Made) -> None:
    everyone = made.read(lambda: made.replay("all", partial=True, **made.days(0, 4)))
    (one,) = made.read(
        lambda: made.replay("one", workers=("late-comer",), partial=True, **made.days(0, 4))
    )
    assert [scan.files for scan in everyone] == [len(made.files())]
    assert one.files == len(made.files()) // 4
    assert one.bytes < everyone[0].bytes / 3


def test_a_replay_reads_records_once_and_its_audit_does_not(made: Made) -> None:
    scans = made.read(lambda: made.replay("once", **made.days(2, 3)))
    assert [scan.rows for scan in scans] == [PER_DAY]


def test_files_of_records_are_told_apart_by_what_places_a_record(made: Made) -> None:
    stated = statistics(made.tape.paths.records)
    assert set(stated) == {"min.worker", "min.batch", "min.time.event", "min.pos"}
    [first, *_] = Path(made.tape.paths.records).glob("*.parquet")
    group = pq.ParquetFile(first).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    looked_up = {c.path_in_schema for c in columns if c.has_dictionary_page}
    assert "pos" not in looked_up
    assert looked_up >= {"worker", "batch", "time.event", "data.who"}


def test_a_replay_writes_its_rows_once(made: Made) -> None:
    staged = []

    def listen(point: str, _: dict[str, object]) -> None:
        if point == "replay.staging":
            (folder,) = Path(made.lake.staging("")).iterdir()
            staged.extend(names(str(folder)))

    made.replay("once_written", **made.days(0, 1))
    before = names(made.lake.table("once_written"))
    with instrumentation.subscribe(listen):
        made.replay("once_written", **made.days(1, 2))
    after = names(made.lake.table("once_written"))
    assert staged
    assert sorted(after) == sorted([*before, *staged])
    written = Path(made.lake.table("once_written")).rglob("*.parquet")
    assert len([path for path in written if "_delta_log" not in path.parts]) == len(after)
    expected = {"min.id", "min.text", "min._time.event"}
    assert expected <= set(statistics(made.lake.table("once_written")))


def test_rows_beside_all_others_are_published_without_a_job(made: Made) -> None:
    """A range that no file of the target can have rows of is not looked at."""
    made.replay("beside", **made.days(0, 1))
    publish, jobs = ExitStack(), dict[str, list[str]]()

    def listen(point: str, _: dict[str, object]) -> None:
        if point == "replay.holds":
            jobs[into] = publish.enter_context(own_jobs(made.spark))
        elif point == "replay.publish":
            publish.close()

    with instrumentation.subscribe(listen):
        into = "beside"
        made.replay(into, **made.days(1, 2))
        into = "over"
        made.replay(into, **made.days(0, 2), workers=("ann",))
        made.replay(into, **made.days(0, 1), adopt=True)
    # Delta computes a table's state anew whenever it has let go of it.
    looks = {into: [job for job in jobs[into] if BOOKKEEPING not in job] for into in jobs}
    assert looks["beside"] == []
    assert looks["over"] != []


def names(path: str) -> list[str]:
    files = pa.table(delta.open_table(path).get_add_actions())["path"].to_pylist()
    return [file.rpartition("/")[2] for file in files]


def statistics(path: str) -> list[str]:
    names = pa.table(delta.open_table(path).get_add_actions(flatten=True)).column_names
    return [name for name in names if name.startswith("min.")]


def test_verification_of_few_events_runs_no_job(made: Made) -> None:
    with Watch(made.spark) as watch:
        assert verify(made.spark, made.lake, made.tape, remember=False).valid
    assert watch.jobs == 0


def test_verification_reads_no_payload(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_columns, "MAX_EVENTS", -1)
    with Watch(made.spark) as watch:
        assert verify(made.spark, made.lake, made.tape, remember=False).valid
    assert watch.scans(made.tape.paths.records) == ()
    (events,) = watch.scans(made.tape.paths.events)
    assert events.rows > 0
    assert "data" not in events.columns
    with Watch(made.spark) as watch:
        assert verify(made.spark, made.lake, made.tape, remember=False, deep=True).valid
    assert watch.scans(made.tape.paths.records) != ()


def test_verification_of_what_is_known_runs_no_job(made: Made) -> None:
    verify(made.spark, made.lake, made.tape)
    with Watch(made.spark) as watch:
        assert verify(made.spark, made.lake, made.tape).valid
    assert watch.jobs == 0


def test_following_reads_what_is_new_however_long_the_tape(
    spark: SparkSession, tmp_path: Path
) -> None:
    read = []
    for length in (2, 5):
        made = make(spark, tmp_path / str(length), length)
        made.replay("copy", follow="f")
        made.lay(length)
        made.capture()
        with Watch(spark) as watch:
            assert not made.replay("copy", follow="f").unchanged
        records = watch.scans(made.tape.paths.records)
        events = watch.scans(made.tape.paths.events)
        assert sum(scan.files for scan in records) < len(made.files())
        read.append(
            ([scan.files for scan in records], [scan.rows for scan in records],
             [scan.files for scan in events])
        )  # fmt: skip
    assert read[0] == read[1]


def test_no_payload_passes_through_python(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_columns, "MAX_EVENTS", -1)
    with Watch(spark) as watch:
        made = make(spark, tmp_path, 2)
        made.replay("copy", partial=True)
    heavy = (
        str(made.source),
        made.tape.paths.records,
        made.lake.table("copy"),
        made.lake.staging(""),
    )
    by_python, by_others = (
        [
            scan.path.removeprefix("file:")
            for execution in watch.executions
            if bool(execution.python) is python
            for scan in execution.scans
        ]
        for python in (True, False)
    )
    # The index does, in verification; so Python would be seen.
    assert made.tape.paths.events in by_python
    assert [path for path in by_python if path.startswith(heavy)] == []
    assert any(path.startswith(made.tape.paths.records) for path in by_others)


def test_python_over_the_payload_would_be_seen(made: Made) -> None:
    records = made.spark.read.format("delta").load(made.tape.paths.records)
    with Watch(made.spark) as watch:
        payload = records.select("data.*")
        payload.mapInArrow(lambda batches: batches, payload.schema).count()
    reading = [
        execution
        for execution in watch.executions
        if any("_delta_log" not in scan.path for scan in execution.scans)
    ]
    assert [execution.python for execution in reading] == [("MapInArrow",)]
    assert watch.jobs > 0
