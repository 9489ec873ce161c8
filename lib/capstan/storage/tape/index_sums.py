"""Sums over a tape's index by worker and commit, from one pass over its files.

A pass aggregates five columns of `events` in Arrow, without a Python object per event. Whatever
pages ask of the index as a whole comes from these sums, so its files are read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.times import TimeType
from capstan.storage.delta.arrow_scan import iter_columns, merge_batches
from capstan.storage.delta.incremental_read import Parts, read_incrementally
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.tape.tape import Tape
from capstan.storage.tape.time_columns import coordinates, held_changes

_COLUMNS = ("worker", "commit", "records", "time", "updates")
# The number of rows that are aggregated by one thread.
_PORTION = 1 << 18
_TOGETHER: Mapping[str, str] = {
    "n": "sum", "r": "sum", "first": "min", "last": "max", "diff": "sum",
}  # fmt: skip
_COUNTS = pa.schema(
    [
        ("worker", pa.int32()), ("commit", pa.int64()), ("n", pa.int64()), ("r", pa.int64()),
        ("first", pa.int64()), ("last", pa.int64()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class IndexSums:
    """Sums over the events of a tape.

    `counts` are by worker and commit: the number of events `n`, and of records `r`, and the `first`
    and `last` of their times in the leading coordinate, null without records. `changes` are the net
    changes `diff` of held times, by time as well, a column `t0`, `t1`, ... for each coordinate.
    """

    counts: pa.Table
    changes: pa.Table

    def up_to(self, commit: int) -> IndexSums:
        """The sums over the commits up to this one; what names no worker or time is left out."""
        counts, changes = (
            sums.filter(pc.less_equal(sums["commit"], commit))
            for sums in (self.counts, self.changes)
        )
        # An imported tape that breaks the rules may have updates without a worker, time or count.
        return IndexSums(counts, changes.drop_null())

    def by(self, key: str) -> pa.Table:
        """The counts by `worker` or `commit` alone."""
        return together(self.counts, [key])


def read_sums(tape: Tape) -> IndexSums:
    """The sums over all events of a tape."""
    width = len(tape.time_type.coordinates)

    def add(earlier: Parts, events: OpenedTable, files: Sequence[str]) -> Parts:
        counts = [earlier.get("counts", _COUNTS.empty_table())]
        changes = [earlier.get("changes", no_changes(width))]
        columns = iter_columns(tape.paths.events, _COLUMNS, events, files)
        for portion in merge_batches(columns):
            counts.append(_counted(portion, tape.time_type))
            moved = held_changes(portion, ["worker", "commit"], width).cast(changes[0].schema)
            changes.append(together(moved, moved.column_names[:-1]))
        # A commit may be split over several portions.
        keys = changes[0].column_names[:-1]
        return {
            "counts": together(pa.concat_tables(counts), ["worker", "commit"]),
            "changes": together(pa.concat_tables(changes), keys),
        }

    return IndexSums(**read_incrementally("index sums", tape.paths.events, add))


def _counted(batch: pa.RecordBatch, time_type: TimeType) -> pa.Table:
    times = coordinates(batch.column("time"), len(time_type.coordinates))[time_type.leading]
    ones = pa.array(np.ones(batch.num_rows, np.int64))
    owners = [batch.column("worker"), batch.column("commit")]
    columns = [*owners, ones, batch.column("records"), times, times]
    counted = pa.table(columns, names=_COUNTS.names).cast(_COUNTS)
    return together(counted, ["worker", "commit"])


def together(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The sums, least and greatest of the measures of a table grouped by some keys."""
    measures = [name for name in table.column_names if name in _TOGETHER]
    # With few rows, threads cost more than they save.
    grouped = table.group_by(list(keys), use_threads=table.num_rows > _PORTION)
    kinds = [(name, _TOGETHER[name]) for name in measures]
    totals = grouped.aggregate(kinds)
    chosen = totals.select([*keys, *(f"{name}_{kind}" for name, kind in kinds)])
    return chosen.rename_columns([*keys, *measures])


def no_changes(width: int) -> pa.Table:
    """Changes of held times without a row."""
    times = [(f"t{i}", pa.int64()) for i in range(width)]
    fields = [("worker", pa.int32()), ("commit", pa.int64()), *times, ("diff", pa.int64())]
    return pa.schema(fields).empty_table()
