"""Synthetic batches: rescale, idle advance, late re-injection.

A synthetic batch is first registered in the feed under its number, with everything needed to apply
it. So the next writer of the tape completes an interrupted one, with the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from capstan.capture.batch import checkpoint_guard
from capstan.capture.batch.roster import Roster
from capstan.capture.synthetic import idle_source, late_reinjection, rescale
from capstan.core.config import Stream
from capstan.storage.tape import feed, index
from capstan.storage.tape.feed import BatchEntry, Origin
from capstan.storage.tape.index_totals import EVERY, store_totals
from capstan.storage.tape.tape import Tape, newest_cut
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Detail = Callable[[int], Mapping[str, object] | None]
"""Returns the details to register for a synthetic batch, by its number; None for no batch."""

_APPLY: Mapping[Origin, Callable[[SparkSession, Tape, BatchEntry], None]] = {
    Origin.RESCALE: rescale.apply,
    Origin.IDLE: idle_source.apply,
    Origin.PUT_BACK: late_reinjection.apply,
}


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
    Roster.load(tape, newest_cut(tape))  # Refuses a closed stream, which could not apply it.
    number = checkpoint_guard.last_batch(tape) + 1
    # Checked after reading the number: a micro-batch that starts from here on conflicts with it.
    checkpoint_guard.require_no_partial_batch(tape, operation)
    batch_detail = detail(number)
    if batch_detail is None:
        return None
    entry = BatchEntry(number, origin, detail=dict(batch_detail))
    if any(later.origin is Origin.CAPTURE for later in feed.entries_from(tape, number)):
        raise checkpoint_guard.half_done(tape, operation)
    feed.register_batch(tape, entry)
    emit(f"{origin}.claim", stream=tape.name, batch=number)
    _APPLY[origin](spark, tape, entry)
    return entry


def advance_idle(spark: SparkSession, tape: Tape, stream: Stream, now: datetime) -> None:
    """Advance the workers of an idle source if the stream declares `idle_after`.

    The tape has no unfinished synthetic batch; at `now` it was up to date with its source.
    """
    # A stream may be idle for days, and each advance is a commit.
    store_totals(tape, newest_cut(tape).commit, EVERY)
    detail = idle_source.detail_of(tape, stream, now)
    if detail is not None:
        insert(spark, tape, Origin.IDLE, lambda _: detail, "an idle source")
