"""The events of a small micro-batch, numbered in this process: Spark only counts its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from capstan.capture.progress_events import MESSAGES, Statement
from capstan.core.times import Time, TimeType
from capstan.storage.arrow_writer import arrow_schema
from capstan.storage.tape.fingerprint import fingerprint
from capstan.storage.tape.index import arrow_times
from capstan.storage.tape.schema import events_schema

Updates = Sequence[tuple[Time, int]]
Event = tuple[int, int, tuple[int, ...], Updates | None, int | None, Mapping[str, int] | None]
"""Worker, rank, time (empty for progress), updates, records and fingerprint."""


@dataclass(frozen=True, slots=True)
class Cells:
    """What is stored of a micro-batch, by worker and time.

    Attributes:
        rows: Columns `_worker INT, _time STRUCT, records BIGINT, fingerprint STRUCT, at BIGINT`:
            how many records, their content hash, their greatest event time in microseconds.
    """

    rows: pa.Table

    @classmethod
    def of(cls, stored: DataFrame) -> Cells:
        """Count the records of a micro-batch, in one job.

        Args:
            stored: A row each: `_worker`, `_time`, `_at`, and the content hashes `_h1`, `_h2`.
        """
        found = stored.groupBy("_worker", "_time").agg(
            F.count(F.lit(1)).alias("records"),
            fingerprint(F.col("_h1"), F.col("_h2")).alias("fingerprint"),
            F.max("_at").alias("at"),
        )
        return cls(found.toArrow().combine_chunks())

    @property
    def records(self) -> int:
        """How many records there are."""
        return sum(self.rows["records"].to_pylist())

    @property
    def greatest(self) -> Mapping[int, int | None]:
        """Per worker the greatest event time of its records, in microseconds."""
        found: dict[int, int | None] = {}
        pairs = zip(self.rows["_worker"].to_pylist(), self.rows["at"].to_pylist(), strict=True)
        for worker, at in pairs:
            known = found.get(worker)
            found[worker] = at if known is None else max(known, at if at is not None else known)
        return found

    def numbered(
        self,
        time_type: TimeType,
        statements: Sequence[Statement],
        positions: Mapping[int, int],
        *,
        batch: int,
        commit: int,
    ) -> pa.Table:
        """The events of one commit; arguments and columns as of `numbered`."""
        times = pa.chunked_array(self.rows["_time"]).combine_chunks()
        messages = zip(
            self.rows["_worker"].to_pylist(),
            arrow_times(times, time_type),
            self.rows["records"].to_pylist(),
            self.rows["fingerprint"].to_pylist(),
            strict=True,
        )
        sent = [(w, MESSAGES, time, None, n, content) for w, time, n, content in messages]
        return numbered(time_type, statements, positions, sent, batch=batch, commit=commit)


def numbered(
    time_type: TimeType,
    statements: Sequence[Statement],
    positions: Mapping[int, int],
    messages: Sequence[Event] = (),
    *,
    batch: int,
    commit: int,
) -> pa.Table:
    """The events of one commit, numbered on from each worker's last.

    Args:
        time_type: The coordinates of the tape's times.
        statements: The progress statements, before or after a worker's messages by their rank.
        positions: The next `seq` by worker.
        messages: The messages events; none where only progress is stated.
        batch: The micro-batch.
        commit: The ordinal of the commit.

    Returns:
        Rows with the columns of `events`, by worker and `seq`.
    """
    told: list[Event] = [
        (worker, rank, (), moves, None, None) for worker, rank, moves in statements
    ]
    events = sorted([*told, *messages], key=lambda event: event[:3])
    next_seq, seqs = dict(positions), []
    for worker, *_ in events:
        seqs.append(next_seq[worker])
        next_seq[worker] += 1
    workers, ranks, times, updates, records, contents = zip(*events, strict=True)
    schema = arrow_schema(events_schema(time_type))
    kinds = ["messages" if rank == MESSAGES else "progress" for rank in ranks]
    columns = {
        "worker": pa.array(workers, pa.int32()),
        "seq": pa.array(seqs, pa.int64()),
        "kind": pa.array(kinds, pa.string()),
        "time": _times([time or None for time in times], schema.field("time").type),
        "updates": _updates(updates, schema.field("updates").type),
        "batch": pa.array([batch] * len(events), pa.int64()),
        "commit": pa.array([commit] * len(events), pa.int64()),
        "records": pa.array(records, pa.int64()),
        "fingerprint": pa.array(contents, schema.field("fingerprint").type),
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _times(times: Sequence[Time | tuple[int, ...] | None], kind: pa.StructType) -> pa.StructArray:
    """Times as integers, as a column of the tape's own types; null where there is none."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    columns = [
        _typed([None if time is None else time[i] for time in times], field.type)
        for i, field in enumerate(fields)
    ]
    empty = pa.array([time is None for time in times], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=fields, mask=empty)


def _typed(values: list[int | None], kind: pa.DataType) -> pa.Array:
    # A day is an integer of 32 bits before it is one of a date.
    whole = pa.array(values, pa.int64())
    return whole.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else whole.cast(kind)


def _updates(updates: Iterable[Updates | None], kind: pa.ListType) -> pa.ListArray:
    """Updates of each event, null where it has none."""
    flat: list[tuple[Time, int]] = []
    offsets: list[int | None] = []
    for each in updates:
        offsets.append(None if each is None else len(flat))
        flat += each or ()
    offsets.append(len(flat))
    of = kind.value_type
    diffs = pa.array([diff for _, diff in flat], pa.int64())
    columns = [_times([time for time, _ in flat], of.field("time").type), diffs]
    values = pa.StructArray.from_arrays(columns, fields=[of.field("time"), of.field("diff")])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind)
