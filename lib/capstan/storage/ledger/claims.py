"""Claims: locks of a run on workers and times of a target.

A claim is appended and then read back. Of overlapping active claims the one with the lowest ordinal
holds, and the others give way. Ordinals are exact, because all claims of a lake are numbered under
one transaction identity. A claim ends with its run, on expiry, by `capstan unlock`, or when the
next attempt of the same run takes it over.

The end of a claim does not stop a process. Two checks cover this. An attempt checks its claim right
before it changes the target (`ensure_held`); this reports the loss early. The next run fences all
abandoned attempts in the target itself (`abandoned`); this leaves no gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.times.region import Region
from capstan.errors import FencedError, RangeLockedError
from capstan.errors.shell_command import command
from capstan.storage.delta import delta
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.region_json import may_overlap, parse_region, region_text
from capstan.storage.ledger.run_identity import RunId, have_same_identity
from capstan.storage.ledger.runs import TERMINAL, Step
from capstan.storage.ledger.tables import LedgerRow, append_rows, now, read_rows, read_values
from capstan.storage.stored_log import look_again

LEASE = timedelta(hours=12)
"""The lifetime of a claim that is not renewed."""
_APP = "claims"
_STEP_COLUMNS = ("run", "attempt", "step")
# A run is rejected by another process than the one that publishes it.
_OVER = TERMINAL - {Step.REJECTED}
_BOUND_MARGIN = timedelta(seconds=1)
"""More than the rounding of timestamps in a file's column bounds."""
_RENEW = 4
"""A claim is renewed when less than this fraction of its lease is left; clocks differ by less."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The workers and times of a target that a run claims."""

    target: str
    workers: tuple[int, ...] | None  # None for the rows of all, including future ones
    region: Region

    def overlaps(self, other: Scope) -> bool:
        """Whether both scopes can have a row in common."""
        if self.target != other.target:
            return False
        both = self.workers is not None and other.workers is not None
        if both and not set(self.workers or ()) & set(other.workers or ()):
            return False
        same_shape = len(self.region.box.since) == len(other.region.box.since)
        return may_overlap(self.region, other.region) if same_shape else True

    def contains(self, other: Scope) -> bool:
        """Whether all rows of another scope of the same target are known to be in this one."""
        named = self.workers is None or (
            other.workers is not None and set(self.workers).issuperset(other.workers)
        )
        return named and self.region.includes(other.region)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of an attempt with its renewals; a renewal after expiry is a new claim."""

    ordinal: int
    run: str
    attempt: int
    stream: str
    scope: Scope
    at: datetime
    expires: datetime

    def conflicts_with(self, run: str, scope: Scope) -> bool:
        """Whether another run cannot claim this scope at the same time."""
        # Runs of one identity always conflict, because each continues from the previous one.
        return self.scope.overlaps(scope) or have_same_identity(self.run, run)


class ClaimState(StrEnum):
    """The state of a claim."""

    ACTIVE = "alive"
    """It holds."""
    ABANDONED = "open"
    """It no longer holds, but its attempt has not ended and may still be running."""
    FINISHED = "over"
    """Its attempt has ended by itself and makes no further changes."""


def claim(lake: Lake, run: RunId, stream: str, scope: Scope) -> int:
    """Claim a scope for the next attempt of a run, and return the attempt's number."""
    ordinal, attempt = _append(lake, run.name, stream, scope)
    for holder in _earlier_conflicts(lake, run.name, scope, ordinal):
        release(lake, run.name, attempt)
        raise _range_locked(holder)
    return attempt


def _earlier_conflicts(lake: Lake, run: str, scope: Scope, ordinal: int) -> list[Claim]:
    """Active claims of other runs that conflict with a scope and precede its claim."""
    return [
        other
        for other in active(lake, scope.target)
        if other.ordinal < ordinal and other.run != run and other.conflicts_with(run, scope)
    ]


def ensure_held(lake: Lake, run: str, attempt: int) -> None:
    """Check that an attempt still holds its claim, right before it changes its target."""
    # A claim that is about to expire is renewed by another row. An expired one is claimed again,
    # unless another run has claimed part of the scope in the meantime.
    look_again()
    held = _held_claim(lake, run, attempt)
    if held is not None and held.expires - now() > LEASE / _RENEW:
        return
    if held is not None:
        ordinal, _ = _append(lake, run, held.stream, held.scope, attempt)
        conflicts = _earlier_conflicts(lake, run, held.scope, ordinal)
        if not conflicts and _held_claim(lake, run, attempt) is not None:
            return
        release(lake, run, attempt)
    raise FencedError(
        "CAP-FENCED",
        f"run {run}: attempt {attempt} lost its claim (unlocked, expired or taken over); "
        "the target was not changed",
        f"see `capstan runs` for the state of {run}; repeat the command to start again",
        run=run,
        attempt=attempt,
    )


def _held_claim(lake: Lake, run: str, attempt: int) -> Claim | None:
    """The claim of an attempt if it is the newest of its run and not released, even if expired."""
    steps = read_rows(lake, "runs", _STEP_COLUMNS, run=run)
    rows = read_rows(lake, "claims", run=run)
    states = _claim_states(rows, steps, datetime.min.replace(tzinfo=UTC))
    held = [c for c, state in states if state is ClaimState.ACTIVE and c.attempt == attempt]
    return held[-1] if held else None


def _append(
    lake: Lake, run: str, stream: str, scope: Scope, attempt: int | None = None
) -> tuple[int, int]:
    """Append a claim for an attempt, by default a new one; returns ordinal and attempt."""
    while True:
        path = lake.ledger("claims")
        last = delta.open_table(path).transaction_version(_APP) if is_table(path) else None
        ordinal = 0 if last is None else last + 1
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
    """The newest attempt of a run that has a claim; 0 without one."""
    rows = read_rows(lake, "claims", ("attempt",), run=run)
    return max((row["attempt"] for row in rows), default=0)


def release(lake: Lake, run: str, attempt: int) -> None:
    """Release the claim of an attempt that records no other step."""
    append_rows(lake, "claims", [{"claim": -1, "kind": "release", "run": run, "attempt": attempt}])


def release_if_active(lake: Lake, run: str, attempt: int) -> None:
    """Release the claim of a fenced attempt if it still holds."""
    if _held_claim(lake, run, attempt) is not None:
        release(lake, run, attempt)


def active(lake: Lake, target: str | None = None) -> list[Claim]:
    """Claims that hold, by ordinal: not released, ended, expired or taken over."""
    moment = now()
    # Only runs with an unexpired claim are read in full. Most runs ended long ago, and their files
    # are not opened.
    filters = {} if target is None else {"target": target}
    unexpired = {"expires": (moment - _BOUND_MARGIN, None)}
    rows = read_rows(lake, "claims", ("run",), unexpired, **filters)
    names = tuple({row["run"] for row in rows})
    if not names:
        return []
    steps = read_rows(lake, "runs", _STEP_COLUMNS, run=names)
    states = _claim_states(read_rows(lake, "claims", run=names), steps, moment, finished=False)
    return [
        claim
        for claim, state in states
        if state is ClaimState.ACTIVE and target in (None, claim.scope.target)
    ]


def abandoned(lake: Lake, run: str, attempt: int, scope: Scope) -> list[Claim]:
    """Abandoned claims that conflict with a scope; their attempts may still be running.

    Earlier attempts of `run`, which holds the scope, count as well.
    """
    return [
        claim
        for claim, state in _read(lake, scope.target, finished=False)
        if state is ClaimState.ABANDONED and (claim.run, claim.attempt) != (run, attempt)
        if claim.conflicts_with(run, scope)
    ]


def scopes(lake: Lake, target: str) -> dict[tuple[str, int], Scope]:
    """All scopes ever claimed in a target, by run and attempt."""
    return {
        (claim.run, claim.attempt): claim.scope
        for claim, _ in _read(lake, target)
        if claim.scope.target == target
    }


def _read(lake: Lake, target: str, *, finished: bool = True) -> list[tuple[Claim, ClaimState]]:
    """Claims of a target with their states; `finished` includes finished ones, which are most."""
    # A release has no target.
    of_target: dict[str, object] = {"target": (target, None)}
    of_steps: dict[str, object] = {"target": target}
    if not finished:
        names = _unfinished(lake, target)
        of_target = of_steps = {"run": names}
        if not names:
            return []
    rows = read_rows(lake, "claims", **of_target)
    steps = read_rows(lake, "runs", _STEP_COLUMNS, **of_steps) if rows else []
    return _claim_states(rows, steps, now(), finished=finished)


def _unfinished(lake: Lake, target: str) -> tuple[str, ...]:
    """The runs with claims of a target of which some attempt has not ended; these are few."""
    # However many runs there were, no object is made for those that have ended.
    keys = ["run", "attempt"]
    claimed = read_values(lake, "claims", keys, target=target)
    steps = read_values(lake, "runs", _STEP_COLUMNS, target=target)
    last = steps.group_by(keys, use_threads=False).aggregate([("step", "last")])
    over = last.filter(pc.is_in(last["step_last"], value_set=pa.array(sorted(_OVER))))
    left = claimed.join(over.select(keys), keys, join_type="left anti", use_threads=False)
    return tuple(pc.unique(left["run"]).to_pylist())


def _claim_states(
    rows: list[LedgerRow], steps: list[LedgerRow], moment: datetime, *, finished: bool = True
) -> list[tuple[Claim, ClaimState]]:
    """Claims by ordinal with their states at a moment, from rows of `claims` and `runs`."""
    last_steps = {(row["run"], row["attempt"]): row["step"] for row in steps}
    ended = {key for key, step in last_steps.items() if step in _OVER}
    released = {key for key, step in last_steps.items() if step == Step.REJECTED}
    released |= {(row["run"], row["attempt"]) for row in rows if row["kind"] == "release"}
    claim_rows = [row for row in rows if row["kind"] == "claim"]
    newest: dict[str, int] = {}
    for row in claim_rows:
        newest[row["run"]] = max(row["attempt"], newest.get(row["run"], 0))

    def state(claim: Claim) -> ClaimState:
        key = (claim.run, claim.attempt)
        if key in ended:
            return ClaimState.FINISHED
        lost = key in released or claim.attempt != newest[claim.run]
        return ClaimState.ABANDONED if lost or claim.expires <= moment else ClaimState.ACTIVE

    claims = _merge_renewals(
        _parse_claim(row)
        for row in claim_rows
        if finished or (row["run"], row["attempt"]) not in ended
    )
    return [(claim, state(claim)) for claim in claims]


def _merge_renewals(claims: Iterable[Claim]) -> list[Claim]:
    """Claims by ordinal; a renewal before expiry extends the claim, a later one replaces it."""
    merged: dict[tuple[str, int], Claim] = {}
    for claim in sorted(claims, key=lambda claim: claim.ordinal):
        key = (claim.run, claim.attempt)
        previous = merged.get(key)
        in_time = previous is not None and claim.at < previous.expires
        merged[key] = replace(previous, expires=claim.expires) if previous and in_time else claim
    return sorted(merged.values(), key=lambda claim: claim.ordinal)


def _range_locked(holder: Claim) -> RangeLockedError:
    return RangeLockedError(
        "CAP-HELD",
        f"run {holder.run} has claimed part of that range of {holder.scope.target} "
        f"since {holder.at:%Y-%m-%d %H:%M:%S} UTC",
        f"wait for it to end; if it is dead, run {command('unlock', holder.run)}",
        holder=holder.run,
        target=holder.scope.target,
    )


def _parse_claim(row: LedgerRow) -> Claim:
    workers = None if row["workers"] is None else tuple(row["workers"])
    return Claim(
        ordinal=row["claim"],
        run=row["run"],
        attempt=row["attempt"],
        stream=row["stream"],
        scope=Scope(row["target"], workers, parse_region(row["region"])),
        at=row["at"],
        expires=row["expires"],
    )
