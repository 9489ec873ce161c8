"""Commit times of a tape, and the greatest record time at each commit.

A file of the index with a single commit has both. For files that maintenance has merged, Delta's
log has the commit times, as far back as it reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, islice

import pyarrow as pa
import pyarrow.compute as pc

from capstan.capture.synthetic.stall_check import commit_times
from capstan.core.times import Coordinate
from capstan.reporting.frontier_history import Integers, integers_of
from capstan.reporting.stream_view import StreamHistory, greatest_times
from capstan.storage.delta import delta
from capstan.storage.delta.table_cache import VersionedCache
from capstan.storage.lake import Lake, newest_entry
from capstan.storage.tape.tape import Tape, open_tape

_OLDEST = 4096
"""The most entries of a log that are read."""

_YEAR_ONE = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """Times of the commits that a view has sampled.

    `greatest` is the greatest time of any record up to each commit, in the last coordinate; None
    without records, and when a file also has records of later commits.
    """

    moments: tuple[datetime | None, ...]  # never decreasing; None when unknown
    greatest: tuple[int | None, ...]


_CACHE: VersionedCache[CommitTimes] = VersionedCache()


def read_commit_times(lake: Lake, view: StreamHistory) -> CommitTimes:
    """Read the commit times for a stream's view."""
    events = lake.stream(view.name).events
    state = newest_entry(events), view.progress.commits
    return _CACHE.get((lake.root, view.name), state, lambda: _read(lake, view))


def _read(lake: Lake, view: StreamHistory) -> CommitTimes:
    table = delta.open_table(lake.stream(view.name).events)
    tape = open_tape(lake, view.name, table, stamps=True)
    files = pa.table(table.get_add_actions(flatten=True))
    commits = view.progress.commits
    if not files.num_rows or not {"min.commit", "max.commit"} <= set(files.column_names):
        return CommitTimes((None,) * len(commits), (None,) * len(commits))
    first, last = integers_of(files["min.commit"]), integers_of(files["max.commit"])
    whole = first == last
    written = integers_of(files["modification_time"])[whole].tolist()
    known = {
        commit: datetime.fromtimestamp(at / 1000, UTC)
        for commit, at in zip(last[whole].tolist(), written, strict=True)
    }
    missing = [commit for commit in commits if commit not in known]
    if missing:
        known |= _logged(tape, view.cut.commit, min(missing))
    # The clock may have been set back between two commits.
    newest = accumulate((known.get(commit, _YEAR_ONE) for commit in commits), max)
    moments = (at if c in known else None for c, at in zip(commits, newest, strict=True))
    return CommitTimes(tuple(moments), _greatest(files, first, last, view.coordinate, commits))


def _logged(tape: Tape, newest: int, oldest: int) -> dict[int, datetime]:
    times: dict[int, datetime] = {}
    for commit, at in islice(commit_times(tape, newest), _OLDEST):
        times[commit] = at
        if commit <= oldest:
            break
    return times


def _greatest(
    files: pa.Table,
    first: Integers,
    last: Integers,
    coordinate: Coordinate,
    commits: tuple[int, ...],
) -> tuple[int | None, ...]:
    """The greatest time up to each commit, by the bounds of files, to the millisecond."""
    greatest = greatest_times(files, coordinate)
    if greatest is None:
        return (None,) * len(commits)
    valid = pc.is_valid(greatest).to_numpy()
    times = pc.fill_null(greatest, 0).to_numpy()
    result: list[int | None] = []
    for commit in commits:
        spans = bool(((first <= commit) & (last > commit)).any())
        earlier = times[valid & (last <= commit)]
        result.append(None if spans or not earlier.size else int(earlier.max()))
    return tuple(result)
