"""What others than runs have done to a target since: from its log, without reading a row.

The bounds of the files that a commit has put there and taken away tell which workers and times it
has touched, and maybe more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from capstan.core.times.region import Region
from capstan.replay.output.file_bounds import region_of, workers_of
from capstan.replay.planning.plan import Plan
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.foreign_commits import touched_since


@dataclass(frozen=True, slots=True)
class Change:
    """A commit of somebody else to a target, as far as it has touched its rows.

    Attributes:
        version: The version of the target that it made.
        operation: What it was, as Delta calls it: `DELETE`, `UPDATE`, `RESTORE`, `WRITE`, ...
        at: When it was made.
        workers: Whose rows it may have touched; None for those of anybody.
        region: At which times.
    """

    version: int
    operation: str
    at: datetime
    workers: frozenset[int] | None
    region: Region

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation}, {self.at:%Y-%m-%d %H:%M:%S})"


def changes_of_others(plan: Plan, since: int) -> Iterator[Change]:
    """What others have done to the rows of a plan's target, in the order of its versions.

    Entries that the log has lost are told as far as maintenance has noted them before.

    Args:
        plan: Whose target it is, and how that keeps worker and time.
        since: The version after which it is told.
    """
    for commit in touched_since(plan.lake, plan.target, since):
        told = commit.version, commit.operation, commit.at
        found = [(workers_of(plan, bounds), region_of(plan, bounds)) for bounds in commit.files]
        for workers, region in dict.fromkeys(found):
            yield Change(*told, workers, region)


def changes_since(plan: Plan, covered: Sequence[Covered], since: int = 0) -> tuple[Change, ...]:
    """What others have done since to rows that runs have covered, and no run has put right since.

    Args:
        plan: Whose target it is.
        covered: What stands there.
        since: Of changes up to this version of the target nothing is told.
    """
    if not covered:
        return ()
    first = min(each.target_version for each in covered)
    found = changes_of_others(plan, max(first, since))
    return tuple(each for each in found if _last_of(each, plan, covered))


def _last_of(change: Change, plan: Plan, covered: Sequence[Covered]) -> bool:
    """Whether a change is the last word on some of what was covered, as far as bounds tell."""
    touched = Scope(
        plan.target, None if change.workers is None else tuple(change.workers), change.region
    )
    met = [each.target_version for each in covered if each.scope.overlaps(touched)]
    return bool(met) and max(met) < change.version
