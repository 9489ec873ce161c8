"""Whether a stream's frontier has stood still for too long, told without a JVM.

When it last moved is told by the tape: the events of the newest commits are taken back, one commit
after the other, until the frontier is another; Delta's log says when that commit was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc

from capstan.core.config import Stream, format_duration
from capstan.core.times import Antichain, ChangeBatch, Time
from capstan.errors import CheckFailedError
from capstan.storage import delta
from capstan.storage.arrow_scan import iter_columns, read_columns
from capstan.storage.data_files import files_between
from capstan.storage.tape import index
from capstan.storage.tape.tape import Tape, newest_cut

_INSTANT = timedelta(microseconds=1)


def require_moving(stream: Stream, tape: Tape, now: datetime) -> None:
    """Check that the frontier has moved within the stream's declared bound, if there is one.

    A closed stream has no frontier that could move.

    Args:
        stream: The declaration.
        tape: Its tape.
        now: The present moment.

    Raises:
        CheckFailedError: `CAP-STALLED`, with the frontier, since when it stands, and who holds it
            back.
    """
    bound = stream.stalled_after
    if bound is None:
        return
    since = stood_since(tape, now - bound)
    if since is None or now - since <= bound:
        return
    states = index.worker_states(tape, newest_cut(tape))
    frontier = index.frontier_of(tape, states)
    holding = [s.label for s in states if set(s.frontier.elements) & set(frontier.elements)]
    times = [tape.time_type.render(time) for time in frontier.elements]
    raise CheckFailedError(
        "CAP-STALLED",
        f"stream {stream.name}: the frontier stands at {', '.join(map(str, times))} since "
        f"{since:%Y-%m-%d %H:%M:%S} UTC, longer than {format_duration(bound)}"
        + (f"; held back by {', '.join(holding)}" if holding else ""),
        "see whether the source still gives records; `capstan show` tells each worker's frontier",
        stream=stream.name,
        frontier=times,
        since=since.isoformat(),
        workers=holding,
    )


def stood_since(tape: Tape, enough: datetime) -> datetime | None:
    """When the stream's frontier came to stand where it is.

    Args:
        tape: The tape.
        enough: Before this moment it is not looked for: any earlier one is an answer then.

    Returns:
        The moment; one that is at most `enough` where it stands for longer. None for a stream that
        is closed.
    """
    cut = newest_cut(tape)
    states = index.worker_states(tape, cut)
    frontier = index.frontier_of(tape, states)
    if cut.commit < 0:
        return _begun(tape, None, enough)
    if frontier.is_empty:
        return None
    moment = None
    held = ChangeBatch()
    for state in states:
        for time, count in state.holdings:
            held.update(time, count)
    for commit, moment in moments(tape, cut.commit):
        _take_back(tape, commit, held)
        before = Antichain.of(time for time, count in held.items() if count > 0)
        if before != frontier or moment <= enough:
            return moment
    return _begun(tape, moment, enough)


def moments(tape: Tape, newest: int) -> Iterator[tuple[int, datetime]]:
    """The tape's commits and when they were made, newest first, as far back as Delta's log goes."""
    commit = newest
    for entry in delta.history(tape.paths.events):
        # Compaction and changed settings are commits of the table, and none of the tape.
        if entry.get("operation") == "WRITE" and delta.note_of(entry).get("token"):
            yield commit, _moment(entry)
            commit -= 1


def _moment(entry: dict[str, object]) -> datetime:
    return datetime.fromtimestamp(int(str(entry["timestamp"])) / 1000, UTC)


def _begun(tape: Tape, first: datetime | None, enough: datetime) -> datetime:
    """The moment of the first commit, or when the tape was made, if Delta's log goes so far back.

    What it no longer has is older than any bound of the stream: `keep_moments` saw to that.
    """
    *_, oldest = delta.history(tape.paths.events)
    return (first or _moment(oldest)) if oldest["version"] == 0 else enough - _INSTANT


def _take_back(tape: Tape, commit: int, held: ChangeBatch) -> None:
    """Make of the holdings after a commit those before it."""
    path = tape.paths.events
    table = delta.open_table(path)
    files = files_between(path, table, "commit", commit, commit)
    for rows in iter_columns(path, ["updates", "commit"], table, files):
        batch = rows.filter(pc.equal(rows["commit"], commit))
        flat = pc.list_flatten(batch.column("updates"))
        times = index.arrow_times(pc.struct_field(flat, "time"), tape.time_type)
        for time, diff in zip(times, pc.struct_field(flat, "diff").to_pylist(), strict=True):
            held.update(time, -diff)
    # A worker that was opened here held nothing before, and since then the minimum.
    minimum: Time = tape.time_type.minimum
    opened = read_columns(tape.paths.workers, ["opened_commit"])["opened_commit"].to_pylist()
    for _ in range(opened.count(commit)):
        held.update(minimum, -1)
