"""Frontiers of a tape's workers by commit, from one pass over its index.

The size of the result does not depend on the length of the tape.

The frontier of a valid recording never moves back. So the frontier after commit `c` is the least
time whose count becomes zero for good only after `c`. One number per held time is enough: the last
commit that changed its count. A recording that breaks the rules gets a line as well; verification
judges it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.times import ChangeBatch
from capstan.storage.tape.index import WorkerState, opened_commits, worker_labels
from capstan.storage.tape.index_sums import IndexSums, read_sums
from capstan.storage.tape.tape import Cut, Tape

POINTS = 160
"""The most points of each line."""

_HELD = np.iinfo(np.int64).max
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CommitCount:
    """The number of events and records of all workers in one commit of a tape."""

    commit: int
    events: int
    records: int


@dataclass(frozen=True, slots=True)
class TapeProgress:
    """The progress of all workers of a tape up to a cut.

    `frontiers` have the least value of the leading coordinate that each worker holds after each
    sampled commit; None before the worker is open, and once it is closed.
    """

    commits: tuple[int, ...]  # sampled, ascending; the last is the cut's
    workers: tuple[WorkerState, ...]
    frontiers: Mapping[int, tuple[int | None, ...]]
    newest: tuple[CommitCount, ...]  # descending, at most `POINTS`


def read_progress(tape: Tape, cut: Cut, *, points: int = POINTS) -> TapeProgress:
    """The frontiers of a tape's workers at up to `points` evenly sampled commits of a cut."""
    labels, opened = worker_labels(tape, cut), opened_commits(tape, cut)
    sums = read_sums(tape).up_to(cut.commit)
    commits = _sampled(cut.commit, points)
    by_worker = {row["worker"]: row for row in sums.by("worker").to_pylist()}
    moved = _held_times(sums.changes, tape, list(labels))
    workers, frontiers = [], {}
    order, leading = tape.time_type.order, tape.time_type.leading
    for worker, label in labels.items():
        times, net, ends = moved[worker]
        held, row = np.flatnonzero(net), by_worker.get(worker, {})
        holdings = ChangeBatch(
            zip(map(tuple, times[held].tolist()), net[held].tolist(), strict=True)
        )
        counted = (int(row.get("n") or 0), int(row.get("r") or 0))
        workers.append(WorkerState(worker, label, *counted, holdings.items(), order=order))
        least = _least(times[:, leading], ends, commits)
        frontiers[worker] = tuple(
            None if at < opened[worker] else value for at, value in zip(commits, least, strict=True)
        )
    return TapeProgress(commits, tuple(workers), frontiers, _newest(sums))


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


def _newest(sums: IndexSums) -> tuple[CommitCount, ...]:
    by_commit = sums.by("commit").sort_by([("commit", "descending")])
    return tuple(
        CommitCount(int(row["commit"]), int(row["n"]), int(row["r"] or 0))
        for row in by_commit.slice(0, POINTS).to_pylist()
    )


def integers_of(column: pa.ChunkedArray) -> Integers:
    """A column as integers; -1 for none."""
    values = pc.fill_null(column.cast(pa.int64()), -1).to_numpy()
    return np.asarray(values, np.int64)
