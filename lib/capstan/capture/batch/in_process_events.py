"""Events of a small micro-batch, numbered in this process; Spark only counts the records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from capstan.capture.batch.progress_events import MESSAGES, Statement
from capstan.core.times import Time, TimeType
from capstan.storage.delta.arrow_writer import arrow_schema
from capstan.storage.tape.fingerprint import fingerprint
from capstan.storage.tape.index import arrow_times
from capstan.storage.tape.schema import events_schema

Updates = Sequence[tuple[Time, int]]
Event = tuple[int, int, tuple[int, ...], Updates | None, int | None, Mapping[str, int] | None]
"""Worker, rank, time (empty for progress), updates, records and fingerprint."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The stored records of a micro-batch, aggregated by worker and time.

    Columns `_worker INT, _time STRUCT, records BIGINT, fingerprint STRUCT, at BIGINT`: number of
    records, their content hash, their greatest event time in microseconds.
    """

    rows: pa.Table

    @classmethod
    def of(cls, stored: DataFrame) -> Cells:
        """Count records, rows of `_worker, _time, _at` and hashes `_h1, _h2`, in one job."""
        cells = stored.groupBy("_worker", "_time").agg(
            F.count(F.lit(1)).alias("records"),
            fingerprint(F.col("_h1"), F.col("_h2")).alias("fingerprint"),
            F.max("_at").alias("at"),
        )
        return cls(cells.toArrow().combine_chunks())

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(self.rows["records"].to_pylist())

    @property
    def greatest(self) -> Mapping[int, int | None]:
        """The greatest event time of each worker's records, in microseconds."""
        greatest: dict[int, int | None] = {}
        pairs = zip(self.rows["_worker"].to_pylist(), self.rows["at"].to_pylist(), strict=True)
        for worker, at in pairs:
            known = greatest.get(worker)
            greatest[worker] = at if known is None else max(known, at if at is not None else known)
        return greatest

    def messages(self, time_type: TimeType) -> list[Event]:
        """The messages events of the micro-batch."""
        times = pa.chunked_array(self.rows["_time"]).combine_chunks()
        cells = zip(
            self.rows["_worker"].to_pylist(),
            arrow_times(times, time_type),
            self.rows["records"].to_pylist(),
            self.rows["fingerprint"].to_pylist(),
            strict=True,
        )
        return [(w, MESSAGES, time, None, n, content) for w, time, n, content in cells]


def numbered(
    time_type: TimeType,
    statements: Sequence[Statement],
    positions: Mapping[int, int],
    messages: Sequence[Event] = (),
    *,
    batch: int,
    commit: int,
) -> pa.Table:
    """The events of one commit, numbered from each worker's last; by worker and `seq`.

    The rank of a statement places it before or after messages; `positions` are the workers' next
    `seq`.
    """
    progress: list[Event] = [
        (worker, rank, (), moves, None, None) for worker, rank, moves in statements
    ]
    events = sorted([*progress, *messages], key=lambda event: event[:3])
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
    """Times given as integers, as a column of the tape's types; null for None."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    columns = [
        _typed([None if time is None else time[i] for time in times], field.type)
        for i, field in enumerate(fields)
    ]
    empty = pa.array([time is None for time in times], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=fields, mask=empty)


def _typed(values: list[int | None], kind: pa.DataType) -> pa.Array:
    # Arrow casts only 32-bit integers to dates.
    whole = pa.array(values, pa.int64())
    return whole.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else whole.cast(kind)


def _updates(updates: Iterable[Updates | None], kind: pa.ListType) -> pa.ListArray:
    """The updates of each event as a column; null for None."""
    flat: list[tuple[Time, int]] = []
    offsets: list[int | None] = []
    for moves in updates:
        offsets.append(None if moves is None else len(flat))
        flat += moves or ()
    offsets.append(len(flat))
    element = kind.value_type
    diffs = pa.array([diff for _, diff in flat], pa.int64())
    columns = [_times([time for time, _ in flat], element.field("time").type), diffs]
    fields = [element.field("time"), element.field("diff")]
    values = pa.StructArray.from_arrays(columns, fields=fields)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind)
