"""Rescaling a capture: the workers by key close, and as many as are wanted now open.

A key belongs to the worker that its hash names among those that are open. So old workers keep what
they have, and no time that was complete opens again: the new ones begin at the stream's frontier.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from capstan.capture.in_process_events import numbered
from capstan.capture.progress_events import CLOSING, OPENING, Statement, moved
from capstan.capture.roster import Roster, number_of_next
from capstan.errors import InvalidRequestError
from capstan.instrumentation import emit
from capstan.storage.tape.feed import BatchEntry
from capstan.storage.tape.tape import Tape, append_few_events, change_settings, newest_cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_declared(name: str, settings: Mapping[str, object], rescale: int | None) -> None:
    """Check that the number of workers that was asked for is the one that is declared.

    Args:
        name: The stream.
        settings: The declaration, as it is kept with a tape.
        rescale: The number that was asked for; None to change none.

    Raises:
        InvalidRequestError: `CAP-RESCALE`.
    """
    now = _count(settings)
    if rescale is not None and now != rescale:
        declared = "workers that are not by key" if now is None else f"{now} workers"
        raise InvalidRequestError(
            "CAP-RESCALE",
            f"stream {name} is to be rescaled to {rescale} workers, and is declared with "
            f"{declared}",
            "set workers.count in streams.yaml to the number that is wanted; only workers by key "
            "can be rescaled",
            stream=name,
        )


def wanted_count(tape: Tape, settings: Mapping[str, object], rescale: int | None) -> int | None:
    """The number of workers to rescale to; None where there is nothing to rescale.

    Raises:
        InvalidRequestError: `CAP-RESCALE` when the declaration changes the number, and nobody asked
            for it.
    """
    was, now = _count(tape.settings), _count(settings)
    if was is None or now is None or was == now or with_count(settings, was) != _fixed(tape):
        return None
    if rescale is None:
        raise InvalidRequestError(
            "CAP-RESCALE",
            f"stream {tape.name} has {was} workers, and is declared with {now}",
            f"`capstan capture {tape.name} --rescale {now}` closes the old workers and opens "
            f"{now} new ones; or put workers.count back",
            stream=tape.name,
            workers=was,
            declared=now,
        )
    return now


def carry_out(_: SparkSession, tape: Tape, claim: BatchEntry) -> None:
    """Close the open workers and open new ones, in one commit: the batch of this claim."""
    count, cut = int(str(claim.detail["count"])), newest_cut(tape)
    change_settings(tape, with_all(tape.settings, count))
    emit("rescale.settings", stream=tape.name, workers=count)
    first = int(str(claim.detail["first"]))
    # Also those that a batch which was cut off has left to open; not the new ones of this rescale.
    old = Roster.load(tape, cut).before(first)
    fresh = {first + i: str(first + i) for i in range(count)}
    new = Roster(cut.commit, old.minimum, (), first, old.seen).opened_at(old.frontier, fresh)
    if number_of_next(tape) == first:
        new.write_down(tape, fresh)
    emit("rescale.workers", stream=tape.name)
    statements: list[Statement] = [
        (worker.number, CLOSING, [(worker.on_tape, -1)]) for worker in old.workers
    ]
    # Without a move an event is still stated, so that each new worker has its first.
    statements += [
        (worker.number, OPENING, moved(worker.on_tape, worker.held)) for worker in new.workers
    ]
    events = numbered(
        tape.time_type,
        statements,
        {**old.positions(), **new.positions()},
        batch=claim.batch,
        commit=cut.commit + 1,
    )
    note = {"stream": tape.name, "batch": claim.batch, "rescale": count}
    append_few_events(tape, events, cut.commit + 1, note)
    emit("rescale.events", stream=tape.name, workers=count)


def detail_of(tape: Tape, count: int) -> dict[str, object]:
    """What a claim has to say of a rescale, so that it can be carried out."""
    return {"count": count, "was": _count(tape.settings), "first": number_of_next(tape)}


def with_count(settings: Mapping[str, object], count: int) -> object:
    """The fixed part of settings, with another number of workers."""
    fixed = json.loads(json.dumps(settings["fixed"]))
    fixed["workers"]["count"] = count
    return fixed


def with_all(settings: Mapping[str, object], count: int) -> dict[str, object]:
    """Settings with another number of workers."""
    return {**settings, "fixed": with_count(settings, count)}


def _fixed(tape: Tape) -> object:
    return tape.settings.get("fixed")


def _count(settings: Mapping[str, object]) -> int | None:
    """How many workers by key there are; None where workers are not by key."""
    fixed = settings.get("fixed")
    workers = fixed.get("workers") if isinstance(fixed, Mapping) else None
    count = workers.get("count") if isinstance(workers, Mapping) else None
    return int(str(count)) if count is not None else None
