"""Claims: who may write which workers and times of a target.

A claim is appended and then read back: of claims that overlap and are alive, the one with the
lowest ordinal holds, and the others give way. Ordinals are exact, because all claims of a lake are
numbered under one transaction identity. A claim dies with its run's end, after a time-out, with
`capstan unlock`, or when the next attempt of the same run takes it over.

A dead claim does not stop a process. So whoever changes a target looks whether its claim stands
right before (`ensure_held`), and whoever comes after a claim that is dead without an end shuts its
attempt out in the target itself (`abandoned`): the first tells it early, the second leaves no gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from capstan.core.times.region import Region
from capstan.errors import FencedError, RangeLockedError
from capstan.storage import delta
from capstan.storage.idempotent_write import Txn
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.region_json import may_overlap, parse_region, region_text
from capstan.storage.ledger.run_identity import RunId, are_of_one
from capstan.storage.ledger.runs import TERMINAL, Step
from capstan.storage.ledger.tables import append_rows, now, read_rows

if TYPE_CHECKING:
    pass

LEASE = timedelta(hours=12)
"""How long a claim lives that nobody renews."""
_APP = "claims"
_STEPS = ("run", "attempt", "step")
_CUT = timedelta(seconds=1)
"""More than what the bounds that a file has of its moments are cut by."""
_RENEW = 4
"""A claim is renewed once less than this part of its life is left; clocks differ by less."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is claimed of a target.

    Attributes:
        target: The target's path.
        workers: Captured workers; None claims the rows of all, also of those to come.
        region: The times.
    """

    target: str
    workers: tuple[int, ...] | None
    region: Region

    def meets(self, other: Scope) -> bool:
        """Whether both claim some row."""
        if self.target != other.target:
            return False
        both = self.workers is not None and other.workers is not None
        if both and not set(self.workers or ()) & set(other.workers or ()):
            return False
        same_shape = len(self.region.box.since) == len(other.region.box.since)
        return may_overlap(self.region, other.region) if same_shape else True


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of an attempt, with its renewals: one that came after its end is a claim anew."""

    ordinal: int
    run: str
    attempt: int
    stream: str
    scope: Scope
    at: datetime
    expires: datetime

    def meets(self, run: str, scope: Scope) -> bool:
        """Whether another run must not claim a scope beside this one.

        Runs of one identity go on from each other, whatever they play.
        """
        return self.scope.meets(scope) or are_of_one(self.run, run)


class ClaimState(StrEnum):
    """What has become of a claim."""

    ACTIVE = "alive"
    """It holds."""
    ABANDONED = "open"
    """It holds nothing any more, but its attempt has not ended: it may still be at work."""
    FINISHED = "over"
    """Its attempt has ended by itself, and changes nothing any more."""


def claim(lake: Lake, run: RunId, stream: str, scope: Scope) -> int:
    """Claim a scope for the next attempt of a run.

    Returns:
        The number of the attempt.

    Raises:
        RangeLockedError: `CAP-HELD` when another run holds an overlapping scope, naming it.
    """
    ordinal, attempt = _append(lake, run.name, stream, scope)
    for other in active(lake, scope.target):
        if other.ordinal < ordinal and other.run != run.name and other.meets(run.name, scope):
            release(lake, run.name, attempt)
            raise _held(other)
    return attempt


def ensure_held(lake: Lake, run: str, attempt: int) -> None:
    """Check that an attempt's claim stands, right before the attempt changes its target.

    One that is about to run out is renewed by a row. One that has run out is claimed anew, unless
    another run has claimed part of it since.

    Raises:
        FencedError: `CAP-FENCED` when the claim was unlocked, taken over or has ended.
    """
    own = _standing(lake, run, attempt)
    if own is not None and own.expires - now() > LEASE / _RENEW:
        return
    if own is not None:
        ordinal, _ = _append(lake, run, own.stream, own.scope, attempt)
        before = [
            other
            for other in active(lake, own.scope.target)
            if other.ordinal < ordinal and other.run != run and other.meets(run, own.scope)
        ]
        if not before and _standing(lake, run, attempt) is not None:
            return
        release(lake, run, attempt)
    raise FencedError(
        "CAP-FENCED",
        f"run {run}: the claim of attempt {attempt} holds no more: it was unlocked, ended by "
        "somebody, or taken over; the target was left as it is",
        f"see `capstan runs` for what became of {run}; the same command begins again",
        run=run,
        attempt=attempt,
    )


def _standing(lake: Lake, run: str, attempt: int) -> Claim | None:
    """An attempt's claim, while it is the newest of its run and nobody has ended it."""
    steps = read_rows(lake, "runs", _STEPS, run=run)
    found = _judged(read_rows(lake, "claims", run=run), steps, datetime.min.replace(tzinfo=UTC))
    mine = [each for each, fate in found if fate is ClaimState.ACTIVE and each.attempt == attempt]
    return mine[-1] if mine else None


def _append(
    lake: Lake,
    run: str,
    stream: str,
    scope: Scope,
    attempt: int | None = None,
) -> tuple[int, int]:
    """Append a claim of an attempt, by default of a new one; its ordinal, and the attempt."""
    while True:
        path = lake.ledger("claims")
        known = delta.open_table(path).transaction_version(_APP) if is_table(path) else None
        ordinal = 0 if known is None else known + 1
        number = last_attempt(lake, run) + 1 if attempt is None else attempt
        row = {
            "claim": ordinal,
            "kind": "claim",
            "run": run,
            "attempt": number,
            "stream": stream,
            "target": scope.target,
            "workers": None if scope.workers is None else list(scope.workers),
            "region": region_text(scope.region),
            "expires": now() + LEASE,
        }
        if append_rows(lake, "claims", [row], Txn(_APP, ordinal)):
            return ordinal, number


def last_attempt(lake: Lake, run: str) -> int:
    """The newest attempt of a run that has claimed; 0 where none has."""
    mine = read_rows(lake, "claims", ("attempt",), run=run)
    return max((int(str(row["attempt"])) for row in mine), default=0)


def release(lake: Lake, run: str, attempt: int) -> None:
    """Give up a claim whose attempt leaves no other trace."""
    append_rows(lake, "claims", [{"claim": -1, "kind": "release", "run": run, "attempt": attempt}])


def release_if_active(lake: Lake, run: str, attempt: int) -> None:
    """Release the claim of an attempt that was shut out, if it still stands."""
    if _standing(lake, run, attempt) is not None:
        release(lake, run, attempt)


def active(lake: Lake, target: str | None = None) -> list[Claim]:
    """Claims that hold, by ordinal: neither released, ended, expired nor taken over."""
    moment = now()
    # Of the runs that have claimed something which is not over yet, all that is said of them: most
    # have ended long ago, and the files that tell of these are not opened.
    claimed = {} if target is None else {"target": target}
    unexpired = {"expires": (moment - _CUT, None)}
    rows = read_rows(lake, "claims", ("run",), unexpired, **claimed)
    names = tuple({row["run"] for row in rows})
    if not names:
        return []
    steps = read_rows(lake, "runs", _STEPS, run=names)
    found = _judged(read_rows(lake, "claims", run=names), steps, moment, ended=False)
    return [
        each
        for each, fate in found
        if fate is ClaimState.ACTIVE and target in (None, each.scope.target)
    ]


def abandoned(lake: Lake, run: str, attempt: int, scope: Scope) -> list[Claim]:
    """Dead claims that are in the way, whose attempts have not ended: they may still be at work.

    Args:
        lake: The lake.
        run: Who asks; its own attempts before this one count as well.
        attempt: The attempt that asks.
        scope: What it has claimed.
    """
    return [
        each
        for each, fate in _read(lake, scope.target, ended=False)
        if fate is ClaimState.ABANDONED and (each.run, each.attempt) != (run, attempt)
        if each.meets(run, scope)
    ]


def scopes(lake: Lake, target: str) -> dict[tuple[str, int], Scope]:
    """What was ever claimed of a target, by run and attempt."""
    return {
        (each.run, each.attempt): each.scope
        for each, _ in _read(lake, target)
        if each.scope.target == target
    }


def _read(
    lake: Lake, target: str | None = None, *, ended: bool = True
) -> list[tuple[Claim, ClaimState]]:
    """Claims of a target or of all, and what has become of them; `ended` has those that are over.

    These are most, and all that is needed to tell them is the steps of their runs.
    """
    # Who releases a claim names no target.
    claimed = {} if target is None else {"target": (target, None)}
    stepped = {} if target is None else {"target": target}
    rows = read_rows(lake, "claims", **claimed)
    steps = read_rows(lake, "runs", _STEPS, **stepped) if rows else []
    return _judged(rows, steps, now(), ended=ended)


def _judged(
    rows: list[dict[str, object]],
    steps: list[dict[str, object]],
    moment: datetime,
    *,
    ended: bool = True,
) -> list[tuple[Claim, ClaimState]]:
    """Claims by ordinal, and what has become of them at a moment; by rows of `claims`, `runs`."""
    said = {(row["run"], row["attempt"]): row["step"] for row in steps}
    # Who rejects a run is not who publishes it.
    over = {key for key, step in said.items() if step in TERMINAL and step != Step.REJECTED}
    released = {key for key, step in said.items() if step == Step.REJECTED}
    released |= {(row["run"], row["attempt"]) for row in rows if row["kind"] == "release"}
    told = [row for row in rows if row["kind"] == "claim"]
    newest: dict[str, int] = {}
    for row in told:
        run = str(row["run"])
        newest[run] = max(int(str(row["attempt"])), newest.get(run, 0))
    claims = _renewed(
        _claim(row) for row in told if ended or (row["run"], row["attempt"]) not in over
    )

    def fate(each: Claim) -> ClaimState:
        key = (each.run, each.attempt)
        if key in over:
            return ClaimState.FINISHED
        gone = key in released or each.attempt != newest[each.run]
        return ClaimState.ABANDONED if gone or each.expires <= moment else ClaimState.ACTIVE

    return [(each, fate(each)) for each in claims]


def _renewed(claims: Iterable[Claim]) -> list[Claim]:
    """Claims by ordinal, each with its renewals."""
    found: dict[tuple[str, int], Claim] = {}
    for each in sorted(claims, key=lambda each: each.ordinal):
        key = (each.run, each.attempt)
        before = found.get(key)
        in_time = before is not None and each.at < before.expires
        found[key] = replace(before, expires=each.expires) if before and in_time else each
    return sorted(found.values(), key=lambda each: each.ordinal)


def _held(other: Claim) -> RangeLockedError:
    return RangeLockedError(
        "CAP-HELD",
        f"run {other.run} holds part of that range of {other.scope.target} "
        f"since {other.at:%Y-%m-%d %H:%M:%S} UTC",
        f"wait for it; if it is dead: `capstan unlock {other.run}`",
        holder=other.run,
        target=other.scope.target,
    )


def _claim(row: Mapping[str, object]) -> Claim:
    at, expires, workers = row["at"], row["expires"], row["workers"]
    assert isinstance(at, datetime)
    assert isinstance(expires, datetime)
    scope = Scope(
        str(row["target"]),
        tuple(workers) if isinstance(workers, list) else None,
        parse_region(str(row["region"])),
    )
    return Claim(
        int(str(row["claim"])),
        str(row["run"]),
        int(str(row["attempt"])),
        str(row["stream"]),
        scope,
        at,
        expires,
    )
