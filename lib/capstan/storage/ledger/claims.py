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

from collections.abc import Iterable, Mapping
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
from capstan.storage.delta.table_cache import VersionedCache, is_enabled
from capstan.storage.lake import Lake, is_table, newest_entry
from capstan.storage.ledger.region_json import may_overlap, parse_region, region_text
from capstan.storage.ledger.run_identity import RunId, have_same_identity
from capstan.storage.ledger.runs import TERMINAL, Step
from capstan.storage.ledger.tables import LedgerRow, append_rows, now, read_rows, read_values
from capstan.storage.stored_log import look_again

LEASE = timedelta(hours=12)
"""The lifetime of a claim that is not renewed."""
_APP = "claims"
_ACTIVE: VersionedCache[list[Claim]] = VersionedCache()
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

    @property
    def lasts(self) -> bool:
        """Whether it needs no renewal yet."""
        return self.expires - now() > LEASE / _RENEW


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
    return claim_all(lake, stream, {run.name: scope})[run.name]


def claim_all(lake: Lake, stream: str, scopes: Mapping[str, Scope]) -> dict[str, int]:
    """Claim scopes of one target, each for the next attempt of a run: all of them, or none.

    Returns the numbers of the attempts, by run.
    """
    ordinal, attempts = _append(lake, stream, scopes)
    for holder in conflicts(lake, scopes, before=ordinal):
        release_all(lake, attempts)
        raise _range_locked(holder)
    return attempts


def conflicts(lake: Lake, scopes: Mapping[str, Scope], before: int | None = None) -> list[Claim]:
    """Active claims of others that conflict with claims of runs on scopes of one target.

    Only those that precede the claim `before` count, if it is given.
    """
    [target] = {scope.target for scope in scopes.values()}
    return [
        other
        for other in active(lake, target)
        if (before is None or other.ordinal < before) and other.run not in scopes
        if any(other.conflicts_with(run, scope) for run, scope in scopes.items())
    ]


def ensure_held(lake: Lake, run: str, attempt: int) -> None:
    """Check that an attempt still holds its claim, right before it changes its target."""
    # A claim that is about to expire is renewed by another row. An expired one is claimed again,
    # unless another run has claimed part of the scope in the meantime.
    look_again()
    held = _held_claim(lake, run, attempt)
    if held is not None and held.lasts:
        return
    if held is not None:
        scopes = {run: held.scope}
        ordinal, _ = _append(lake, held.stream, scopes, {run: attempt})
        lost = conflicts(lake, scopes, before=ordinal)
        if not lost and _held_claim(lake, run, attempt) is not None:
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
    return held_claims(lake, {run: attempt}).get(run)


def held_claims(lake: Lake, attempts: Mapping[str, int]) -> dict[str, Claim]:
    """The claims by run that `_held_claim` gives of some attempts."""
    names = tuple(attempts)
    steps = read_rows(lake, "runs", _STEP_COLUMNS, run=names)
    rows = read_rows(lake, "claims", run=names)
    states = _claim_states(rows, steps, datetime.min.replace(tzinfo=UTC))
    return {
        claim.run: claim
        for claim, state in states
        if state is ClaimState.ACTIVE and claim.attempt == attempts[claim.run]
    }


class HeldClaims:
    """The claims of some attempts, read again only once a ledger has changed."""

    def __init__(self, lake: Lake, attempts: Mapping[str, int]) -> None:
        """Remember whose claims they are."""
        self._lake, self._attempts = lake, attempts
        self._paths = [lake.ledger(name) for name in ("claims", "runs")]
        self._seen: list[str] = []
        self._held: dict[str, Claim] = {}

    def ensure(self, run: str) -> None:
        """Check that an attempt still holds its claim, as `ensure_held` does."""
        look_again()
        newest = [newest_entry(path) for path in self._paths]
        if newest != self._seen:
            self._held = held_claims(self._lake, self._attempts)
            self._seen = newest
        claim = self._held.get(run)
        if claim is None or not claim.lasts:
            ensure_held(self._lake, run, self._attempts[run])


def _append(
    lake: Lake, stream: str, scopes: Mapping[str, Scope], given: Mapping[str, int] | None = None
) -> tuple[int, dict[str, int]]:
    """Append claims for attempts, by default new ones; returns the first ordinal, and attempts."""
    while True:
        path = lake.ledger("claims")
        last = delta.open_table(path).transaction_version(_APP) if is_table(path) else None
        first = 0 if last is None else last + 1
        attempts = given or {run: n + 1 for run, n in last_attempts(lake, scopes).items()}
        rows = [
            {
                "claim": ordinal,
                "kind": "claim",
                "run": run,
                "attempt": attempts[run],
                "stream": stream,
                "target": scope.target,
                "workers": None if scope.workers is None else list(scope.workers),
                "region": region_text(scope.region),
                "expires": now() + LEASE,
            }
            for ordinal, (run, scope) in enumerate(scopes.items(), first)
        ]
        # All ordinals up to that of the transaction are taken; of the first, by nobody else.
        txn = Txn(_APP, first + len(rows) - 1)
        if append_rows(lake, "claims", rows, txn, unless=Txn(_APP, first)):
            return first, dict(attempts)


def last_attempts(lake: Lake, runs: Iterable[str]) -> dict[str, int]:
    """The newest attempt of each run that has a claim; 0 without one."""
    newest = dict.fromkeys(runs, 0)
    for row in read_rows(lake, "claims", ("run", "attempt"), run=tuple(newest)):
        newest[row["run"]] = max(row["attempt"], newest[row["run"]])
    return newest


def release(lake: Lake, run: str, attempt: int) -> None:
    """Release the claim of an attempt that records no other step."""
    release_all(lake, {run: attempt})


def release_all(lake: Lake, attempts: Mapping[str, int]) -> None:
    """Release the claims of attempts that record no other step."""
    rows = [
        {"claim": -1, "kind": "release", "run": run, "attempt": attempt}
        for run, attempt in attempts.items()
    ]
    append_rows(lake, "claims", rows)


def release_if_active(lake: Lake, run: str, attempt: int) -> None:
    """Release the claim of a fenced attempt if it still holds."""
    if _held_claim(lake, run, attempt) is not None:
        release(lake, run, attempt)


def active(lake: Lake, target: str | None = None) -> list[Claim]:
    """Claims that hold, by ordinal: not released, ended, expired or taken over."""
    if not is_enabled():
        return _active(lake, target)
    # Pages ask for each of hundreds of replays. Without a new row, a claim only expires.
    state = tuple(newest_entry(lake.ledger(name)) for name in ("claims", "runs", "tables"))
    found = _ACTIVE.get(lake.root, state, lambda: _active(lake, None))
    return [c for c in found if c.expires > now() and target in (None, c.scope.target)]


def _active(lake: Lake, target: str | None) -> list[Claim]:
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
