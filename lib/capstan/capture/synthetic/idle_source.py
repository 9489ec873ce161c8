"""Idle advance: the clock moves the frontier of a source without new records.

A record that arrives after a silence of `idle_after` may still be as late as the stream allows. So
an idle worker advances to the current time less `idle_after` and `lateness`, and never moves back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from pyarrow import dataset

from capstan.capture.batch import classify
from capstan.capture.batch.in_process_events import numbered
from capstan.capture.batch.progress_events import CLOSING, Statement, moved
from capstan.capture.batch.roster import OpenWorker, Roster
from capstan.capture.synthetic.stall_check import commit_times
from capstan.core.config import EventTime, Stream
from capstan.core.times import Time
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.data_files import files_between
from capstan.storage.tape.feed import BatchEntry
from capstan.storage.tape.tape import Tape, append_few_events, newest_cut
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def detail_of(tape: Tape, stream: Stream, now: datetime) -> dict[str, object] | None:
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


def apply(_: SparkSession, tape: Tape, entry: BatchEntry) -> None:
    """Advance idle workers as batch `entry`, in one commit."""
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
    events = numbered(
        tape.time_type,
        statements,
        roster.positions(),
        batch=entry.batch,
        commit=cut.commit + 1,
    )
    note = {"stream": tape.name, "batch": entry.batch, "idle": len(numbers)}
    append_few_events(tape, events, cut.commit + 1, note)
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
