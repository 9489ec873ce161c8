"""One pass over a tape's index: counts by commit, and changes of held times.

A process that serves pages keeps the sums of the files that it has read: after a new commit it
reads the new files alone.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.storage.delta.arrow_scan import iter_columns, merge_batches
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import is_enabled
from capstan.storage.tape.index import arrow_coordinates
from capstan.storage.tape.tape import Cut, Tape

COLUMNS = ("worker", "commit", "records", "updates")
"""The columns of `events` that are read."""

# The number of rows that are aggregated at once.
_PORTION = 1 << 18


@dataclass(frozen=True, slots=True)
class Scanned:
    """The size of the data that a pass has read, for tests of its cost."""

    rows: int
    columns: int
    files: int


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums over some files of an index, at all their commits."""

    files: frozenset[str]
    counts: pa.Table
    changes: pa.Table


# The sums by the path of the index; only in a process that serves pages.
_kept: OrderedDict[str, _Sums] = OrderedDict()
_MAX_KEPT = 64
_lock = Lock()


def scan(tape: Tape, cut: Cut, events: OpenedTable) -> tuple[pa.Table, pa.Table, Scanned]:
    """Read the index once, in Arrow: counts, net changes of holds, and the size of the data.

    Counts are of events `n` and records `r` by `worker` and `commit`; changes `diff` by `worker`,
    `commit` and time, a column for each coordinate.
    """
    path, files = tape.paths.events, frozenset(map(unquote, events.file_uris()))
    kept = _kept.get(path) if is_enabled() else None
    if kept is None or not kept.files <= files:
        # Not read yet; compacted; or a tape made anew.
        kept = _Sums(frozenset(), _no_counts(), _no_changes(tape))
    counts, changes, rows = [kept.counts], [kept.changes], 0
    fresh = files - kept.files
    for portion in merge_batches(iter_columns(path, COLUMNS, events, sorted(fresh))):
        rows += portion.num_rows
        counts.append(_counted(portion))
        changes.append(_changed(portion, tape))
    counted, changed = pa.concat_tables(counts), pa.concat_tables(changes)
    if len(counts) > 2 or kept.files:
        # A commit may be split over several portions.
        counted = summed(counted, ["worker", "commit"], ["n", "r"])
        changed = summed(changed, changed.column_names[:-1], ["diff"])
    if is_enabled():
        with _lock:
            _kept[path] = _Sums(files, counted, changed)
            _kept.move_to_end(path)
            while len(_kept) > _MAX_KEPT:
                _kept.popitem(last=False)
    # An imported tape that breaks the rules may have updates without a worker, time or count.
    read = Scanned(rows, len(COLUMNS), len(fresh))
    return _up_to(counted, cut), _up_to(changed, cut).drop_null(), read


def _up_to(sums: pa.Table, cut: Cut) -> pa.Table:
    return sums.filter(pc.less_equal(sums["commit"], cut.commit))


def _counted(batch: pa.RecordBatch) -> pa.Table:
    ones = pa.array(np.ones(batch.num_rows, np.int64))
    columns = [batch.column("worker"), batch.column("commit"), ones, batch.column("records")]
    return summed(
        pa.table(columns, names=["worker", "commit", "n", "r"]), ["worker", "commit"], ["n", "r"]
    )


def _changed(batch: pa.RecordBatch, tape: Tape) -> pa.Table:
    """Net changes of holds."""
    updates = batch.column("updates")
    owners = pc.list_parent_indices(updates)
    flat = pc.list_flatten(updates)
    columns = [
        batch.column("worker").take(owners),
        batch.column("commit").take(owners),
        *arrow_coordinates(pc.struct_field(flat, "time"), tape.time_type),
        pc.struct_field(flat, "diff"),
    ]
    names = _no_changes(tape).column_names
    return summed(pa.table(columns, names=names), names[:-1], ["diff"])


def summed(table: pa.Table, keys: list[str], values: list[str]) -> pa.Table:
    """The sums of some columns grouped by others, under the same names."""
    # With few rows, threads cost more than they save.
    grouped = table.group_by(keys, use_threads=table.num_rows > _PORTION)
    totals = grouped.aggregate([(value, "sum") for value in values])
    return totals.select([*keys, *(f"{value}_sum" for value in values)]).rename_columns(
        [*keys, *values]
    )


def _no_counts() -> pa.Table:
    fields = [("worker", pa.int32()), ("commit", pa.int64()), ("n", pa.int64()), ("r", pa.int64())]
    return pa.schema(fields).empty_table()


def _no_changes(tape: Tape) -> pa.Table:
    times = [(f"t{i}", pa.int64()) for i in range(len(tape.time_type.coordinates))]
    fields = [("worker", pa.int32()), ("commit", pa.int64()), *times, ("diff", pa.int64())]
    return pa.schema(fields).empty_table()
