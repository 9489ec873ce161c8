"""Claims: who may write which workers and times of a target.

A claim is appended and then read back: of claims that overlap and are alive, the one with the
lowest ordinal holds, and the others give way. Ordinals are exact, because all claims of a lake are
numbered under one transaction identity. A claim dies with its run's end, after a time-out, with
`capstan unlock`, or when the next attempt of the same run takes it over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from capstan.errors import Held
from capstan.ledger.identity import RunId
from capstan.ledger.regions import may_overlap, parse_region, region_text
from capstan.ledger.runs import TERMINAL, read_histories
from capstan.ledger.tables import append_rows, now, read_rows
from capstan.tape import delta
from capstan.tape.lake import Lake, is_table
from capstan.tape.transaction import Txn
from capstan.times.region import Region

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE = timedelta(hours=12)
_APP = "claims"


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
    """A row of the claims ledger that claims."""

    ordinal: int
    run: str
    attempt: int
    stream: str
    scope: Scope
    at: datetime
    expires: datetime


def claim(spark: SparkSession, lake: Lake, run: RunId, stream: str, scope: Scope) -> int:
    """Claim a scope for the next attempt of a run.

    Returns:
        The number of the attempt.

    Raises:
        Held: `CAP-HELD` when another run holds an overlapping scope, naming it.
    """
    ordinal, attempt = _append(spark, lake, run, stream, scope)
    for other in alive(lake):
        if other.ordinal >= ordinal or not other.scope.meets(scope):
            continue
        if other.run != run.name or other.attempt == attempt:
            release(spark, lake, run.name, attempt)
            raise _held(other)
    return attempt


def _append(
    spark: SparkSession, lake: Lake, run: RunId, stream: str, scope: Scope
) -> tuple[int, int]:
    while True:
        path = lake.ledger("claims")
        known = delta.open_table(path).transaction_version(_APP) if is_table(path) else None
        ordinal = 0 if known is None else known + 1
        mine = read_rows(lake, "claims", run=run.name)
        attempt = 1 + max((int(str(row["attempt"])) for row in mine), default=0)
        row = {
            "claim": ordinal,
            "kind": "claim",
            "run": run.name,
            "attempt": attempt,
            "stream": stream,
            "target": scope.target,
            "workers": None if scope.workers is None else list(scope.workers),
            "region": region_text(scope.region),
            "expires": now() + LEASE,
        }
        if append_rows(spark, lake, "claims", [row], Txn(_APP, ordinal)):
            return ordinal, attempt


def release(spark: SparkSession, lake: Lake, run: str, attempt: int) -> None:
    """Give up a claim whose attempt leaves no other trace."""
    append_rows(
        spark, lake, "claims", [{"claim": -1, "kind": "release", "run": run, "attempt": attempt}]
    )


def alive(lake: Lake, target: str | None = None) -> list[Claim]:
    """Claims that hold, by ordinal: neither released, ended, expired nor taken over."""
    rows = read_rows(lake, "claims")
    released = {(row["run"], row["attempt"]) for row in rows if row["kind"] == "release"}
    claims = [_claim(row) for row in rows if row["kind"] == "claim"]
    newest: dict[str, int] = {}
    for each in claims:
        newest[each.run] = max(each.attempt, newest.get(each.run, 0))
    ended = {
        (run, row.attempt)
        for run, history in (read_histories(lake) if claims else {}).items()
        for row in history.rows
        if row.step in TERMINAL
    }
    moment = now()
    return [
        each
        for each in claims
        if (target is None or each.scope.target == target)
        and each.attempt == newest[each.run]
        and (each.run, each.attempt) not in released | ended
        and each.expires > moment
    ]


def require_free(lake: Lake, scope: Scope, besides: Collection[str] = ()) -> None:
    """Check that no run but those `besides` holds anything of a scope.

    Raises:
        Held: `CAP-HELD`, naming the holder.
    """
    for other in alive(lake, scope.target):
        if other.run not in besides and other.scope.meets(scope):
            raise _held(other)


def _held(other: Claim) -> Held:
    return Held(
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
