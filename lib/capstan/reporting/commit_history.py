"""When the commits of a tape were made, and how far its records had come by then.

The files of the index say so themselves while each has one commit. Of files that maintenance has
put together Delta's log knows when their commits were made, as far back as it goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capstan.capture.stall_check import commit_times
from capstan.core.times import Coordinate
from capstan.reporting.stream_view import StreamView, greatest_times
from capstan.storage import delta
from capstan.storage.lake import Lake, newest_entry
from capstan.storage.table_cache import VersionedCache
from capstan.storage.tape.tape import Tape, open_tape

_OLDEST = 4096
"""So many entries of a log are looked at, and no more."""

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """The commits that a view has sampled, one by one.

    Attributes:
        moments: When each was made, never before the one before it; None where that is not known.
        greatest: The greatest time of any record up to it, in the last coordinate; None without
            records, and where a file has records of later commits too.
    """

    moments: tuple[datetime | None, ...]
    greatest: tuple[int | None, ...]


_KEPT: VersionedCache[CommitTimes] = VersionedCache()


def view_course(lake: Lake, view: StreamView) -> CommitTimes:
    """When the commits of a stream's view were made, and how far its records had come.

    Raises:
        CapstanError: The tape cannot be read.
    """
    events = lake.stream(view.name).events
    state = newest_entry(events), view.progress.commits
    return _KEPT.get((lake.root, view.name), state, lambda: _read(lake, view))


def _read(lake: Lake, view: StreamView) -> CommitTimes:
    table = delta.open_table(lake.stream(view.name).events)
    tape = open_tape(lake, view.name, table)
    files = pa.table(table.get_add_actions(flatten=True))
    commits = view.progress.commits
    if not files.num_rows or not {"min.commit", "max.commit"} <= set(files.column_names):
        return CommitTimes((None,) * len(commits), (None,) * len(commits))
    first, last = _ints(files["min.commit"]), _ints(files["max.commit"])
    whole = first == last
    written = dict(zip(last[whole].tolist(), _ints(files["modification_time"])[whole].tolist(),
                       strict=True))  # fmt: skip
    known = {commit: datetime.fromtimestamp(at / 1000, UTC) for commit, at in written.items()}
    missing = [commit for commit in commits if commit not in known]
    if missing:
        known |= _logged(tape, view.cut.commit, min(missing))
    found: list[datetime | None] = []
    newest = datetime.min.replace(tzinfo=UTC)
    for commit in commits:
        at = known.get(commit)
        # A clock may have been put back.
        newest = newest if at is None else max(newest, at)
        found.append(None if at is None else newest)
    return CommitTimes(tuple(found), _reached(files, first, last, view.coordinate, commits))


def _logged(tape: Tape, newest: int, oldest: int) -> dict[int, datetime]:
    found: dict[int, datetime] = {}
    for commit, at in islice(commit_times(tape, newest), _OLDEST):
        found[commit] = at
        if commit <= oldest:
            break
    return found


def _reached(
    files: pa.Table, first: _Ints, last: _Ints, coordinate: Coordinate, commits: tuple[int, ...]
) -> tuple[int | None, ...]:
    """After each commit the greatest time by the bounds of files, to the millisecond."""
    greatest = greatest_times(files, coordinate)
    if greatest is None:
        return (None,) * len(commits)
    there = pc.is_valid(greatest).to_numpy()
    times = pc.fill_null(greatest, 0).to_numpy()
    found: list[int | None] = []
    for commit in commits:
        over = bool(((first <= commit) & (last > commit)).any())
        own = times[there & (last <= commit)]
        found.append(None if over or not own.size else int(own.max()))
    return tuple(found)


def _ints(column: pa.ChunkedArray) -> _Ints:
    found: _Ints = pc.fill_null(column, -1).cast(pa.int64()).to_numpy().astype(np.int64)
    return found
