"""Changes to a target by others than runs, found in its log without reading a row.

The bounds of the files that a commit added and removed contain the workers and times that it has
changed, and possibly more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.replay.planning.plan import Plan
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.foreign_commits import touched_since
from capstan.storage.tape.bounds import Bounds, box_of, only_value


@dataclass(frozen=True, slots=True)
class Change:
    """A foreign commit to a target that may have changed its rows.

    Attributes:
        version: The version of the target.
        operation: Delta's name of the operation: `DELETE`, `UPDATE`, `RESTORE`, `WRITE`, ...
        at: The time of the commit.
        workers: The workers whose rows it may have changed; None for any.
        region: The times that it may have changed.
    """

    version: int
    operation: str
    at: datetime
    workers: frozenset[int] | None
    region: Region

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation}, {self.at:%Y-%m-%d %H:%M:%S})"


def changes_of_others(plan: Plan, since: int) -> Iterator[Change]:
    """Foreign changes to the rows of a plan's target, in the order of its versions.

    Commits that the log has lost are included as far as maintenance has recorded them before.

    Args:
        plan: The plan, with the target and its layout.
        since: The version after which commits count.
    """
    for commit in touched_since(plan.lake, plan.target, since):
        files = [(workers_of(plan, bounds), region_of(plan, bounds)) for bounds in commit.files]
        for workers, region in dict.fromkeys(files):
            yield Change(commit.version, commit.operation, commit.at, workers, region)


def changes_since(plan: Plan, covered: Sequence[Covered], since: int = 0) -> tuple[Change, ...]:
    """Foreign changes to rows that runs have covered, and that no run has replaced since.

    Args:
        plan: The plan, with the target.
        covered: The runs that are published in the target.
        since: The version of the target after which changes count.
    """
    if not covered:
        return ()
    first = min(entry.target_version for entry in covered)
    changes = changes_of_others(plan, max(first, since))
    return tuple(change for change in changes if _is_newest(change, plan, covered))


def _is_newest(change: Change, plan: Plan, covered: Sequence[Covered]) -> bool:
    """Whether a change is newer than all runs that cover its rows, as far as bounds show."""
    touched = Scope(
        plan.target, None if change.workers is None else tuple(change.workers), change.region
    )
    parts = ((part, version) for entry in covered for part, version in entry.compared)
    known = [*((entry.scope, entry.target_version) for entry in covered), *parts]
    met = [version for scope, version in known if scope.overlaps(touched)]
    return bool(met) and max(met) < change.version


def workers_of(plan: Plan, bounds: Bounds) -> frozenset[int] | None:
    """The one worker of all rows of a file; None when unknown."""
    value = only_value(bounds, plan.layout.worker or "")
    if isinstance(value, str):
        return frozenset(n for n, label in plan.layout.labels.items() if label == value) or None
    return frozenset({value}) if isinstance(value, int) else None


def region_of(plan: Plan, bounds: Bounds) -> Region:
    """The region that contains the times of a file's rows."""
    box, every = box_of(bounds, plan.time_type, plan.layout.time or ""), plan.layout.every
    since = (first if first is None else first - first % every for first in box.since)
    return Region(Box(tuple(since), box.until))
