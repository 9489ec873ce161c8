"""Runs that have not published: those that wait for a decision, have failed, or are dead."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from capstan.reporting.activity import Activity
from capstan.reporting.coverage_view import Informed
from capstan.reporting.frontier_history import Integers
from capstan.reporting.run_heads import RunHeads
from capstan.reporting.run_view import list_runs
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
"""The most failed and dead runs that are looked at, and compared with later publishes."""

_RETRIED_FOR = timedelta(days=1)
"""How long after a failure Airflow tries again at most, by default: its `max_task_retry_delay`."""

_CUT_OFF = ("begun", "stopped", "approved")
_AT_WORK = (Activity.RUNNING, Activity.QUEUED)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_MARGIN = timedelta(seconds=1)
"""More than the rounding of timestamps in a file's column bounds."""


@dataclass(frozen=True, slots=True)
class UnfinishedRuns:
    """Runs that need a person, the newest first."""

    waiting: RunHeads  # for a decision
    failed: RunHeads
    dead: RunHeads  # cut off: nothing is at work on them, and they have recorded no end
    older: RunHeads  # failed or cut off before those that are looked at


def find_unfinished(heads: RunHeads, now: datetime, informed: Informed = list) -> UnfinishedRuns:
    """Those of some runs that need a person.

    A failed or dead run is left out once a later run has published its whole range, while another
    attempt of it is under way or to come, and when a later run over its whole range needs a person
    itself.
    """
    waiting = heads.in_state("audited")
    ended = heads.in_state("failed", *_CUT_OFF).since(now - LISTED_FOR)
    newest = ended.first(LOOKED_AT)
    older, ended = ended.without(newest.names), newest
    if len(ended):
        claimed = {claim.run for claim in claims.active(heads.lake)}
        older, held = older.without(claimed), claimed.intersection(ended.names)
        retried = ended.in_state("failed").since(now - _RETRIED_FOR).names
        # A claim lasts for hours after its process; of tasks that have ended, Airflow knows more.
        # It also knows which are tried again.
        asked = tuple(held.union(retried))
        views = informed(list_runs(heads.lake, run=asked)) if asked else ()
        over = {view.run for view in views if view.activity is Activity.DEAD}
        goes_on = {view.run for view in views if view.activity in _AT_WORK}
        ended = ended.without(held.union(goes_on) - over)
    if len(ended):
        ended = ended.without(_superseded(ended, waiting))
    return UnfinishedRuns(waiting, ended.in_state("failed"), ended.in_state(*_CUT_OFF), older)


_CACHE: VersionedCache[frozenset[str]] = VersionedCache()


def _superseded(ended: RunHeads, waiting: RunHeads) -> Collection[str]:
    lake, moments = ended.lake, ended.moments
    later = {**waiting.first(LOOKED_AT).moments, **moments}
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
    dated: dict[tuple[str, str], list[tuple[datetime, Scope]]] = {}
    for run, (stream, scope) in own.items():
        dated.setdefault((stream, scope.target), []).append((unfinished[run], scope))
    targets = tuple({scope.target for _, scope in own.values()})
    since = {"at": (min(ended.values()) - _MARGIN, None)}
    published = read_rows(lake, "coverage", None, since, target=targets) if targets else []
    for written in current_rows(published).values():
        covered = parse_covered(written)
        scopes = dated.setdefault((covered.stream, covered.scope.target), [])
        scopes.append((written[0]["at"], covered.scope))
    over = {key: DatedScopes.of(scopes) for key, scopes in dated.items()}
    return [
        run
        for run, at in ended.items()
        if run in own
        for stream, scope in [own[run]]
        if _include(over[stream, scope.target].after(at, scope), scope)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class DatedScopes:
    """Scopes of one target with their times, of which few are near another one."""

    scopes: Sequence[Scope]
    moments: Integers
    lows: Integers  # of the first coordinate
    highs: Integers

    @classmethod
    def of(cls, dated: Sequence[tuple[datetime, Scope]]) -> DatedScopes:
        """Scopes with their times."""
        bounds = np.array([_ends(scope) for _, scope in dated], np.int64)
        moments = np.array([_micros(moment) for moment, _ in dated], np.int64)
        return cls([scope for _, scope in dated], moments, bounds[:, 0], bounds[:, 1])

    def after(self, moment: datetime, scope: Scope) -> list[Scope]:
        """Those of later times that may overlap a scope; none if they leave a gap in it."""
        low, high = _ends(scope)
        is_near = (self.moments > _micros(moment)) & (self.lows <= high) & (self.highs >= low)
        near = np.flatnonzero(is_near)
        near = near[np.argsort(self.lows[near], kind="stable")]
        lows, reached = self.lows[near], np.maximum.accumulate(self.highs[near])
        if not near.size or lows[0] > low or reached[-1] < high or (lows[1:] > reached[:-1]).any():
            return []
        return [self.scopes[index] for index in near.tolist()]


def _ends(scope: Scope) -> tuple[int, int]:
    """The least and the greatest value of the first coordinate, or beyond it."""
    box = scope.region.simplified().box
    since, until = box.since[0], box.until[0]
    return _LEAST if since is None else since, _MOST if until is None else until


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _scope(row: Mapping[str, object]) -> Scope:
    workers = row["workers"]
    selected = tuple(workers) if isinstance(workers, list) else None
    return Scope(str(row["target"]), selected, parse_region(str(row["region"])))


def _include(scopes: Sequence[Scope], scope: Scope) -> bool:
    """Whether all rows of a scope are known to be in some scopes of its target together."""
    shape = len(scope.region.box.since), scope.region.box.order
    alike = [one for one in scopes if (len(one.region.box.since), one.region.box.order) == shape]
    if any(one.contains(scope) for one in alike):
        return True
    return bool(alike) and all(
        _include_worker(alike, scope, worker) for worker in scope.workers or (None,)
    )


def _include_worker(scopes: Sequence[Scope], scope: Scope, worker: int | None) -> bool:
    holding = (one.region for one in scopes if one.workers is None or worker in one.workers)
    return any(region.includes(scope.region) for region in merge_regions(holding))
