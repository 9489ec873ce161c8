"""One pass over a tape's index: how much of what came when, and what was taken up and let go."""

from __future__ import annotations

from dataclasses import dataclass

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.times import Kind
from capstan.storage.arrow_scan import iter_columns, merge_batches
from capstan.storage.tape.tape import Cut, Tape

COLUMNS = ("worker", "commit", "records", "updates")
"""What is read of `events`."""

# Rows that are added up at once.
_PORTION = 1 << 18


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a pass has read, for those who have to vouch for its cost.

    Attributes:
        rows: Rows of `events`.
        columns: Columns of it.
        files: Files of it.
    """

    rows: int
    columns: int
    files: int


def scan(tape: Tape, cut: Cut, events: deltalake.DeltaTable) -> tuple[pa.Table, pa.Table, Scanned]:
    """Read the index once, in Arrow.

    Args:
        tape: The tape.
        cut: Events up to its commit count.
        events: The table of the index.

    Returns:
        Counts `n` of events and `r` of records by `worker` and `commit`; net changes `diff` of
        what is held by `worker`, `commit` and `time`, which is the last coordinate; what was read.
    """
    counts: list[pa.Table] = [_no_counts()]
    changes: list[pa.Table] = [_no_changes()]
    rows = 0
    for portion in merge_batches(iter_columns(tape.paths.events, COLUMNS, events)):
        rows += portion.num_rows
        later = pc.greater(portion.column("commit"), cut.commit)
        part = portion.filter(pc.invert(later)) if pc.any(later).as_py() else portion
        counts.append(_counted(part))
        changes.append(_changed(part, tape))
    counted, changed = pa.concat_tables(counts), pa.concat_tables(changes)
    if len(counts) > 2:
        # The parts of different portions are parts of the same commits.
        counted = summed(counted, ["worker", "commit"], ["n", "r"])
        changed = summed(changed, ["worker", "commit", "time"], ["diff"])
    # A tape that was taken as it was may have updates without a worker, a time or a count.
    read = Scanned(rows, len(COLUMNS), len(events.file_uris()))
    return counted, changed.drop_null(), read


def _counted(batch: pa.RecordBatch) -> pa.Table:
    ones = pa.array(np.ones(batch.num_rows, np.int64))
    columns = [batch.column("worker"), batch.column("commit"), ones, batch.column("records")]
    return summed(
        pa.table(columns, names=["worker", "commit", "n", "r"]), ["worker", "commit"], ["n", "r"]
    )


def _changed(batch: pa.RecordBatch, tape: Tape) -> pa.Table:
    """Net changes of counts in the last coordinate."""
    updates = batch.column("updates")
    owners = pc.list_parent_indices(updates)
    flat = pc.list_flatten(updates)
    times = pc.struct_field(pc.struct_field(flat, "time"), tape.time_type.names[-1])
    table = pa.table(
        [
            batch.column("worker").take(owners),
            batch.column("commit").take(owners),
            _integers(times, tape.time_type.coordinates[-1].kind),
            pc.struct_field(flat, "diff"),
        ],
        names=["worker", "commit", "time", "diff"],
    )
    return summed(table, ["worker", "commit", "time"], ["diff"])


def summed(table: pa.Table, keys: list[str], values: list[str]) -> pa.Table:
    """The sums of some columns by others, under the same names."""
    # Of few rows, threads would cost more than they save.
    grouped = table.group_by(keys, use_threads=table.num_rows > _PORTION)
    found = grouped.aggregate([(value, "sum") for value in values])
    return found.select([*keys, *(f"{value}_sum" for value in values)]).rename_columns(
        [*keys, *values]
    )


def _integers(column: pa.Array, kind: Kind) -> pa.Array:
    if kind is Kind.TIMESTAMP:
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column.cast(pa.int32()).cast(pa.int64()) if kind is Kind.DATE else column


def _no_counts() -> pa.Table:
    fields = [("worker", pa.int32()), ("commit", pa.int64()), ("n", pa.int64()), ("r", pa.int64())]
    return pa.schema(fields).empty_table()


def _no_changes() -> pa.Table:
    fields = [
        ("worker", pa.int32()), ("commit", pa.int64()), ("time", pa.int64()), ("diff", pa.int64()),
    ]  # fmt: skip
    return pa.schema(fields).empty_table()
