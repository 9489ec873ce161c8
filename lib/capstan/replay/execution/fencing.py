"""Whose turn it is at a target: who is shut out of it, and who has changed it since.

A claim keeps others away, but stops no process: one whose claim was unlocked or has run out may
still be about to commit. Delta stops it, by the transaction identity of its run. So whoever has
claimed shuts such attempts out first, and asks what was published only then: what the target has by
now is all that it will ever get from them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from capstan.instrumentation import emit
from capstan.replay.output import target_table
from capstan.storage import delta
from capstan.storage.ledger import claims, coverage
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId, have_same_identity
from capstan.storage.ledger.tables import read_rows

if TYPE_CHECKING:
    from capstan.replay.execution.job import Job
    from capstan.storage.lake import Lake


def fence_stale_attempts(job: Job, scope: Scope | None = None) -> None:
    """Shut out the attempts whose claims on the job's rows are dead, and that have not ended.

    Nothing is committed where there is none. One of a run that the ledger of runs does not know has
    not written its intent: when it does, it finds that its claim is dead.

    Args:
        job: The job, at the attempt that has claimed.
        scope: What it has claimed; by default what its plan may change.
    """
    path = job.plan.target
    newest: dict[str, int] = {}
    for dead in claims.abandoned(job.lake, job.run.name, job.attempt, scope or job.plan.scope):
        if dead.scope.target == path:
            newest[dead.run] = max(dead.attempt, newest.get(dead.run, 0))
    for name, attempt in newest.items():
        rows = read_rows(job.lake, "runs", ("identity", "generation"), run=name)
        if not rows:
            continue
        row = rows[-1]
        run = RunId.named(name, str(row["identity"]), int(str(row["generation"])), path)
        if target_table.latest_txn_version(path, run) < run.change(attempt).version:
            target_table.fence(job.spark, path, run, attempt + 1, job.run.name)
            emit("replay.shut-out", run=name, attempt=attempt)


def runs_published_since(lake: Lake, scope: Scope, version: int, run: str) -> list[str]:
    """Runs that have published over part of a scope after a version, and stand.

    By coverage, and by the target itself: who was cut off may have written no coverage yet.

    Args:
        lake: The lake.
        scope: The target, workers and times.
        version: Of the target.
        run: Who asks: it is not counted, while later runs of its identity are, whatever they play.
    """
    path = scope.target
    standing = {each.run: each for each in coverage.current(lake, path)}
    later = {name: each.scope for name, each in standing.items() if each.target_version > version}
    published, undone = _told(path, version)
    unsaid = {other: at for other, at in published.items() if other not in standing}
    claimed = claims.scopes(lake, path) if unsaid.keys() - {run} else {}
    for other, attempt in unsaid.items():
        if (other, attempt) in claimed:
            later[other] = claimed[other, attempt]
    found = [
        name
        for name, each in later.items()
        if each.overlaps(scope) or have_same_identity(name, run)
    ]
    return [name for name in found if name != run and name not in undone]


def _told(path: str, version: int) -> tuple[dict[str, int], Collection[str]]:
    """By a target's own log: which runs have published, by which attempt; which were taken back."""
    published: dict[str, int] = {}
    undone: set[str] = set()
    for commit in delta.commits_since(path, version):
        note = delta.note_of(commit)
        run = str(note.get("run"))
        if note.get("rollback"):
            undone.add(run)
        elif note.get("publish"):
            published[run] = int(str(note["attempt"]))
    return published, undone
