"""Sums over a tape's index by worker and commit, from one pass over its files.

A pass aggregates five columns of `events` in Arrow, without a Python object per event. Whatever
pages ask of the index as a whole comes from these sums, so its files are read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.times import Time, TimeType
from capstan.storage.delta.arrow_scan import iter_columns, merge_batches
from capstan.storage.delta.incremental_read import Parts, read_incrementally
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.tape.tape import Tape
from capstan.storage.tape.time_columns import coordinates, held_changes

SUMMED = ("worker", "commit", "records", "time", "updates")
"""The columns of `events` that are summed."""

# The number of rows that are aggregated by one thread.
_PORTION = 1 << 18
_TOGETHER: Mapping[str, str] = {
    "n": "sum", "r": "sum", "first": "min", "last": "max", "diff": "sum",
}  # fmt: skip
Holdings = tuple[tuple[Time, int], ...]
"""Held times with counts, in listing order."""

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
        columns = iter_columns(tape.paths.events, SUMMED, events, files)
        for portion in merge_batches(columns):
            sums = sums_of(portion, tape.time_type)
            counts.append(sums.counts)
            changes.append(sums.changes)
        # A commit may be split over several portions.
        keys = changes[0].column_names[:-1]
        return {
            "counts": together(pa.concat_tables(counts), ["worker", "commit"]),
            "changes": together(pa.concat_tables(changes), keys),
        }

    return IndexSums(**read_incrementally("index sums", tape.paths.events, add))


def sums_of(events: pa.RecordBatch, time_type: TimeType) -> IndexSums:
    """The sums over some events."""
    width = len(time_type.coordinates)
    times = coordinates(events.column("time"), width)[time_type.leading]
    ones = pa.array(np.ones(events.num_rows, np.int64))
    owners = [events.column("worker"), events.column("commit")]
    columns = [*owners, ones, pc.fill_null(events.column("records"), 0), times, times]
    counted = pa.table(columns, names=_COUNTS.names).cast(_COUNTS)
    moved = held_changes(events, ["worker", "commit"], width).cast(no_changes(width).schema)
    keys = moved.column_names[:-1]
    return IndexSums(together(counted, ["worker", "commit"]), together(moved, keys))


def net_changes(changes: pa.Table) -> pa.Table:
    """Changes of held times, summed by worker and time, without those that cancel; in order."""
    keys = [name for name in changes.column_names if name != "diff"]
    net = together(changes, keys)
    # Most times were held once, and have been released.
    return net.filter(pc.not_equal(net["diff"], 0)).sort_by([(key, "ascending") for key in keys])


def from_start(changes: pa.Table, workers: Sequence[int], minimum: Time) -> pa.Table:
    """Changes of held times with those that open some workers, which hold the minimum once."""
    # Without an event, and before the first commit.
    first = {"commit": -1, "diff": 1, **{f"t{i}": value for i, value in enumerate(minimum)}}
    columns = [
        pa.array(
            workers if field.name == "worker" else [first[field.name]] * len(workers), field.type
        )
        for field in changes.schema
    ]
    return pa.concat_tables([pa.table(columns, schema=changes.schema), changes])


def holdings_of(net: pa.Table) -> dict[int, Holdings]:
    """What each worker holds by the net changes since it was opened; nothing for others."""
    workers, *times, counts = (column.to_pylist() for column in net.columns)
    held = zip(workers, zip(map(Time, zip(*times, strict=True)), counts, strict=True), strict=True)
    by_worker = groupby(held, key=itemgetter(0))
    return {worker: tuple(pair for _, pair in pairs) for worker, pairs in by_worker}


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
