"""Stall alarm: detects, without a JVM, that a stream's frontier has not moved for too long.

The events of the newest commits are undone, one commit after another, until the frontier differs.
Delta's log gives the time of that commit, which is when the frontier last moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import pyarrow.compute as pc

from capstan.core.config import Stream, format_duration
from capstan.core.times import Antichain, ChangeBatch, Time
from capstan.errors import CheckFailedError
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import iter_columns, read_columns
from capstan.storage.delta.data_files import files_between
from capstan.storage.tape import index
from capstan.storage.tape.index import WorkerState
from capstan.storage.tape.tape import Tape, newest_cut

_INSTANT = timedelta(microseconds=1)


def require_moving(stream: Stream, tape: Tape, now: datetime) -> None:
    """Check that the frontier has moved within `stalled_after`; a closed stream passes."""
    bound = stream.stalled_after
    if bound is None:
        return
    since = frontier_since(tape, now - bound)
    if since is None or now - since <= bound:
        return
    states = index.worker_states(tape, newest_cut(tape))
    frontier = index.frontier_of(tape, states)
    holding = holders(states, frontier)
    times = [tape.time_type.render(time) for time in frontier.elements]
    raise CheckFailedError(
        "CAP-STALLED",
        f"stream {stream.name}: the frontier has been at {', '.join(map(str, times))} since "
        f"{since:%Y-%m-%d %H:%M:%S} UTC, longer than {format_duration(bound)}"
        + (f"; held back by {', '.join(holding)}" if holding else ""),
        "check that the source still delivers records; `capstan show` lists the frontier of each "
        "worker",
        stream=stream.name,
        frontier=times,
        since=since.isoformat(),
        workers=holding,
    )


def holders(states: Iterable[WorkerState], frontier: Antichain) -> list[str]:
    """The labels of the workers that hold a time of the stream's frontier."""
    return [s.label for s in states if set(s.frontier.elements) & set(frontier.elements)]


def frontier_since(tape: Tape, limit: datetime) -> datetime | None:
    """The time at which the stream's frontier reached its present position; None if closed.

    The search stops at `limit`: for an older frontier, any time up to it is returned.
    """
    cut = newest_cut(tape)
    states = index.worker_states(tape, cut)
    frontier = index.frontier_of(tape, states)
    if cut.commit < 0:
        return _first_commit(tape, None, limit)
    if frontier.is_empty:
        return None
    moment = None
    held = ChangeBatch()
    for state in states:
        for time, count in state.holdings:
            held.update(time, count)
    for commit, moment in commit_times(tape, cut.commit):
        _undo(tape, commit, held)
        before = Antichain.of(time for time, count in held.items() if count > 0)
        if before != frontier or moment <= limit:
            return moment
    return _first_commit(tape, moment, limit)


def commit_times(tape: Tape, newest: int) -> Iterator[tuple[int, datetime]]:
    """The tape's commits and their times, newest first, as far back as Delta's log goes."""
    commit = newest
    for entry in delta.history(tape.paths.events):
        # Compaction and changed settings are commits of the table, not of the tape.
        if entry.operation == "WRITE" and entry.note.get("token"):
            yield commit, entry.at
            commit -= 1


def _first_commit(tape: Tape, first: datetime | None, limit: datetime) -> datetime:
    """The time of the first commit or of the tape's creation, if Delta's log goes back that far."""
    # Entries missing from the log are older than any bound of the stream, thanks to
    # `tape_settings.start_tape`.
    *_, oldest = delta.history(tape.paths.events)
    return (first or oldest.at) if oldest.version == 0 else limit - _INSTANT


def _undo(tape: Tape, commit: int, held: ChangeBatch) -> None:
    """Turn the holdings after a commit into those before it."""
    path = tape.paths.events
    table = delta.open_table(path)
    files = files_between(path, table, "commit", commit, commit)
    for rows in iter_columns(path, ["updates", "commit"], table, files):
        batch = rows.filter(pc.equal(rows["commit"], commit))
        flat = pc.list_flatten(batch.column("updates"))
        times = index.arrow_times(pc.struct_field(flat, "time"), tape.time_type)
        for time, diff in zip(times, pc.struct_field(flat, "diff").to_pylist(), strict=True):
            held.update(time, -diff)
    # A worker opened by this commit held nothing before and the minimum afterwards.
    minimum: Time = tape.time_type.minimum
    opened = read_columns(tape.paths.workers, ["opened_commit"])["opened_commit"].to_pylist()
    for _ in range(opened.count(commit)):
        held.update(minimum, -1)
