"""Runs that have not published: those that wait for a decision, have failed, or are dead."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from capstan.reporting.run_heads import RunHeads
from capstan.storage.delta.table_cache import VersionedCache
from capstan.storage.lake import Lake, newest_entry
from capstan.storage.ledger import claims
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import current_rows, parse_covered
from capstan.storage.ledger.region_json import parse_region
from capstan.storage.ledger.region_union import merge_regions
from capstan.storage.ledger.tables import read_rows

LISTED_FOR = timedelta(days=30)
"""How long failed and dead runs are listed: as long as maintenance keeps what they have staged."""

LOOKED_AT = 500
"""The most failed and dead runs whose ranges are compared with later publishes."""

_MARGIN = timedelta(seconds=1)
"""More than the rounding of timestamps in a file's column bounds."""


@dataclass(frozen=True, slots=True)
class UnfinishedRuns:
    """Runs that need a person, the newest first."""

    waiting: RunHeads  # for a decision
    failed: RunHeads
    dead: RunHeads  # cut off: they hold no claim, and have recorded no end


def find_unfinished(heads: RunHeads, now: datetime) -> UnfinishedRuns:
    """Those of some runs that need a person.

    A failed or dead run is left out once a later run has published its whole range, while another
    attempt of it is under way, and when a later run over its whole range needs a person itself.
    """
    waiting = heads.in_state("audited")
    ended = heads.in_state("failed", "begun", "stopped", "approved").since(now - LISTED_FOR)
    if len(ended):
        ended = ended.without({claim.run for claim in claims.active(heads.lake)})
    if len(ended):
        ended = ended.without(_superseded(ended, waiting))
    return UnfinishedRuns(
        waiting, ended.in_state("failed"), ended.in_state("begun", "stopped", "approved")
    )


_CACHE: VersionedCache[frozenset[str]] = VersionedCache()


def _superseded(ended: RunHeads, waiting: RunHeads) -> Collection[str]:
    lake, moments = ended.lake, ended.moments(LOOKED_AT)
    later = {**waiting.moments(LOOKED_AT), **moments}
    ledgers = (lake.ledger("claims"), lake.ledger("coverage"))
    state = (*map(newest_entry, ledgers), tuple(moments.items()), tuple(later))
    return _CACHE.get(lake.root, state, lambda: frozenset(_find(lake, moments, later)))


def _find(
    lake: Lake, ended: Mapping[str, datetime], unfinished: Mapping[str, datetime]
) -> list[str]:
    """The runs that ended at a time of which a later run has published, or claimed, the range."""
    names = ("claim", "run", "stream", "target", "workers", "region")
    # Of a run that was tried again, the newest claim counts.
    rows = read_rows(lake, "claims", names, kind="claim", run=tuple(unfinished))
    newest = {row["run"]: row for row in rows}
    own = {run: (row["stream"], _scope(row)) for run, row in newest.items()}
    over: dict[tuple[str, str], list[tuple[datetime, Scope]]] = {}
    for run, (stream, scope) in own.items():
        over.setdefault((stream, scope.target), []).append((unfinished[run], scope))
    targets = tuple({scope.target for _, scope in own.values()})
    if targets:
        since = {"at": (min(ended.values()) - _MARGIN, None)}
        for written in current_rows(
            read_rows(lake, "coverage", None, since, target=targets)
        ).values():
            covered = parse_covered(written)
            published = over.setdefault((covered.stream, covered.scope.target), [])
            published.append((written[0]["at"], covered.scope))
    return [
        run
        for run, at in ended.items()
        if run in own
        and _include(
            [scope for moment, scope in over[own[run][0], own[run][1].target] if moment > at],
            own[run][1],
        )
    ]


def _scope(row: Mapping[str, object]) -> Scope:
    workers = row["workers"]
    selected = tuple(workers) if isinstance(workers, list) else None
    return Scope(str(row["target"]), selected, parse_region(str(row["region"])))


def _include(scopes: Sequence[Scope], scope: Scope) -> bool:
    """Whether all rows of a scope are known to be in some scopes of its target together."""
    if any(one.contains(scope) for one in scopes if _alike(one, scope)):
        return True
    near = [one for one in scopes if _alike(one, scope) and one.overlaps(scope)]
    return bool(near) and all(
        _include_worker(near, scope, worker) for worker in scope.workers or (None,)
    )


def _include_worker(scopes: Sequence[Scope], scope: Scope, worker: int | None) -> bool:
    holding = (one.region for one in scopes if one.workers is None or worker in one.workers)
    return any(region.includes(scope.region) for region in merge_regions(holding))


def _alike(one: Scope, other: Scope) -> bool:
    shapes = [(len(s.region.box.since), s.region.box.order) for s in (one, other)]
    return shapes[0] == shapes[1]
