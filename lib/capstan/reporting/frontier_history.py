"""Frontiers of a tape's workers by commit, from one pass over its index.

The pass reads four columns of `events` and aggregates them in Arrow, without a Python object per
event. The size of the result does not depend on the length of the tape.

The frontier of a valid recording never moves back. So the frontier after commit `c` is the least
time whose count becomes zero for good only after `c`. One number per held time is enough: the last
commit that changed its count. A recording that breaks the rules gets a line as well; verification
judges it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capstan.reporting.index_scan import Scanned, scan, summed
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.tape.tape import Cut, Tape

POINTS = 160
"""The most points of each line."""

_HELD = np.iinfo(np.int64).max
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Line:
    """The frontier of one worker in the last coordinate, which is the event time if there is one.

    Attributes:
        worker: The worker's number.
        label: The worker's label.
        opened: The commit that opened it.
        events: The number of its events.
        records: The number of its records.
        frontier: The least value held after each sampled commit; None before the worker is open,
            and once it is closed.
        last: The least value held at the cut; None when it is closed.
    """

    worker: int
    label: str
    opened: int
    events: int
    records: int
    frontier: tuple[int | None, ...]
    last: int | None


@dataclass(frozen=True, slots=True)
class CommitCount:
    """The contents of one commit of a tape.

    Attributes:
        commit: Its ordinal.
        events: The number of events of all workers.
        records: The number of records of all workers.
    """

    commit: int
    events: int
    records: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of all workers of a tape up to a cut.

    Attributes:
        commits: The sampled commits, ascending; the last is the cut's.
        lines: One line per worker, by number.
        newest: The newest commits in descending order, at most `POINTS`.
        scanned: The size of the data that was read.
    """

    commits: tuple[int, ...]
    lines: tuple[Line, ...]
    newest: tuple[CommitCount, ...]
    scanned: Scanned

    @property
    def events(self) -> int:
        """The number of events on tape."""
        return sum(line.events for line in self.lines)

    @property
    def records(self) -> int:
        """The number of records on tape."""
        return sum(line.records for line in self.lines)


def read_progress(
    tape: Tape,
    cut: Cut,
    *,
    points: int = POINTS,
    events: OpenedTable | None = None,
) -> Progress:
    """Read the frontiers of a tape's workers by commit, up to a cut.

    Args:
        cut: The last commit to read.
        points: The most commits to sample, evenly.
        events: The table of the index, when it is already open.
    """
    roster = _roster(tape, cut)
    counts, changes, scanned = scan(tape, cut, events or delta.open_table(tape.paths.events))
    commits = _sampled(cut.commit, points)
    held = _held_times(changes, tape, roster)
    by_worker = {row["worker"]: row for row in summed(counts, ["worker"], ["n", "r"]).to_pylist()}
    lines = []
    for worker, (label, opened) in roster.items():
        *before, last = _least(*held[worker], (*commits, cut.commit))
        drawn = (None if at < opened else v for at, v in zip(commits, before, strict=True))
        row = by_worker.get(worker, {})
        counted = (int(row.get("n") or 0), int(row.get("r") or 0))
        lines.append(Line(worker, label, opened, *counted, tuple(drawn), last))
    return Progress(commits, tuple(lines), _newest(counts), scanned)


def _roster(tape: Tape, cut: Cut) -> dict[int, tuple[str, int]]:
    rows = read_columns(tape.paths.workers, ["worker", "label", "opened_commit"]).to_pylist()
    return {
        int(row["worker"]): (str(row["label"]), int(row["opened_commit"]))
        for row in sorted(rows, key=lambda row: int(row["worker"]))
        if row["opened_commit"] <= cut.commit
    }


def _held_times(
    changes: pa.Table, tape: Tape, roster: Collection[int]
) -> Mapping[int, tuple[_Ints, _Ints]]:
    """By worker, all times that were ever held, and the last commit that changed each count.

    For a time that is still held, that commit is greater than all others.
    """
    # Every worker starts by holding the minimum once, without an event.
    minimum, many = tape.time_type.minimum[-1], len(roster)
    start = pa.table(
        [
            pa.array(list(roster), pa.int32()),
            *(pa.array([n] * many, pa.int64()) for n in (-1, minimum, 1)),
        ],
        schema=changes.schema,
    )
    moved = pa.concat_tables([start, changes.filter(pc.not_equal(changes["diff"], 0))])
    last = moved.group_by(["worker", "time"]).aggregate([("diff", "sum"), ("commit", "max")])
    workers, times = _ints(last["worker"]), _ints(last["time"])
    ends = np.where(_ints(last["diff_sum"]) == 0, _ints(last["commit_max"]), _HELD)
    order = np.lexsort((ends, workers))
    workers, times, ends = workers[order], times[order], ends[order]
    return {
        int(workers[part[0]]): (times[part], ends[part])
        for part in _runs(workers)
    }  # fmt: skip


def _runs(sorted_values: _Ints) -> Iterator[_Ints]:
    """The positions of each run of equal values."""
    if sorted_values.size:
        borders = np.flatnonzero(np.diff(sorted_values)) + 1
        yield from np.split(np.arange(sorted_values.size), borders)


def _least(times: _Ints, ends: _Ints, commits: tuple[int, ...]) -> list[int | None]:
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
    by_commit = summed(counts, ["commit"], ["n", "r"]).sort_by([("commit", "descending")])
    return tuple(
        CommitCount(int(row["commit"]), int(row["n"]), int(row["r"] or 0))
        for row in by_commit.slice(0, POINTS).to_pylist()
    )


def _ints(column: pa.ChunkedArray) -> _Ints:
    values: _Ints = column.cast(pa.int64()).to_numpy().astype(np.int64, copy=False)
    return values
