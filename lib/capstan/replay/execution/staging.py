"""What replays have staged and not published: what of it is kept, and what can be cleared away.

A publish clears away what its run has staged. What is left is of runs that wait for somebody, that
were rejected or have failed, and stays to be looked at, or of runs that were killed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from capstan.replay.execution.approval import waiting
from capstan.storage.lake import Lake, children, delete_folder, size_of
from capstan.storage.ledger import claims
from capstan.storage.ledger.runs import History, Row, Step, read_histories

KEEP = timedelta(days=30)
"""How long what nobody can publish any more is kept by default, from its attempt's last step."""


class Why(StrEnum):
    """Whose a staged output is."""

    WAITS = "waits"
    """Of a run that may still be published: it is never cleared away."""
    WORKS = "works"
    """Of an attempt that holds its range, or has begun less than a claim's time ago."""
    REJECTED = "rejected"
    """Of a run that a person has rejected."""
    FAILED = "failed"
    """Of an attempt that has failed."""
    LEFT = "left"
    """Of an attempt that was killed, or that another one has taken over."""
    UNKNOWN = "unknown"
    """Of no attempt that the ledger knows: it is never cleared away."""


_ENDED = frozenset({Why.REJECTED, Why.FAILED, Why.LEFT})


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt has staged.

    Attributes:
        name: Its folder's name: the run, and the attempt.
        run: The run.
        why: What has become of the attempt.
        at: When its last step was written down; None for one that the ledger does not know.
        bytes: How large it is.
    """

    name: str
    run: str
    why: Why
    at: datetime | None
    bytes: int

    def is_over(self, now: datetime, keep: timedelta) -> bool:
        """Whether nobody can publish it, and nobody has to keep it, at `now`."""
        return self.why in _ENDED and self.at is not None and now - self.at >= keep


def list_staged(lake: Lake, now: datetime) -> list[Staged]:
    """What is staged in a lake, by name; no JVM is needed."""
    folder = lake.staging("")
    names = children(folder)
    runs = tuple({name.rpartition("-")[0] for name in names})
    histories = read_histories(lake, run=runs) if names else {}
    holders = {(claim.run, claim.attempt) for claim in claims.active(lake)} if names else set()
    return [_staged(lake, name, histories, holders, now) for name in names]


def clear_staged(lake: Lake, found: Iterable[Staged], now: datetime, keep: timedelta) -> list[str]:
    """Clear away what is over of `found`; the names of that. The same again finds it gone."""
    over = [each.name for each in found if each.is_over(now, keep)]
    for name in over:
        delete_folder(lake.staging(name))
    return over


def _staged(
    lake: Lake,
    name: str,
    histories: dict[str, History],
    holders: set[tuple[str, int]],
    now: datetime,
) -> Staged:
    run, _, number = name.rpartition("-")
    size = size_of(lake.staging(name))
    history = histories.get(run)
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
