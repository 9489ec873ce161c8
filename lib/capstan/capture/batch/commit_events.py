"""The events of one commit of a tape: progress of its workers, and counts of their records.

Spark numbers the events of a large micro-batch; those of any other commit are numbered in this
process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from capstan.core.times import Time, TimeType
from capstan.storage.delta.arrow_writer import arrow_schema, struct
from capstan.storage.tape.fingerprint import fingerprint, record_hashes
from capstan.storage.tape.index import arrow_times
from capstan.storage.tape.schema import events_schema, updates_array
from capstan.storage.tape.tape import append_few_events

if TYPE_CHECKING:
    from capstan.storage.delta.commits import Note
    from capstan.storage.tape.tape import Tape

# Ranks within a commit: a worker's next number, its opening, its messages, its closing.
POSITION, OPENING, MESSAGES, CLOSING = -1, 0, 1, 2

Updates = Sequence[tuple[Time, int]]
Statement = tuple[int, int, Updates]
"""A worker, the rank of its statement, and the updates."""
Event = tuple[int, int, tuple[int, ...], Mapping[str, object]]
"""Worker, rank, time (empty for progress), and further columns of `events`."""


def moved(before: Time, after: Time) -> Updates:
    """The updates that move a worker from one held time to another."""
    return [(before, -1), (after, 1)]


def hashed(records: DataFrame) -> DataFrame:
    """Rows of the table `records`, as the functions here count them: `worker, time, h1, h2`.

    Those of a tape of stamps have the `stamp` as well.
    """
    h1, h2 = record_hashes(records)
    stamp = [name for name in records.columns if name == "stamp"]
    return records.select("worker", "time", h1.alias("h1"), h2.alias("h2"), *stamp)


def numbered_events(
    stored: DataFrame,
    tape: Tape,
    statements: Sequence[Statement],
    positions: Mapping[int, int],
    *,
    batch: int,
    commit: int,
) -> DataFrame:
    """The events of one commit, numbered from each worker's last, in one partition.

    `stored` has a row per record: `worker INT, time STRUCT`, hashes `h1, h2 BIGINT`, and on a tape
    of stamps the `stamp`. The rank of a statement places it before or after messages; `positions`
    are the workers' next `seq`.
    """
    messages = stored.groupBy("worker", "time", *tape.stamp).agg(
        F.count(F.lit(1)).alias("records"),
        fingerprint(F.col("h1"), F.col("h2")).alias("fingerprint"),
    )
    # A row of rank `POSITION` per worker carries its next `seq` as `start`.
    rows: list[dict[str, object]] = [
        {"worker": worker, "rank": POSITION, "start": start} for worker, start in positions.items()
    ]
    rows += [
        {"worker": worker, "rank": rank, "updates": updates} for worker, rank, updates in statements
    ]
    updates = updates_array(tape.time_type)
    columns = struct(worker="integer", rank="integer", start="long", updates=updates)
    progress = pa.Table.from_pylist(rows, schema=arrow_schema(columns))
    whole = Window.partitionBy("worker")
    order = whole.orderBy("rank", "time", *tape.stamp)
    return (
        messages.withColumn("rank", F.lit(MESSAGES))
        .unionByName(stored.sparkSession.createDataFrame(progress), allowMissingColumns=True)
        .select(
            "worker",
            (F.max("start").over(whole) + F.row_number().over(order) - 2).alias("seq"),
            F.when(F.col("rank") == MESSAGES, "messages").otherwise("progress").alias("kind"),
            "time",
            "updates",
            F.lit(batch).cast("bigint").alias("batch"),
            F.lit(commit).cast("bigint").alias("commit"),
            "records",
            "fingerprint",
            *tape.stamp,
            "rank",
        )
        .where(F.col("rank") > POSITION)
        .drop("rank")
        .coalesce(1)
    )


@dataclass(frozen=True, slots=True)
class Cells:
    """The stored records of a micro-batch, aggregated by worker and time.

    Columns `worker INT, time STRUCT, records BIGINT, fingerprint STRUCT, at BIGINT`: number of
    records, their content hash, their greatest event time in microseconds.
    """

    rows: pa.Table

    @classmethod
    def of(cls, stored: DataFrame) -> Cells:
        """Count records, rows of `worker, time, at` and hashes `h1, h2`, in one job."""
        cells = stored.groupBy("worker", "time").agg(
            F.count(F.lit(1)).alias("records"),
            fingerprint(F.col("h1"), F.col("h2")).alias("fingerprint"),
            F.max("at").alias("at"),
        )
        return cls(cells.toArrow().combine_chunks())

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(self.rows["records"].to_pylist())

    @property
    def greatest(self) -> Mapping[int, int | None]:
        """The greatest event time of each worker's records, in microseconds."""
        rows = self.rows.group_by("worker").aggregate([("at", "max")]).to_pylist()
        return {row["worker"]: row["at_max"] for row in rows}

    def messages(self, time_type: TimeType) -> list[Event]:
        """The messages events of the micro-batch."""
        times = pa.chunked_array(self.rows["time"]).combine_chunks()
        cells = zip(
            self.rows["worker"].to_pylist(),
            arrow_times(times, time_type),
            self.rows["records"].to_pylist(),
            self.rows["fingerprint"].to_pylist(),
            strict=True,
        )
        return [
            (w, MESSAGES, time, {"kind": "messages", "records": n, "fingerprint": content})
            for w, time, n, content in cells
        ]


def numbered(
    time_type: TimeType,
    statements: Sequence[Statement],
    positions: Mapping[int, int],
    messages: Sequence[Event] = (),
    *,
    batch: int,
    commit: int,
) -> pa.Table:
    """The same as `numbered_events`, by worker and `seq`, with the messages of `Cells`."""
    progress: list[Event] = [
        (worker, rank, (), {"kind": "progress", "updates": updates})
        for worker, rank, updates in statements
    ]
    next_seq, rows = dict(positions), []
    for event in sorted([*progress, *messages], key=lambda event: event[:3]):
        worker, _, time, columns = event
        place = {"worker": worker, "seq": next_seq[worker], "batch": batch, "commit": commit}
        rows.append({**place, "time": time or None, **columns})
        next_seq[worker] += 1
    return pa.Table.from_pylist(rows, schema=arrow_schema(events_schema(time_type)))


def append_statements(
    tape: Tape,
    statements: Sequence[Statement],
    positions: Mapping[int, int],
    note: Note,
    *,
    batch: int,
    commit: int,
) -> None:
    """Append a commit without records."""
    events = numbered(tape.time_type, statements, positions, batch=batch, commit=commit)
    append_few_events(tape, events, commit, {"stream": tape.name, **note})
