"""Staged output that was not published: what is kept, and what can be deleted.

A publish deletes the staged output of its run. The rest belongs to runs that wait, were rejected or
have failed, and stays for inspection, or to runs that were killed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from capstan.replay.execution.approval import waiting
from capstan.replay.target.target_table import find_landed
from capstan.storage.delta.staged_rows import discard, staged_bytes
from capstan.storage.lake import Lake, children, delete_folder, size_of
from capstan.storage.ledger import claims
from capstan.storage.ledger.runs import History, Row, Step, read_histories

KEEP = timedelta(days=30)
"""The default retention of output that can no longer be published, from its last step."""


class Why(StrEnum):
    """The state of the attempt that staged an output."""

    WAITS = "waits"
    """The run may still be published; its output is never deleted."""
    WORKS = "works"
    """The attempt holds its range, or wrote its last step less than a lease ago."""
    REJECTED = "rejected"
    """A person has rejected the run."""
    FAILED = "failed"
    """The attempt has failed."""
    LEFT = "left"
    """The attempt was killed, or another one has taken over."""
    UNKNOWN = "unknown"
    """The ledger does not know the attempt; its output is never deleted."""


_ENDED = frozenset({Why.REJECTED, Why.FAILED, Why.LEFT})


@dataclass(frozen=True, slots=True)
class Staged:
    """The staged output of one attempt."""

    name: str  # The folder's name: run and attempt.
    run: str
    why: Why
    at: datetime | None  # Of its last step; None for an attempt that the ledger does not know.
    bytes: int

    def is_over(self, now: datetime, keep: timedelta) -> bool:
        """Whether it can no longer be published at `now`, and its retention has ended."""
        return self.why in _ENDED and self.at is not None and now - self.at >= keep


def list_staged(lake: Lake, now: datetime) -> list[Staged]:
    """The staged outputs of a lake by name, without a JVM."""
    folder = lake.staging("")
    names = children(folder)
    runs = tuple({name.rpartition("-")[0] for name in names})
    histories = read_histories(lake, run=runs) if names else {}
    holders = {(claim.run, claim.attempt) for claim in claims.active(lake)} if names else set()
    return [_staged(lake, name, histories, holders, now) for name in names]


def clear_staged(lake: Lake, staged: Iterable[Staged], now: datetime, keep: timedelta) -> list[str]:
    """Delete those outputs that are over; their names. A second call finds them gone."""
    over = [output for output in staged if output.is_over(now, keep)]
    histories = read_histories(lake, run=tuple({output.run for output in over})) if over else {}
    for output in over:
        folder, history = lake.staging(output.name), histories[output.run]
        if find_landed(history) is None:
            discard(history.last.target, folder)
        delete_folder(folder)
    return [output.name for output in over]


def _staged(
    lake: Lake,
    name: str,
    histories: dict[str, History],
    holders: set[tuple[str, int]],
    now: datetime,
) -> Staged:
    run, _, number = name.rpartition("-")
    history, size = histories.get(run), size_of(lake.staging(name))
    if history is not None:
        size += staged_bytes(history.last.target, lake.staging(name))
    attempt = int(number) if number.isdecimal() else 0
    rows = [row for row in history.rows if row.attempt == attempt] if history else []
    if history is None or not rows:
        return Staged(name, run, Why.UNKNOWN, None, size)
    last = max(rows, key=lambda row: row.at)
    held = (run, attempt) in holders or now - last.at < claims.LEASE
    return Staged(name, run, _why(history, last, held=held), last.at, size)


def _why(history: History, last: Row, *, held: bool) -> Why:
    waits = waiting(history)
    if waits is not None and waits.attempt == last.attempt:
        return Why.WAITS
    ended = {Step.REJECTED: Why.REJECTED, Step.FAILED: Why.FAILED}.get(last.step)
    if ended is not None:
        return ended
    return Why.WORKS if held and last.step is Step.INTENT else Why.LEFT
