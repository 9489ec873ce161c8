"""Re-injection of late and of repaired records: each enters the tape once, at the frontier.

Section 7 of `docs/protocol.md` says how. The row in `late` stays unchanged; of a late record its
batch number shows that it is on the tape, of a repaired one its row in `settled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from capstan.capture.batch.commit_events import hashed, numbered_events
from capstan.capture.batch.roster import Roster
from capstan.core.times import Kind
from capstan.errors import SystemFailureError
from capstan.storage.delta import delta
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.late.settled import settled_rows
from capstan.storage.tape import feed
from capstan.storage.tape.feed import BatchEntry, Origin
from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.schema import payload_of
from capstan.storage.tape.tape import Cut, Tape, append_events, newest_cut, stored_payload
from capstan.storage.tape.time_columns import coordinate
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class PutBackResult:
    """The outcome of a put-back."""

    stream: str
    batch: int | None  # None when there was nothing to put back
    records: int
    cut: int
    left: Mapping[str, int]  # remaining in `late`, by reason


def apply(spark: SparkSession, tape: Tape, entry: BatchEntry) -> None:
    """Put the late records of earlier batches, or repaired ones, on tape as batch `entry`."""
    cut = newest_cut(tape)
    roster = Roster.load(tape, cut)
    if entry.origin is Origin.FIX:
        waiting = _repaired(spark, tape, entry)
    else:
        waiting = _late(spark, tape, cut, entry.batch)
    rows = _rows(waiting, tape, roster, entry.batch)
    delta.append(rows, tape.paths.records, txn=Txn(f"late:{tape.name}", entry.batch))
    emit(f"{entry.origin}.records", stream=tape.name, batch=entry.batch)
    stored = delta.load(spark, tape.paths.records).where(f"batch = {entry.batch}")
    # The commit of events cannot be undone, so it waits until all records are stored.
    records = stored.count()
    if records != entry.detail["records"]:
        raise SystemFailureError(
            "CAP-FEED",
            f"stream {tape.name}: {entry.detail['records']} records of `late` should come back, "
            f"but {records} are stored",
            "`capstan verify --deep` names the damage; repair it, then run this again",
            stream=tape.name,
        )
    events = numbered_events(
        hashed(stored),
        tape,
        # An interrupted batch may have left workers that open with this commit.
        roster.after_batch(entry.batch).progress_since(roster),
        roster.positions(),
        batch=entry.batch,
        commit=cut.commit + 1,
    )
    note = {"stream": tape.name, "batch": entry.batch, str(entry.origin): True}
    append_events(tape, events, cut.commit + 1, note)
    emit(f"{entry.origin}.events", stream=tape.name, batch=entry.batch, records=records)


def _late(spark: SparkSession, tape: Tape, cut: Cut, batch: int) -> DataFrame:
    """The late records of batches before this one that are neither on tape nor settled."""
    late = delta.load(spark, tape.paths.late)
    settled = settled_rows(tape, Cut(cut.commit, batch))
    if settled.num_rows:
        places = spark.createDataFrame(settled.select(["batch", "pos"]))
        late = late.join(F.broadcast(places), ["batch", "pos"], "left_anti")
    since = feed.reinjected_before(tape, cut)
    return late.where(f"reason = 'late' AND batch >= {since} AND batch < {batch}")


def _repaired(spark: SparkSession, tape: Tape, entry: BatchEntry) -> DataFrame:
    """The records of a fix."""
    settled = delta.load(spark, tape.paths.settled)
    return settled.where(F.col("decision") == entry.detail["rows"])


def with_columns(rows: DataFrame, payload: StructType) -> DataFrame:
    """Rows with all columns of the stream in `data`: they may lack the newest ones."""
    stored = payload_of(rows.schema).names
    fields = {
        f.name: F.col("data").getField(f.name) if f.name in stored else F.lit(None).cast(f.dataType)
        for f in payload.fields
    }
    data = F.struct(*(column.alias(name) for name, column in fields.items()))
    return rows.withColumn("data", data)


def _rows(waiting: DataFrame, tape: Tape, roster: Roster, batch: int) -> DataFrame:
    """Records that wait in `late` or `settled`, as rows of `records`."""
    payload = stored_payload(tape)
    rows = with_columns(waiting, payload).select("data", "worker", "time", "batch", "pos")
    if tape.settings.workers["by"] == "key":
        rows = rows.withColumn("worker", _key_worker(tape, payload, roster))
    held = pa.table(
        {
            "worker": pa.array([worker.number for worker in roster.workers], pa.int32()),
            "held": pa.array([worker.held[-1] for worker in roster.workers], pa.int64()),
        }
    )
    last = tape.time_type.coordinates[-1]
    epoch = F.lit(batch).cast("bigint")
    # Without event times, the last one is the epoch.
    own = epoch if last.kind is Kind.BIGINT else F.unix_micros(F.col("time").getField(last.name))
    at = coordinate(F.greatest(own, F.col("held")), last)
    first = [epoch.alias(name) for name in tape.time_type.names[:-1]]
    return (
        rows.join(F.broadcast(waiting.sparkSession.createDataFrame(held)), "worker")
        .orderBy("batch", "pos")
        .select(
            "worker",
            F.lit(batch).cast("bigint").alias("batch"),
            F.struct(*first, at).alias("time"),
            F.monotonically_increasing_id().alias("pos"),
            "data",
        )
    )


def _key_worker(tape: Tape, payload: StructType, roster: Roster) -> Column:
    """The open worker of each row's key."""
    fields = [payload[name] for name in tape.settings.workers["columns"]]
    bucket = F.pmod(row_hashes(fields, F.col("data"))[0], F.lit(len(roster.workers)))
    return (bucket + F.lit(roster.workers[0].number)).cast("int")
