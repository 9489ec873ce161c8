"""Maintenance: what it writes anew, what it leaves, and that no answer changes by it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from capstan.bench.counters import Scan, Watch, commits
from capstan.capture.run import capture
from capstan.declare import ByKey, Declarations, EventTime, Source, Stream
from capstan.maintain.compact import compact_index, compact_records
from capstan.maintain.runs import Sizes
from capstan.maintain.tables import index_tables
from capstan.replay.request import Request
from capstan.replay.run import Outcome, replay
from capstan.tape.lake import Lake
from capstan.tape.tape import Tape, open_tape
from capstan.testing import contents
from capstan.verify import verify

WORKERS, BATCHES, ROWS = 16, 6, 1600
KIB = 2**10
SIZES = Sizes(file=200 * KIB, full=16 * KIB, share=KIB, least=2 * KIB, many=4, fan=4)
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
    declared = Declarations(root / "streams.yaml", {stream.name: stream}, {}, {}, {})
    made = Made(spark, Lake.at(root / "lake"), stream, declared)
    for day in range(days):
        made.lay(day)
    made.capture()
    return made


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(spark, tmp_path_factory.mktemp("maintain"), BATCHES)


def test_one_worker_of_sixteen_reads_a_sixteenth(made: Made) -> None:
    paths = made.tape.paths
    before = contents.tape(made.lake, "rows")
    whole = made.read("all_before")
    one = made.read("one_before", workers=("3",))
    assert one.bytes > whole.bytes / 2
    assert verify(made.spark, made.lake, made.tape).valid

    found = compact_records(made.spark, made.lake, made.tape, SIZES)
    assert (found.commits, found.damaged) == (1, [])
    assert contents.tape(made.lake, "rows") == before
    assert contents.rows(paths.records)
    clustered = made.read("one_after", workers=("3",))
    all_after = made.read("all_after")
    assert clustered.bytes * 12 <= all_after.bytes
    assert contents.rows(made.lake.table("one_after")) == contents.rows(
        made.lake.table("one_before")
    )
    assert contents.rows(made.lake.table("all_after")) == contents.rows(
        made.lake.table("all_before")
    )
    # The last hours can still receive records: their batch waits.
    assert found.rewritten < whole.bytes
    with Watch(made.spark) as watch:
        assert verify(made.spark, made.lake, made.tape).valid
    assert watch.jobs == 0
    assert verify(made.spark, made.lake, made.tape, deep=True, remember=False).valid

    known = commits(made.lake.root)
    again = compact_records(made.spark, made.lake, made.tape, SIZES)
    assert (again.commits, again.rewritten, again.files) == (0, 0, found.files)
    for table in index_tables(made.tape):
        assert compact_index(made.spark, table).commits == 0
    assert commits(made.lake.root) == known
