"""Inputs of the benchmarks: files of bids, the stream over them, their tapes."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.capture.run import capture, close
from capstan.core.config import ByKey, EventTime, ProjectConfig, Source, Stream
from capstan.errors import SystemFailureError
from capstan.storage.lake import Lake
from tests.bench.cpu_clock import Clock
from tests.bench.measures import Sample
from tests.bench.workloads import nexmark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM, SMALL_STREAM = "bids", "small"
WORKERS = 4
FILES = 4
"""Files per micro-batch: enough for every core, as in a live source."""

SMALL_ROWS, SMALL_BATCHES = 10_000, 6
# A minute of event time has 11,000 bids, so a batch of a million has some hundred cells.
PACE = 200


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark.

    Attributes:
        small: Rows of the smaller size, which is also that of a micro-batch.
        large: Rows of the larger size.
        rounds: Measurements of each side.
        longer: Length of the longer followed tape, as a multiple.
        only: Names of results; empty for all.
    """

    small: int = 1_000_000
    large: int = 3_000_000
    rounds: int = 3
    longer: int = 10
    only: frozenset[str] = frozenset()

    @property
    def sizes(self) -> tuple[int, int]:
        """Both sizes, the smaller first."""
        return self.small, self.large


@dataclass(frozen=True, slots=True)
class Bench:
    """Context of every benchmark.

    Attributes:
        spark: The session.
        clock: Its clock.
        folder: Folder for everything written.
        options: The options.
        say: Prints lines of progress.
    """

    spark: SparkSession
    clock: Clock
    folder: Path
    options: Options
    say: Callable[[str], None]

    def tell(self, sample: Sample) -> None:
        """Print the cost of a side."""
        which = f"round {sample.round}" if sample.round else "rehearsal"
        self.say(
            f"{which}: {sample.side}, {sample.rows:,} rows: {sample.cost.cpu:.1f} CPU s, "
            f"{sample.cost.wall:.1f} s"
        )

    def source(self, rows: int, files: int) -> Path:
        """A folder with the first `rows` bids in Parquet files, in order; created once."""
        path = self.folder / "sources" / f"{rows}-{files}"
        if not path.exists():
            self.say(f"{rows:,} bids in {files} files")
            lay(self.bids(rows, files), path)
        return path

    def bids(self, rows: int, files: int) -> DataFrame:
        """The first `rows` bids in order, in as many partitions as files."""
        return nexmark.bids(self.spark, rows, events_per_second=PACE, partitions=files)

    def batches(self, rows: int) -> tuple[Path, int]:
        """A source with `rows` rows, and the number of its files per micro-batch of `small`."""
        return self.source(rows, self.files(rows)), FILES

    def files(self, rows: int) -> int:
        """The number of files of such a source."""
        return FILES * -(-rows // self.options.small)

    def small_batches(self) -> tuple[Path, int]:
        """A source with few rows per file, each file a micro-batch."""
        return self.source(SMALL_ROWS * SMALL_BATCHES, SMALL_BATCHES), 1

    def place(self, name: str) -> Path:
        """A new folder; never one that existed before, of which Delta may have cached state."""
        path = self.folder / "lakes" / f"{name}-{uuid.uuid4().hex[:12]}"
        path.mkdir(parents=True)
        return path

    def tapes(self) -> Path:
        """The `streams` folder of the tapes for replays, which are captured once.

        Streams: one per size, `bids_<rows>`, and `small`; all are closed.
        """
        home = self.folder / "lakes" / "tapes"
        if not home.exists():
            home.mkdir(parents=True)
            lake = Lake.at(home)
            for rows in self.options.sizes:
                self.say(f"capturing a tape of {rows:,} bids")
                self.captured(lake, stream(f"{STREAM}_{rows}", *self.batches(rows)), rows)
                close(self.spark, lake, f"{STREAM}_{rows}")
            total = SMALL_ROWS * SMALL_BATCHES
            self.captured(lake, stream(SMALL_STREAM, *self.small_batches()), total)
            close(self.spark, lake, SMALL_STREAM)
        return home / "streams"

    def lake_of_tapes(self, name: str) -> Lake:
        """A new lake with the tapes, without any ledger, staging or table."""
        tapes = self.tapes()
        path = self.place(name)
        (path / "streams").symlink_to(tapes)
        return Lake.at(path)

    def captured(self, lake: Lake, declared: Stream, rows: int) -> None:
        """Capture a source that has `rows` more rows, none of them late.

        Raises:
            SystemFailureError: `CAP-BENCH` when another number of records is on tape.
        """
        result = capture(self.spark, lake, declared)
        if (result.fed, result.records) != (rows, rows):
            raise SystemFailureError(
                "CAP-BENCH",
                f"{rows} bids were written, {result.fed} were fed and {result.records} are on tape",
                "the sides of the benchmark would not do the same work; report this",
            )

    def tidy(self) -> None:
        """Collect garbage in the JVM, so that no side pays for the previous one."""
        self.spark.sparkContext._jvm.java.lang.System.gc()  # type: ignore[union-attr]


def lay(bids: DataFrame, path: Path, form: str = "parquet") -> None:
    """Add bids to a folder of files: one per partition, in their order.

    A stream reads files in the order of their times; those of files written in parallel are
    arbitrary, so they are set.
    """
    known = set(path.glob(f"*.{form}"))
    bids.write.mode("append").format(form).save(str(path))
    fresh = sorted(set(path.glob(f"*.{form}")) - known)
    last = time.time()
    for number, file in enumerate(fresh, start=1 - len(fresh)):
        os.utime(file, (last + number, last + number))


def stream(name: str, path: Path, files: int, every: timedelta = timedelta(minutes=1)) -> Stream:
    """A stream of bids: workers by auction, times by the minute, `files` files per micro-batch."""
    return Stream(
        name=name,
        source=Source("parquet", str(path), {"maxFilesPerTrigger": str(files)}),
        workers=ByKey(("auction",), WORKERS),
        time=EventTime(column="dateTime", every=every),
    )


def nothing_declared(folder: Path) -> ProjectConfig:
    """Empty declarations: tapes and tables are used by their names."""
    return ProjectConfig(folder / "streams.yaml", {}, {}, {}, {})


def plain_copy(records: DataFrame, path: Path) -> None:
    """Baseline of a replay: the same rows, columns and partitions, and nothing else."""
    rows = records.select(
        F.col("worker").alias("_worker"), F.col("time").alias("_time"), F.col("data.*")
    )
    rows.write.format("delta").partitionBy("_worker").save(str(path))


def plain_sink(bench: Bench, source: Path, files: int, path: Path) -> None:
    """Baseline of a capture: the same micro-batches into a Delta table."""
    columns = bench.spark.read.parquet(str(source)).schema
    rows = bench.spark.readStream.schema(columns).option("maxFilesPerTrigger", files)
    query = (
        rows.parquet(str(source))
        .writeStream.format("delta")
        .option("checkpointLocation", f"{path}-checkpoint")
        .trigger(availableNow=True)
        .start(str(path))
    )
    query.awaitTermination()


def drop(*paths: Path) -> None:
    """Delete folders when they are no longer needed: the disk has room for one of each only."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
