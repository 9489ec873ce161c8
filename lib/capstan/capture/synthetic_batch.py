"""Batches that no micro-batch gives: begun once, and finished by whoever writes the tape next.

What such a batch does is written down in the feed under its number before anything of it is done,
with all that is needed to do it. So one that was cut off is carried out to the same end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from capstan.capture import checkpoint_guard, idle_source, late_reinjection, rescale
from capstan.capture.roster import Roster
from capstan.instrumentation import emit
from capstan.storage.tape import feed, index
from capstan.storage.tape.feed import BatchEntry, Origin
from capstan.storage.tape.tape import Tape, newest_cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Detail = Callable[[int], Mapping[str, object] | None]
"""What there is to say of an inserted batch, by its number."""

_CARRY_OUT: Mapping[Origin, Callable[[SparkSession, Tape, BatchEntry], None]] = {
    Origin.RESCALE: rescale.carry_out,
    Origin.IDLE: idle_source.carry_out,
    Origin.PUT_BACK: late_reinjection.carry_out,
}


def finish(spark: SparkSession, tape: Tape) -> bool:
    """Carry out an inserted batch that was cut off; whether there was one."""
    begun, cut = feed.last_inserted(tape), newest_cut(tape)
    if begun is None or begun.batch <= cut.batch or index.is_closed(tape, cut):
        return False
    _CARRY_OUT[begun.origin](spark, tape, begun)
    return True


def insert(
    spark: SparkSession, tape: Tape, origin: Origin, detail: Detail, what: str
) -> BatchEntry | None:
    """Begin an inserted batch, and carry it out; None where there is nothing to do.

    Args:
        spark: The session.
        tape: The tape, on which no inserted batch is begun.
        origin: What it comes from.
        detail: All that is needed to carry it out, given its number; None to insert none.
        what: What has to wait while a micro-batch is half done, in words.

    Raises:
        InvalidRequestError: `CAP-HALF-DONE`; `CAP-CLOSED` when the stream is closed.
        FencedError: `CAP-FENCED` when another process has taken the number.
    """
    Roster.load(tape, newest_cut(tape))  # Not of a closed stream: nothing could carry it out.
    number = checkpoint_guard.last_batch(tape) + 1
    # After that: a micro-batch that begins from here on is in the way of the number.
    checkpoint_guard.require_no_partial_batch(tape, what)
    told = detail(number)
    if told is None:
        return None
    wanted = BatchEntry(number, origin, detail=dict(told))
    if any(each.origin is Origin.CAPTURE for each in feed.claims_from(tape, wanted.batch)):
        raise checkpoint_guard.half_done(tape, what)
    feed.register_batch(tape, wanted)
    emit(f"{origin}.claim", stream=tape.name, batch=wanted.batch)
    _CARRY_OUT[origin](spark, tape, wanted)
    return wanted
