"""Frontiers of a tape's workers by commit, from one pass over its index.

The size of the result does not depend on the length of the tape.

The frontier of a valid recording never moves back. So the frontier after commit `c` is the least
time whose count becomes zero for good only after `c`. One number per held time is enough: the last
commit that changed its count. A recording that breaks the rules gets a line as well; verification
judges it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capstan.storage.tape.index import WorkerState, opened_commits, states_of, worker_labels
from capstan.storage.tape.index_sums import IndexSums, from_start, read_sums
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


@dataclass(frozen=True, slots=True, eq=False)
class FrontierLines(Mapping[int, tuple[int | None, ...]]):
    """The least value of the leading coordinate that each worker holds after each sampled commit.

    None before the worker is open, and once it is closed. A tape may have thousands of workers, of
    which a page draws a few, so they are rows of a matrix.
    """

    row_of: Mapping[int, int]  # by worker
    held: Integers
    known: npt.NDArray[np.bool_]

    def __getitem__(self, worker: int) -> tuple[int | None, ...]:
        """The line of a worker."""
        row = self.row_of[worker]
        pairs = zip(self.held[row].tolist(), self.known[row].tolist(), strict=True)
        return tuple(value if known else None for value, known in pairs)

    def __iter__(self) -> Iterator[int]:
        return iter(self.row_of)

    def __len__(self) -> int:
        return len(self.row_of)

    def least(self, minimum: int) -> list[int | None]:
        """The least value of all workers after each commit; not of those that hold the minimum."""
        counted = self.known & (self.held != minimum)
        values = np.where(counted, self.held, _HELD).min(axis=0, initial=_HELD)
        pairs = zip(values.tolist(), counted.any(axis=0).tolist(), strict=True)
        return [value if known else None for value, known in pairs]


@dataclass(frozen=True, slots=True)
class TapeProgress:
    """The progress of all workers of a tape up to a cut."""

    commits: tuple[int, ...]  # sampled, ascending; the last is the cut's
    workers: tuple[WorkerState, ...]
    frontiers: FrontierLines
    newest: tuple[CommitCount, ...]  # descending, at most `POINTS`


def read_progress(tape: Tape, cut: Cut, *, points: int = POINTS) -> TapeProgress:
    """The frontiers of a tape's workers at up to `points` evenly sampled commits of a cut."""
    labels, opened = worker_labels(tape, cut), opened_commits(tape, cut)
    sums = read_sums(tape).up_to(cut.commit)
    commits = _sampled(cut.commit, points)
    times = _held_times(from_start(sums.changes, list(labels), tape.time_type.minimum))
    held = times.filter(pc.not_equal(times["diff"], 0)).drop_columns("end")
    workers = states_of(labels, sums.by("worker"), held, tape.time_type.order)
    lines = _lines(times, opened, commits, tape.time_type.leading)
    return TapeProgress(commits, workers, lines, _newest(sums))


def _held_times(changes: pa.Table) -> pa.Table:
    """The times that were ever held, by worker and in order; `diff` is their count now.

    `end` is the last commit to change the count, greater than all others if a time is still held.
    """
    times = [name for name in changes.column_names if name not in ("commit", "diff")]
    moved = changes.filter(pc.not_equal(changes["diff"], 0))
    last = moved.group_by(times).aggregate([("diff", "sum"), ("commit", "max")])
    ends = pc.if_else(pc.equal(last["diff_sum"], 0), last["commit_max"], _HELD)
    columns = [*(last[name] for name in times), last["diff_sum"], ends]
    return pa.table(columns, names=[*times, "diff", "end"]).sort_by(
        [(name, "ascending") for name in times]
    )


def _lines(
    times: pa.Table, opened: Mapping[int, int], commits: tuple[int, ...], leading: int
) -> FrontierLines:
    """The frontiers of the workers that were opened at some commits."""
    numbers = np.asarray(sorted(opened), np.int64)
    times = times.filter(pc.is_in(times["worker"], value_set=pa.array(numbers, pa.int32())))
    owners, last, ends = (integers_of(times[name]) for name in ("worker", f"t{leading}", "end"))
    rows = np.searchsorted(numbers, owners)
    # How many of the commits a time outlives; it is held after each of them, or taken up later.
    outlived = np.searchsorted(commits, ends, side="left")
    order = np.lexsort((outlived, rows))
    rows, last, outlived = rows[order], last[order], outlived[order]
    # The least of each time and those of the same worker that outlive it. The rows come down, so
    # that the least begins anew with each of them.
    known, ranks = np.unique(last, return_inverse=True)
    apart = rows[::-1] * known.size
    least = (np.minimum.accumulate(ranks[::-1] + apart) - apart)[::-1]
    width = len(commits)
    wanted = np.arange(numbers.size)[:, None] * (width + 1) + np.arange(width)
    places = np.searchsorted(rows * (width + 1) + outlived, wanted, side="right")
    held = np.append(rows, -1)[places] == np.arange(numbers.size)[:, None]
    begun = np.asarray([opened[number] for number in numbers.tolist()], np.int64)
    return FrontierLines(
        {number: row for row, number in enumerate(numbers.tolist())},
        np.append(known[least], 0)[places],
        held & (begun[:, None] <= np.asarray(commits, np.int64)),
    )


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
