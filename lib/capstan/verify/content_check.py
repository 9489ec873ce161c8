"""The records against the index: each event has exactly its own, and none is without an event."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from capstan.core.times import Box, Time
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError
from capstan.storage.tape.fingerprint import record_hashes, sum_mod64
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.tape import Cut, Tape, read_events, read_records
from capstan.storage.tape.time_columns import integers
from capstan.verify.event_columns import NO_WORKER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CELL = ["worker", "batch", "time"]
_LAST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Finding:
    """The first place of a worker where events and records disagree.

    Attributes:
        seq: The event, or None for records that have none.
        time: Its time, or None where that is not whole.
        detail: What was found, in words.
    """

    seq: int | None
    time: Time | None
    detail: str


def findings(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Collection[int] | None,
    retired: Sequence[Box] = (),
) -> dict[int, Finding]:
    """Compare the records at a cut with counts and fingerprints of `events`.

    Args:
        spark: The session.
        tape: The tape.
        cut: The cut; rows of later batches are not on the tape, and are not looked at.
        workers: Only these workers; None for all.
        retired: Times whose records were deleted; nothing is said of them.

    Returns:
        By worker its first finding, in the order of `seq`, records without an event last.
    """
    cells = cells_of(spark, tape, cut, workers, retired)
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
    # Dates and timestamps would come in Python's own types.
    coordinates = integers(F.col("first.time"), tape.time_type).alias("coordinates")
    rows = (
        differing.groupBy("worker")
        .agg(first)
        .select("worker", "first.batch", "first.seq", "first.stored", "first.promised", coordinates)
        .collect()
    )
    return {
        row["worker"]: Finding(
            row["seq"],
            None if None in row["coordinates"] else Time(row["coordinates"]),
            _in_words(row["seq"], row["batch"], row["stored"], row["promised"]),
        )
        for row in rows
    }


def require_counted(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Collection[int],
    region: Region | None = None,
) -> None:
    """Check that each event has as many records as it says; no column of the payload is read.

    Args:
        spark: The session.
        tape: The tape.
        cut: The cut.
        workers: Whose events.
        region: Only events at its times; None for all.

    Raises:
        CheckFailedError: `CAP-TAPE`, as `miscounted` tells it, of the first event of a worker.
    """
    cells = cells_of(spark, tape, cut, workers).where("stored <> promised")
    if region is not None:
        cells = cells.where(region_sql(tape.time_type, region, tape.columns))
    coordinates = integers(F.col("time"), tape.time_type).alias("time")
    first = cells.orderBy("worker", "seq").select(
        "worker", "seq", coordinates, "stored", "promised"
    )
    for row in first.limit(1).collect():
        time = None if row["time"] is None or None in row["time"] else Time(row["time"])
        raise miscounted(tape, row["worker"], row["seq"], time, row["stored"], row["promised"])


def miscounted(
    tape: Tape, worker: int, seq: int | None, time: Time | None, stored: int, promised: int
) -> CheckFailedError:
    """The error of an event that has not the records that it says.

    Args:
        tape: The tape.
        worker: Whose event it is.
        seq: Its number; None for records that have no event.
        time: Its time, where it has one.
        stored: How many records are there.
        promised: How many the event says.
    """
    shown = None if time is None else tape.time_type.render(time)
    where = "" if seq is None else f", event {seq} at {shown}"
    said = f"{stored} records are there, {promised} were recorded"
    return CheckFailedError(
        "CAP-TAPE",
        f"stream {tape.name}, worker {worker}{where}: "
        + ("records are there without an event" if seq is None else said),
        f"`capstan verify {tape.name} --deep` names the first of each worker; put back from a copy "
        "what is gone",
        stream=tape.name,
        worker=worker,
        seq=seq,
        time=shown,
        stored=stored,
        promised=promised,
    )


def cells_of(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Collection[int] | None,
    retired: Sequence[Box] = (),
) -> DataFrame:
    """A row per worker, batch and time of either side: what is stored, and what was promised.

    Columns: `worker INT, batch BIGINT, time STRUCT, seq BIGINT` (null without an event), then
    count and both hashes of the stored rows (`stored, h1, h2`) and of the event (`promised,
    promised_h1, promised_h2`), zero where there is nothing. No order promised.
    """
    gone = [region_sql(tape.time_type, Region(box), tape.columns) for box in retired]
    # A record without a time was not retired.
    kept = " AND ".join(f"NOT coalesce({each}, false)" for each in gone) or "true"
    rows = read_records(spark, tape, cut, workers=workers).where(kept)
    h1, h2 = record_hashes(rows)
    stored = rows.select(*_CELL, F.lit(1).alias("stored"), h1.alias("h1"), h2.alias("h2"))
    promised = (
        read_events(spark, tape, cut, workers=workers)
        .where("kind = 'messages'")
        .where(kept)
        .select(
            *_CELL,
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
        .groupBy(*_CELL)
        .agg(
            F.min("seq").alias("seq"),
            *(_or_zero(F.sum(name)).alias(name) for name in ("stored", "promised")),
            *(_or_zero(sum_mod64(F.col(name))).alias(name) for name in hashes),
        )
    )


def _or_zero(value: Column) -> Column:
    return F.coalesce(value, F.lit(0))


def _in_words(seq: int | None, batch: int, stored: int, promised: int) -> str:
    if seq is None:
        return f"{stored} records of batch {batch} without an event"
    if stored != promised:
        return f"{stored} records of batch {batch} are there, {promised} were recorded"
    return f"the records of batch {batch} are not those that were recorded"
