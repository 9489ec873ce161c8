"""Fencing: excludes stale attempts from a target, and finds later changes to it.

A claim locks a range but stops no process. A process whose claim was unlocked or has expired may
still be about to commit. Delta stops it, by the transaction identity of its run. So a new attempt
fences stale ones first, and only then looks at what was published: they can add nothing after that.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from capstan.replay.target import target_table
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, coverage, runs
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import have_same_identity
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from capstan.replay.execution.job import Job


def fence_stale_attempts(job: Job, scope: Scope | None = None) -> None:
    """Fence attempts that have not ended, but whose claims on a scope are dead."""
    # Without any, nothing is committed. A run that is not in the runs ledger has not written its
    # intent; before it does, it finds that its claim is dead.
    path = job.plan.target
    newest: dict[str, int] = {}
    for dead in claims.abandoned(job.lake, job.run.name, job.attempt, scope or job.plan.locks):
        if dead.scope.target == path:
            newest[dead.run] = max(dead.attempt, newest.get(dead.run, 0))
    table = delta.open_if_table(path) if newest else None
    histories = runs.read_histories(job.lake, run=tuple(newest)) if newest else {}
    for name, history in histories.items():
        run, attempt = history.run_id, newest[name]
        if target_table.txn_version(table, run) < run.change(attempt).version:
            target_table.fence(job.spark, path, run, attempt + 1, job.run.name)
            emit("replay.shut-out", run=name, attempt=attempt)


def runs_published_since(lake: Lake, scope: Scope, version: int, run: str) -> list[str]:
    """Other runs that have published over part of a scope after a version, and are in effect."""
    # They are read from the coverage ledger and from the target's log: a run that was cut off may
    # have written no coverage yet. Later runs of the same identity count, whatever they cover.
    path = scope.target
    standing = {covered.run: covered for covered in coverage.current(lake, path)}
    later = {
        name: covered.scope
        for name, covered in standing.items()
        if covered.target_version > version
    }
    published, undone = _logged_since(path, version)
    uncovered = {name: attempt for name, attempt in published.items() if name not in standing}
    claimed = claims.scopes(lake, path) if uncovered.keys() - {run} else {}
    for name, attempt in uncovered.items():
        if (name, attempt) in claimed:
            later[name] = claimed[name, attempt]
    return [
        name
        for name, other in later.items()
        if name != run and name not in undone
        if other.overlaps(scope) or have_same_identity(name, run)
    ]


def _logged_since(path: str, version: int) -> tuple[dict[str, int], Collection[str]]:
    """From a target's log: the attempt by run that has published, and runs rolled back."""
    published: dict[str, int] = {}
    undone: set[str] = set()
    for commit in delta.commits_since(path, version):
        note = commit.note
        run = str(note.get("run"))
        if note.get("rollback"):
            undone.add(run)
        elif note.get("publish"):
            published[run] = note["attempt"]
    return published, undone
