"""Late records put back: they enter the tape at the frontier, once each.

A put-back is a batch of its own. It takes every record that came late in an earlier batch and was
not put back yet, and sends it at the least upper bound of its time and what its worker holds. The
row in `late` stays as it is; from the number of the batch follows that it is on tape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from capstan.capture.progress_events import numbered_events
from capstan.capture.roster import Roster
from capstan.errors import SystemFailureError
from capstan.instrumentation import emit
from capstan.storage import delta
from capstan.storage.idempotent_write import Txn
from capstan.storage.tape import feed
from capstan.storage.tape.feed import BatchEntry
from capstan.storage.tape.fingerprint import record_hashes, row_hashes
from capstan.storage.tape.schema import payload_of
from capstan.storage.tape.tape import Tape, append_events, newest_cut, stored_payload
from capstan.storage.tape.time_columns import coordinate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class PutBack:
    """What a put-back did.

    Attributes:
        stream: The stream.
        batch: The batch that they are in; None where there was nothing to put back.
        records: Records that were put back now.
        cut: The tape's newest commit.
        left: What is still kept beside the tape, by reason.
    """

    stream: str
    batch: int | None
    records: int
    cut: int
    left: Mapping[str, int]


def carry_out(spark: SparkSession, tape: Tape, claim: BatchEntry) -> None:
    """Put the late records of earlier batches on tape, in one commit: the batch of this claim.

    Raises:
        SystemFailureError: `CAP-FEED` where not as many are stored as the claim says; none is on
            tape then.
    """
    cut = newest_cut(tape)
    roster = Roster.load(tape, cut)
    rows = _rows(spark, tape, roster, feed.put_back_before(tape, cut), claim.batch)
    delta.append(rows, tape.paths.records, txn=Txn(f"late:{tape.name}", claim.batch))
    emit("put-back.records", stream=tape.name, batch=claim.batch)
    stored = spark.read.format("delta").load(tape.paths.records).where(f"batch = {claim.batch}")
    # The commit of events cannot be taken back: it waits until all of them are there.
    records = stored.count()
    if records != claim.detail["records"]:
        raise SystemFailureError(
            "CAP-FEED",
            f"stream {tape.name}: {claim.detail['records']} late records are to be put back, and "
            f"{records} are there to be",
            "see `capstan verify --deep` for what is damaged; once it is mended, run this again",
            stream=tape.name,
        )
    h1, h2 = record_hashes(stored)
    hashed = stored.select(
        F.col("worker").alias("_worker"),
        F.col("time").alias("_time"),
        h1.alias("_h1"),
        h2.alias("_h2"),
    )
    events = numbered_events(
        hashed,
        tape,
        # A batch that was cut off may have left workers that open with this commit.
        roster.past(claim.batch).progress_since(roster),
        roster.positions(),
        batch=claim.batch,
        commit=cut.commit + 1,
    )
    note = {"stream": tape.name, "batch": claim.batch, "put-back": True}
    append_events(tape, events, cut.commit + 1, note)
    emit("put-back.events", stream=tape.name, batch=claim.batch, records=records)


def _rows(spark: SparkSession, tape: Tape, roster: Roster, since: int, batch: int) -> DataFrame:
    """The late records of batches from `since` to before `batch`, as rows of `records`."""
    late = spark.read.format("delta").load(tape.paths.late)
    chosen = late.where(f"reason = 'late' AND batch >= {since} AND batch < {batch}")
    payload = stored_payload(tape)
    data = _data(payload_of(late.schema), payload)
    keyed = _key(tape, payload, roster)
    owned = chosen.select(data.alias("data"), "worker", "time", "batch", "pos")
    if keyed is not None:
        owned = owned.withColumn("worker", keyed)
    held = pa.table(
        {
            "worker": pa.array([worker.number for worker in roster.workers], pa.int32()),
            "held": pa.array([worker.held[-1] for worker in roster.workers], pa.int64()),
        }
    )
    names = tape.time_type.names
    own = F.unix_micros(F.col("time").getField(names[-1]))
    last = coordinate(F.greatest(own, F.col("held")), tape.time_type.coordinates[-1])
    first = [F.lit(batch).cast("bigint").alias(name) for name in names[:-1]]
    return (
        owned.join(F.broadcast(spark.createDataFrame(held)), "worker")
        .orderBy("batch", "pos")
        .select(
            "worker",
            F.lit(batch).cast("bigint").alias("batch"),
            F.struct(*first, last).alias("time"),
            F.monotonically_increasing_id().alias("pos"),
            "data",
        )
    )


def _data(kept: StructType, payload: StructType) -> Column:
    """The columns of the stream, of which `late` may lack the newest."""
    there = set(kept.names)
    return F.struct(
        *(
            (
                F.col("data").getField(field.name)
                if field.name in there
                else F.lit(None).cast(field.dataType)
            ).alias(field.name)
            for field in payload.fields
        )
    )


def _key(tape: Tape, payload: StructType, roster: Roster) -> Column | None:
    """The worker that a key belongs to now; None where workers are not by key."""
    fixed = tape.settings["fixed"]
    assert isinstance(fixed, Mapping)
    by = fixed["workers"]
    if by["by"] != "key":
        return None
    fields = [payload[name] for name in by["columns"]]
    bucket = F.pmod(row_hashes(fields, F.col("data"))[0], F.lit(len(roster.workers)))
    return (bucket + F.lit(roster.workers[0].number)).cast("int")
