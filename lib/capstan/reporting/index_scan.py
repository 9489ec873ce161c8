"""One pass over a tape's index: counts by commit, and changes of held times."""

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
"""The columns of `events` that are read."""

# The number of rows that are aggregated at once.
_PORTION = 1 << 18


@dataclass(frozen=True, slots=True)
class Scanned:
    """The size of the data that a pass has read, for tests of its cost.

    Attributes:
        rows: The number of rows of `events`.
        columns: The number of columns.
        files: The number of files.
    """

    rows: int
    columns: int
    files: int


def scan(tape: Tape, cut: Cut, events: deltalake.DeltaTable) -> tuple[pa.Table, pa.Table, Scanned]:
    """Read the index once, in Arrow.

    Args:
        tape: The tape.
        cut: The last commit to read.
        events: The table of the index.

    Returns:
        Counts of events `n` and records `r` by `worker` and `commit`; net changes `diff` of holds
        by `worker`, `commit` and `time`, the last coordinate; the size of the data read.
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
        # A commit may be split over several portions.
        counted = summed(counted, ["worker", "commit"], ["n", "r"])
        changed = summed(changed, ["worker", "commit", "time"], ["diff"])
    # An imported tape that breaks the rules may have updates without a worker, time or count.
    read = Scanned(rows, len(COLUMNS), len(events.file_uris()))
    return counted, changed.drop_null(), read


def _counted(batch: pa.RecordBatch) -> pa.Table:
    ones = pa.array(np.ones(batch.num_rows, np.int64))
    columns = [batch.column("worker"), batch.column("commit"), ones, batch.column("records")]
    return summed(
        pa.table(columns, names=["worker", "commit", "n", "r"]), ["worker", "commit"], ["n", "r"]
    )


def _changed(batch: pa.RecordBatch, tape: Tape) -> pa.Table:
    """Net changes of holds in the last coordinate."""
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
    """The sums of some columns grouped by others, under the same names."""
    # With few rows, threads cost more than they save.
    grouped = table.group_by(keys, use_threads=table.num_rows > _PORTION)
    totals = grouped.aggregate([(value, "sum") for value in values])
    return totals.select([*keys, *(f"{value}_sum" for value in values)]).rename_columns(
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
