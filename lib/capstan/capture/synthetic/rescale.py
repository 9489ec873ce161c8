"""Rescale of a capture: closes all keyed workers and opens the new number of them.

`docs/protocol.md`, section 7, says where the new ones start and which keys they get.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capstan.capture.batch.commit_events import (
    CLOSING,
    OPENING,
    Statement,
    append_statements,
    moved,
)
from capstan.capture.batch.roster import Roster, next_worker_number
from capstan.errors import InvalidRequestError
from capstan.errors.shell_command import command
from capstan.storage.tape.feed import BatchEntry
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Tape, change_settings, newest_cut
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_declared(name: str, declared: int | None, rescale: int | None) -> None:
    """Check that the requested number of workers, None for no rescale, is the declared one."""
    if rescale is not None and declared != rescale:
        workers = "workers that are not by key" if declared is None else f"{declared} workers"
        raise InvalidRequestError(
            "CAP-RESCALE",
            f"stream {name} cannot be rescaled to {rescale} workers: it is declared with {workers}",
            "set workers.count in streams.yaml to the new number; only workers by key can be "
            "rescaled",
            stream=name,
        )


def target_count(tape: Tape, settings: TapeSettings, rescale: int | None) -> int | None:
    """The number of workers to rescale to; None for no rescale."""
    current, declared = tape.settings.count, settings.count
    if current is None or declared is None or current == declared:
        return None
    if settings.with_count(current).fixed != tape.settings.fixed:
        return None
    if rescale is None:
        raise InvalidRequestError(
            "CAP-RESCALE",
            f"stream {tape.name} has {current} workers, but is declared with {declared}",
            f"{command('capture', tape.name, '--rescale', declared)}, or capture_into(..., "
            f"rescale={declared}), closes the old workers and opens {declared} new ones; or "
            "restore workers.count",
            stream=tape.name,
            workers=current,
            declared=declared,
        )
    return declared


def apply(_: SparkSession, tape: Tape, entry: BatchEntry) -> None:
    """Close the open workers and open new ones as batch `entry`, in one commit."""
    count, cut = entry.detail["count"], newest_cut(tape)
    change_settings(tape, tape.settings.with_count(count))
    emit("rescale.settings", stream=tape.name, workers=count)
    first = entry.detail["first"]
    # Includes workers that an interrupted batch has registered, but not those of this rescale.
    old = Roster.load(tape, cut).before(first)
    labels = {first + i: str(first + i) for i in range(count)}
    empty = Roster(cut.commit, old.minimum, (), first, old.greatest_time)
    new = empty.opened_at(old.frontier, labels)
    if next_worker_number(tape) == first:
        new.register(tape, labels)
    emit("rescale.workers", stream=tape.name)
    statements: list[Statement] = [
        (worker.number, CLOSING, [(worker.on_tape, -1)]) for worker in old.workers
    ]
    # Every new worker states a first event, even if it does not move.
    statements += [
        (worker.number, OPENING, moved(worker.on_tape, worker.held)) for worker in new.workers
    ]
    note = {"batch": entry.batch, "rescale": count}
    positions = {**old.positions(), **new.positions()}
    append_statements(tape, statements, positions, note, batch=entry.batch, commit=cut.commit + 1)
    emit("rescale.events", stream=tape.name, workers=count)


def detail_of(tape: Tape, count: int) -> dict[str, object]:
    """The details to register for a rescale, from which it can be applied."""
    return {"count": count, "was": tape.settings.count, "first": next_worker_number(tape)}
