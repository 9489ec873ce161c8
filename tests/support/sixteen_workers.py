"""A stream of sixteen workers: each micro-batch is a day, and rows are wide enough to matter."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.capture.run import capture
from capstan.core.config import ByKey, EventTime, ProjectConfig, Source, Stream, Transform
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import replay
from capstan.storage.compaction.policy import Sizes
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import Tape, open_tape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "rows"
WORKERS, ROWS = 16, 1600
"""Number of workers, and of rows per day."""

KIB = 2**10
SIZES = Sizes(file=40 * KIB, full=16 * KIB, share=KIB, least=2 * KIB, many=4, fan=4)
"""Sizes with which a few days of the stream form a run, with several files per worker."""

HOURLY = Transform(
    name="hourly",
    sql="SELECT _worker, _time.event AS hour, count(*) AS n FROM records GROUP BY ALL",
    time="hour",
    grain=timedelta(hours=1),
    worker="_worker",
)
_DAY = 86_400
_FIRST = 18_262
"""2020-01-01, in days since 1970."""


@dataclass(frozen=True, slots=True)
class Sixteen:
    """The stream and its tape."""

    spark: SparkSession
    lake: Lake
    stream: Stream
    declared: ProjectConfig

    @property
    def tape(self) -> Tape:
        """Its tape as it is now."""
        return open_tape(self.lake, NAME)

    def copied(self, root: Path) -> Sixteen:
        """The same in another lake; nothing more can be captured there."""
        shutil.copytree(self.lake.root, root / "lake")
        return replace(self, lake=Lake.at(root / "lake"))

    def lay(self, day: int) -> None:
        """Write the rows of a day, in one file."""
        second = (_FIRST + day) * _DAY + F.col("id") * (_DAY // ROWS)
        parts = (F.sha2(F.concat_ws("-", "id", F.lit(f"{day}{n}")), 512) for n in range(2))
        rows = self.spark.range(ROWS).select(
            "id", F.timestamp_seconds(second).alias("ts"), F.concat(*parts).alias("text")
        )
        rows.coalesce(1).write.mode("append").parquet(str(self.stream.source.path))

    def capture(self) -> None:
        """Capture the written files; all rows go on the tape."""
        result = capture(self.spark, self.lake, self.stream)
        assert result.fed == result.records

    def replay(self, into: str, **asked: object) -> ReplayResult:
        """Replay the complete times."""
        known = {"partial": "follow" not in asked, **asked}
        request = Request(NAME, into, **known)  # type: ignore[arg-type]
        return replay(self.spark, self.lake, self.declared, request)


def make(spark: SparkSession, root: Path, days: int) -> Sixteen:
    """A tape of a number of days, from 2020-01-01 on."""
    stream = Stream(
        name=NAME,
        source=Source("parquet", str(root / "source"), {"maxFilesPerTrigger": "1"}),
        workers=ByKey(("id",), WORKERS),
        time=EventTime(column="ts", every=timedelta(hours=1)),
    )
    transforms = {HOURLY.name: HOURLY}
    declared = ProjectConfig(root / "streams.yaml", {NAME: stream}, transforms, {}, {})
    made = Sixteen(spark, Lake.at(root / "lake"), stream, declared)
    for day in range(days):
        made.lay(day)
    made.capture()
    return made
