"""Synthetic batches: rescale, idle advance, re-injection of late and repaired records, drops.

Each is registered in the feed first, so that the next writer of the tape completes an interrupted
one, with the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from pyarrow import dataset

from capstan.capture.batch import checkpoint_guard, classify
from capstan.capture.batch.commit_events import CLOSING, Statement, append_statements, moved
from capstan.capture.batch.roster import OpenWorker, Roster
from capstan.capture.synthetic import dropping, late_reinjection, rescale
from capstan.capture.synthetic.stall_check import commit_times
from capstan.core.config import EventTime, Stream
from capstan.core.json_object import Json
from capstan.core.times import Time
from capstan.storage.compaction.index_compaction import keep_short
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.data_files import files_between
from capstan.storage.tape import feed, index
from capstan.storage.tape.feed import BatchEntry, Origin
from capstan.storage.tape.tape import Tape, newest_cut
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Detail = Callable[[int], Json | None]
"""Returns the details to register for a synthetic batch, by its number; None for no batch."""


def finish(spark: SparkSession, tape: Tape) -> bool:
    """Complete an interrupted synthetic batch; returns whether there was one."""
    entry, cut = feed.last_synthetic(tape), newest_cut(tape)
    if entry is None or entry.batch <= cut.batch or index.is_closed(tape, cut):
        return False
    _APPLY[entry.origin](spark, tape, entry)
    return True


def insert(
    spark: SparkSession, tape: Tape, origin: Origin, detail: Detail, operation: str
) -> BatchEntry | None:
    """Register a synthetic batch and apply it; None when there is nothing to do.

    `detail` returns what applies the batch of a given number, or None for no batch. `operation` is
    the one that waits while a micro-batch is incomplete, for the error text.
    """
    number = _next_number(tape, operation)
    batch_detail = detail(number)
    if batch_detail is None:
        return None
    entry = BatchEntry(number, origin, detail=batch_detail)
    _require_unclaimed(tape, number, operation)
    feed.register_batch(tape, entry)
    emit(f"{origin}.claim", stream=tape.name, batch=number)
    _APPLY[origin](spark, tape, entry)
    return entry


def require_insertable(tape: Tape, operation: str) -> None:
    """Check that `insert` would not refuse a batch, for what has to be written before it."""
    _require_unclaimed(tape, _next_number(tape, operation), operation)


def _next_number(tape: Tape, operation: str) -> int:
    """The number of the next batch of a tape that is neither closed nor amid a micro-batch."""
    Roster.load(tape, newest_cut(tape))  # Refuses a closed stream, which could not apply it.
    number = checkpoint_guard.last_batch(tape) + 1
    # Checked after reading the number: a micro-batch that starts from here on conflicts with it.
    checkpoint_guard.require_no_partial_batch(tape, operation)
    return number


def _require_unclaimed(tape: Tape, number: int, operation: str) -> None:
    if any(later.origin is Origin.CAPTURE for later in feed.entries_from(tape, number)):
        raise checkpoint_guard.half_done(tape, operation)


def advance_idle(spark: SparkSession, tape: Tape, stream: Stream, now: datetime) -> None:
    """Advance the workers of an idle source if the stream declares `idle_after`."""
    # The tape has no unfinished synthetic batch; at `now` it was up to date with its source. A
    # record that arrives after a silence of `idle_after` may still be as late as the stream allows.
    # So an idle worker advances to the current time less `idle_after` and `lateness`, and never
    # moves back.

    # A stream may be idle for days, and each advance is a commit.
    keep_short(tape, newest_cut(tape).commit)
    detail = idle_detail(tape, stream, now)
    if detail is not None:
        insert(spark, tape, Origin.IDLE, lambda _: detail, "an idle source")


def idle_detail(tape: Tape, stream: Stream, now: datetime) -> dict[str, object] | None:
    """The workers that the clock advances, and their new event time; None for no advance."""
    time = stream.time
    if not isinstance(time, EventTime) or time.idle_after is None or time.lateness is None:
        return None
    bound = classify.watermark(time, classify.since_epoch(now - time.idle_after), classify.NEVER)
    roster = Roster.load(tape, newest_cut(tape))
    behind = [worker for worker in roster.workers if worker.held[-1] < bound]
    if not behind:
        return None
    busy = _busy_since(tape, now - time.idle_after)
    if time.watermark == "stream":
        behind = [] if busy else behind
    idle = [worker.number for worker in behind if worker.number not in busy]
    return {"workers": idle, "event": bound} if idle else None


def _apply_idle(_: SparkSession, tape: Tape, entry: BatchEntry) -> None:
    cut = newest_cut(tape)
    roster = Roster.load(tape, cut)
    numbers = entry.detail["workers"]
    assert isinstance(numbers, Collection)
    event = entry.detail["event"]

    def held(worker: OpenWorker) -> Time:
        last = max(event, worker.held[-1]) if worker.number in numbers else worker.held[-1]
        # The epoch, if there is one, comes first.
        return Time((*(entry.batch + 1 for _ in worker.held[1:]), last))

    after = replace(roster, workers=tuple(replace(w, held=held(w)) for w in roster.workers))
    statements: list[Statement] = [
        (new.number, CLOSING, moved(old.on_tape, new.held))
        for old, new in zip(roster.workers, after.workers, strict=True)
        if old.on_tape != new.held
    ]
    note = {"batch": entry.batch, "idle": len(numbers)}
    append_statements(
        tape, statements, roster.positions(), note, batch=entry.batch, commit=cut.commit + 1
    )
    emit("idle.events", stream=tape.name, workers=len(numbers))


def _busy_since(tape: Tape, moment: datetime) -> set[int]:
    """Workers that have received records since a moment, by the times of the tape's commits."""
    recent: int | None = None
    for commit, committed_at in commit_times(tape, newest_cut(tape).commit):
        if committed_at < moment:
            break
        recent = commit
    if recent is None:
        return set()
    path = tape.paths.events
    table = delta.open_table(path)
    files = files_between(path, table, "commit", recent)
    rows = read_columns(path, ["worker", "kind", "commit"], table, files)
    messages = (dataset.field("commit") >= recent) & (dataset.field("kind") == "messages")
    return set(rows.filter(messages)["worker"].to_pylist())


_APPLY: Mapping[Origin, Callable[[SparkSession, Tape, BatchEntry], None]] = {
    Origin.RESCALE: rescale.apply,
    Origin.IDLE: _apply_idle,
    Origin.PUT_BACK: late_reinjection.apply,
    Origin.DROP: dropping.apply,
    Origin.FIX: late_reinjection.apply,
}
