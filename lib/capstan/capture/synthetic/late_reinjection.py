"""Re-injection of late records: each enters the tape once, by section 7 of `docs/protocol.md`.

The row in `late` stays unchanged; its batch number shows that it is on the tape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from capstan.capture.batch.commit_events import hashed, numbered_events
from capstan.capture.batch.roster import Roster
from capstan.errors import SystemFailureError
from capstan.storage.delta import delta
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.late.settled import dropped_rows
from capstan.storage.tape import feed
from capstan.storage.tape.feed import BatchEntry
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
    """Put the late records of earlier batches on tape as batch `entry`, in one commit."""
    cut = newest_cut(tape)
    roster = Roster.load(tape, cut)
    late = delta.load(spark, tape.paths.late)
    dropped = dropped_rows(tape, Cut(cut.commit, entry.batch))
    if dropped.num_rows:
        places = spark.createDataFrame(dropped.select(["batch", "pos"]))
        late = late.join(F.broadcast(places), ["batch", "pos"], "left_anti")
    rows = _rows(late, tape, roster, feed.reinjected_before(tape, cut), entry.batch)
    delta.append(rows, tape.paths.records, txn=Txn(f"late:{tape.name}", entry.batch))
    emit("put-back.records", stream=tape.name, batch=entry.batch)
    stored = delta.load(spark, tape.paths.records).where(f"batch = {entry.batch}")
    # The commit of events cannot be undone, so it waits until all records are stored.
    records = stored.count()
    if records != entry.detail["records"]:
        raise SystemFailureError(
            "CAP-FEED",
            f"stream {tape.name}: {entry.detail['records']} late records should be put back, "
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
    note = {"stream": tape.name, "batch": entry.batch, "put-back": True}
    append_events(tape, events, cut.commit + 1, note)
    emit("put-back.events", stream=tape.name, batch=entry.batch, records=records)


def _rows(late: DataFrame, tape: Tape, roster: Roster, since: int, batch: int) -> DataFrame:
    """The late records of batches from `since` up to `batch` (exclusive), as rows of `records`."""
    chosen = late.where(f"reason = 'late' AND batch >= {since} AND batch < {batch}")
    payload = stored_payload(tape)
    # `late` may lack the newest of the stream's columns.
    stored = payload_of(late.schema).names
    fields = {
        f.name: F.col("data").getField(f.name) if f.name in stored else F.lit(None).cast(f.dataType)
        for f in payload.fields
    }
    data = F.struct(*(column.alias(name) for name, column in fields.items()))
    rows = chosen.select(data.alias("data"), "worker", "time", "batch", "pos")
    if tape.settings.workers["by"] == "key":
        rows = rows.withColumn("worker", _key_worker(tape, payload, roster))
    held = pa.table(
        {
            "worker": pa.array([worker.number for worker in roster.workers], pa.int32()),
            "held": pa.array([worker.held[-1] for worker in roster.workers], pa.int64()),
        }
    )
    names = tape.time_type.names
    event_time = F.unix_micros(F.col("time").getField(names[-1]))
    last = coordinate(F.greatest(event_time, F.col("held")), tape.time_type.coordinates[-1])
    first = [F.lit(batch).cast("bigint").alias(name) for name in names[:-1]]
    return (
        rows.join(F.broadcast(late.sparkSession.createDataFrame(held)), "worker")
        .orderBy("batch", "pos")
        .select(
            "worker",
            F.lit(batch).cast("bigint").alias("batch"),
            F.struct(*first, last).alias("time"),
            F.monotonically_increasing_id().alias("pos"),
            "data",
        )
    )


def _key_worker(tape: Tape, payload: StructType, roster: Roster) -> Column:
    """The open worker of each row's key."""
    fields = [payload[name] for name in tape.settings.workers["columns"]]
    bucket = F.pmod(row_hashes(fields, F.col("data"))[0], F.lit(len(roster.workers)))
    return (bucket + F.lit(roster.workers[0].number)).cast("int")
