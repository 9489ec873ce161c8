"""Checks of a tape's content: its files are whole, and each event has exactly its own records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from capstan.core.times import Box, Time
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError, SystemFailureError
from capstan.errors.shell_command import command
from capstan.storage.delta import delta
from capstan.storage.lake import is_table, sizes_of
from capstan.storage.tape.fingerprint import record_hashes, sum_mod64
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.tape import Cut, Tape, placed, read_events, read_records
from capstan.storage.tape.time_columns import integers
from capstan.verify.event_columns import NO_WORKER

_LAST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ContentMismatch:
    """The first mismatch between events and records of a worker."""

    seq: int | None  # None for records without an event
    time: Time | None  # None if incomplete
    detail: str


def find_mismatches(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Collection[int] | None,
    retired: Sequence[Box] = (),
) -> dict[int, ContentMismatch]:
    """The first mismatch of each worker, by `seq`; records without an event come last."""
    # Rows of batches after the cut are not on the tape, and those of `retired` times were deleted;
    # both are ignored.
    cells = _cells(spark, tape, cut, workers, retired)
    differing = cells.where("stored <> promised OR h1 <> promised_h1 OR h2 <> promised_h2")
    first = F.min(
        F.struct(
            F.coalesce("seq", F.lit(_LAST)).alias("order"),
            "time",
            "batch",
            "seq",
            "stored",
            "promised",
        )
    ).alias("first")
    # As integers: collected dates and timestamps would be Python's own types.
    coordinates = integers(F.col("first.time"), tape.time_type).alias("coordinates")
    rows = (
        differing.groupBy("worker")
        .agg(first)
        .select("worker", "first.batch", "first.seq", "first.stored", "first.promised", coordinates)
        .collect()
    )
    return {
        row["worker"]: ContentMismatch(
            row["seq"],
            None if None in row["coordinates"] else Time(row["coordinates"]),
            _describe(row["seq"], row["batch"], row["stored"], row["promised"]),
        )
        for row in rows
    }


def require_counts(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Collection[int],
    region: Region | None = None,
) -> None:
    """Check the number of records of each event, without reading the payload."""
    cells = _cells(spark, tape, cut, workers).where("stored <> promised")
    if region is not None:
        cells = placed(cells, tape, region)
    coordinates = integers(F.col("time"), tape.time_type).alias("time")
    first = cells.orderBy("worker", "seq").select(
        "worker", "seq", coordinates, "stored", "promised"
    )
    for row in first.limit(1).collect():
        time = None if row["time"] is None or None in row["time"] else Time(row["time"])
        raise count_mismatch(tape, row["worker"], row["seq"], time, row["stored"], row["promised"])


def count_mismatch(
    tape: Tape, worker: int, seq: int | None, time: Time | None, stored: int, promised: int
) -> CheckFailedError:
    """The error for a number of records that is not the event's; `seq` is None without an event."""
    shown = None if time is None else tape.time_type.render(time)
    event = "" if seq is None else f", event {seq} at {shown}"
    counts = f"{stored} records are stored, {promised} were recorded"
    return CheckFailedError(
        "CAP-TAPE",
        f"stream {tape.name}, worker {worker}{event}: "
        + ("records without an event are stored" if seq is None else counts),
        f"{command('verify', tape.name, '--deep')} names the first one of each worker; restore "
        "missing records from a backup",
        stream=tape.name,
        worker=worker,
        seq=seq,
        time=shown,
        stored=stored,
        promised=promised,
    )


def _cells(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Collection[int] | None,
    retired: Sequence[Box] = (),
) -> DataFrame:
    """A row per worker, batch and time of either side, with stored and promised contents.

    Columns: `worker INT, batch BIGINT, time STRUCT`, the `stamp` if the tape has it, `seq BIGINT`
    (null without an event), then count and both hashes of the stored rows (`stored, h1, h2`) and of
    the event (`promised, promised_h1, promised_h2`), zero for an absent side. In no order.
    """
    cell = ["worker", "batch", "time", *tape.stamp]
    regions = [region_sql(tape.time_type, Region(box), tape.columns) for box in retired]
    # A record without a time was not retired.
    kept = " AND ".join(f"NOT coalesce({region}, false)" for region in regions) or "true"
    rows = read_records(spark, tape, cut, workers=workers).where(kept)
    h1, h2 = record_hashes(rows)
    stored = rows.select(*cell, F.lit(1).alias("stored"), h1.alias("h1"), h2.alias("h2"))
    promised = (
        read_events(spark, tape, cut, workers=workers)
        .where("kind = 'messages'")
        .where(kept)
        .select(
            *cell,
            "seq",
            F.col("records").alias("promised"),
            F.col("fingerprint.h1").alias("promised_h1"),
            F.col("fingerprint.h2").alias("promised_h2"),
        )
    )
    hashes = ("h1", "h2", "promised_h1", "promised_h2")
    return (
        stored.unionByName(promised, allowMissingColumns=True)
        .withColumn("worker", F.coalesce("worker", F.lit(NO_WORKER)))
        .groupBy(*cell)
        .agg(
            F.min("seq").alias("seq"),
            *(_or_zero(F.sum(name)).alias(name) for name in ("stored", "promised")),
            *(_or_zero(sum_mod64(F.col(name))).alias(name) for name in hashes),
        )
    )


def _or_zero(value: Column) -> Column:
    return F.coalesce(value, F.lit(0))


def _describe(seq: int | None, batch: int, stored: int, promised: int) -> str:
    if seq is None:
        return f"{stored} records of batch {batch} without an event"
    if stored != promised:
        return f"{stored} records of batch {batch} are stored, {promised} were recorded"
    return f"the records of batch {batch} differ from those recorded"


@dataclass(frozen=True, slots=True)
class FileDamage:
    """A missing or truncated file; sizes in bytes."""

    path: str
    written: int
    present: int | None  # None if it is missing

    def __str__(self) -> str:
        if self.present is None:
            return f"{self.path} is missing"
        return f"{self.path} has {self.present:,} of {self.written:,} bytes"

    def to_json(self) -> dict[str, object]:
        """The damage as a JSON object."""
        return {"path": self.path, "written": self.written, "there": self.present}


def find_damage(tape: Tape) -> list[FileDamage]:
    """Files of a tape's tables whose length differs from the log, by table and path."""
    # Checks the newest version of each table, without a JVM and without opening a file.
    damaged = []
    paths = tape.paths
    late = (paths.late, paths.settled)
    for table in (paths.workers, paths.events, paths.records, *late, paths.feed):
        if not is_table(table):
            continue  # Only captured tapes have a feed, and few have settled rows.
        files = delta.open_table(table).files()
        # Delta stores paths relative to the table, unless the file belongs to another table.
        locations = [delta.resolve_path(table, path) for path in files["path"].to_pylist()]
        expected = dict(zip(locations, files["size_bytes"].to_pylist(), strict=True))
        sizes = sizes_of(sorted(expected))
        damaged += [
            FileDamage(path, written, sizes[path])
            for path, written in sorted(expected.items())
            if sizes[path] != written
        ]
    return damaged


def require_whole(tape: Tape) -> None:
    """Check that every file of a tape is present with its full length."""
    damaged = find_damage(tape)
    if not damaged:
        return
    others = f"; {len(damaged) - 1} more files are damaged" if len(damaged) > 1 else ""
    raise SystemFailureError(
        "CAP-DAMAGED",
        f"stream {tape.name} is damaged: {damaged[0]}{others}",
        "restore these files from a backup, then verify again; --json lists all of them",
        stream=tape.name,
        files=[damage.to_json() for damage in damaged],
    )
