"""A batch that drops records of `late`, or opens what an earlier one has dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capstan.capture.batch.commit_events import CLOSING, append_statements
from capstan.capture.batch.roster import Roster
from capstan.storage.tape.feed import BatchEntry
from capstan.storage.tape.tape import Tape, newest_cut
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def apply(_: SparkSession, tape: Tape, entry: BatchEntry) -> None:
    """Put batch `entry` on tape, by a commit without records."""
    cut = newest_cut(tape)
    roster = Roster.load(tape, cut)
    statements = roster.after_batch(entry.batch).progress_since(roster)
    # An empty statement records that the batch took place.
    statements = statements or [(roster.workers[0].number, CLOSING, [])]
    numbers = {"batch": entry.batch, "commit": cut.commit + 1}
    note = {"batch": entry.batch, "drop": entry.detail.get("undo", entry.detail.get("records"))}
    append_statements(tape, statements, roster.positions(), note, **numbers)
    emit("drop.events", stream=tape.name, batch=entry.batch)
