"""Frontiers of a tape's workers by commit, from one pass over its index.

The pass reads four columns of `events` and aggregates them in Arrow, without a Python object per
event. The size of the result does not depend on the length of the tape. A process that serves pages
keeps the sums of the files that it has read: after a new commit it reads the new files alone.

The frontier of a valid recording never moves back. So the frontier after commit `c` is the least
time whose count becomes zero for good only after `c`. One number per held time is enough: the last
commit that changed its count. A recording that breaks the rules gets a line as well; verification
judges it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.times import ChangeBatch
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import iter_columns, merge_batches
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import VersionedCache, is_enabled
from capstan.storage.tape.index import WorkerState, arrow_coordinates, opened_commits, worker_labels
from capstan.storage.tape.tape import Cut, Tape

POINTS = 160
"""The most points of each line."""

_COLUMNS = ("worker", "commit", "records", "updates")
# The number of rows that are aggregated at once.
_PORTION = 1 << 18
_HELD = np.iinfo(np.int64).max
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Over some files of an index: its counts, and its changes of held times, by commit."""

    files: frozenset[str]
    counts: pa.Table
    changes: pa.Table


# By the path of the index; only in a process that serves pages.
_SUMS: VersionedCache[_Sums] = VersionedCache(64)


@dataclass(frozen=True, slots=True)
class CommitCount:
    """The number of events and records of all workers in one commit of a tape."""

    commit: int
    events: int
    records: int


@dataclass(frozen=True, slots=True)
class TapeProgress:
    """The progress of all workers of a tape up to a cut.

    `frontiers` have the least value of the last coordinate that each worker holds after each
    sampled commit; None before the worker is open, and once it is closed.
    """

    commits: tuple[int, ...]  # sampled, ascending; the last is the cut's
    workers: tuple[WorkerState, ...]
    frontiers: Mapping[int, tuple[int | None, ...]]
    newest: tuple[CommitCount, ...]  # descending, at most `POINTS`


def read_progress(
    tape: Tape, cut: Cut, *, points: int = POINTS, events: OpenedTable | None = None
) -> TapeProgress:
    """The frontiers of a tape's workers at up to `points` evenly sampled commits of a cut."""
    labels, opened = worker_labels(tape, cut), opened_commits(tape, cut)
    counts, changes = _scan(tape, cut, events or delta.open_table(tape.paths.events))
    commits = _sampled(cut.commit, points)
    by_worker = {row["worker"]: row for row in _summed(counts, ["worker"], ["n", "r"]).to_pylist()}
    moved = _held_times(changes, tape, list(labels))
    workers, frontiers = [], {}
    for worker, label in labels.items():
        times, net, ends = moved[worker]
        held, row = np.flatnonzero(net), by_worker.get(worker, {})
        holdings = ChangeBatch(
            zip(map(tuple, times[held].tolist()), net[held].tolist(), strict=True)
        )
        counted = (int(row.get("n") or 0), int(row.get("r") or 0))
        workers.append(WorkerState(worker, label, *counted, holdings.items()))
        least = _least(times[:, -1], ends, commits)
        frontiers[worker] = tuple(
            None if at < opened[worker] else value for at, value in zip(commits, least, strict=True)
        )
    return TapeProgress(commits, tuple(workers), frontiers, _newest(counts))


def _scan(tape: Tape, cut: Cut, events: OpenedTable) -> tuple[pa.Table, pa.Table]:
    """Counts of the index by worker and commit, and net changes of holds, read once in Arrow.

    Counts are of events `n` and records `r`; changes `diff` are by time, too, a column for each
    coordinate.
    """
    path, files = tape.paths.events, frozenset(map(unquote, events.file_uris()))
    kept = nothing = _Sums(frozenset(), _no_counts(), _no_changes(tape))
    if is_enabled():
        kept = _SUMS.get(path, None, lambda: nothing)
    if not kept.files <= files:
        # Compacted; or a tape made anew.
        kept = nothing
    counts, changes = [kept.counts], [kept.changes]
    for portion in merge_batches(iter_columns(path, _COLUMNS, events, sorted(files - kept.files))):
        counts.append(_counted(portion))
        changes.append(_changed(portion, tape))
    # A commit may be split over several portions.
    counted = _summed(pa.concat_tables(counts), ["worker", "commit"], ["n", "r"])
    names = kept.changes.column_names
    changed = _summed(pa.concat_tables(changes), names[:-1], names[-1:])
    if is_enabled():
        _SUMS.put(path, None, _Sums(files, counted, changed))
    counted, changed = (
        sums.filter(pc.less_equal(sums["commit"], cut.commit)) for sums in (counted, changed)
    )
    # An imported tape that breaks the rules may have updates without a worker, time or count.
    return counted, changed.drop_null()


def _counted(batch: pa.RecordBatch) -> pa.Table:
    ones = pa.array(np.ones(batch.num_rows, np.int64))
    columns = [batch.column("worker"), batch.column("commit"), ones, batch.column("records")]
    return _summed(
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
    return _summed(pa.table(columns, names=names), names[:-1], ["diff"])


def _summed(table: pa.Table, keys: list[str], values: list[str]) -> pa.Table:
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


def _held_times(
    changes: pa.Table, tape: Tape, workers: Sequence[int]
) -> Mapping[int, tuple[Integers, Integers, Integers]]:
    """By worker, the times that were ever held, their counts, and the last commit to change each.

    For a time that is still held, that commit is greater than all others.
    """
    # Every worker starts by holding the minimum once, without an event.
    start = pa.table(
        [
            pa.array(list(workers), pa.int32()),
            *(pa.array([n] * len(workers), pa.int64()) for n in (-1, *tape.time_type.minimum, 1)),
        ],
        schema=changes.schema,
    )
    moved = pa.concat_tables([start, changes.filter(pc.not_equal(changes["diff"], 0))])
    times = [name for name in changes.column_names if name not in ("worker", "commit", "diff")]
    last = moved.group_by(["worker", *times]).aggregate([("diff", "sum"), ("commit", "max")])
    owners, net = integers_of(last["worker"]), integers_of(last["diff_sum"])
    ends = np.where(net == 0, integers_of(last["commit_max"]), _HELD)
    order = np.lexsort((ends, owners))
    held = np.column_stack([integers_of(last[name]) for name in times])[order]
    owners, net, ends = owners[order], net[order], ends[order]
    return {
        int(owners[part[0]]): (held[part], net[part], ends[part])
        for part in _runs(owners)
    }  # fmt: skip


def _runs(sorted_values: Integers) -> Iterator[Integers]:
    """The positions of each run of equal values."""
    if sorted_values.size:
        borders = np.flatnonzero(np.diff(sorted_values)) + 1
        yield from np.split(np.arange(sorted_values.size), borders)


def _least(times: Integers, ends: Integers, commits: tuple[int, ...]) -> list[int | None]:
    """The least time after each commit that is released only later; `ends` must ascend."""
    least = np.minimum.accumulate(times[::-1])[::-1]
    places = np.searchsorted(ends, np.asarray(commits, np.int64), side="right")
    return [int(least[place]) if place < least.size else None for place in places.tolist()]


def _sampled(last: int, points: int) -> tuple[int, ...]:
    """At most `points` evenly spaced commits from 0 to `last`, including both ends."""
    if last < 0:
        return ()
    if last < points:
        return tuple(range(last + 1))
    return tuple(round(i * last / (points - 1)) for i in range(points))


def _newest(counts: pa.Table) -> tuple[CommitCount, ...]:
    by_commit = _summed(counts, ["commit"], ["n", "r"]).sort_by([("commit", "descending")])
    return tuple(
        CommitCount(int(row["commit"]), int(row["n"]), int(row["r"] or 0))
        for row in by_commit.slice(0, POINTS).to_pylist()
    )


def integers_of(column: pa.ChunkedArray) -> Integers:
    """A column as integers; -1 for none."""
    values = pc.fill_null(column.cast(pa.int64()), -1).to_numpy()
    return np.asarray(values, np.int64)
