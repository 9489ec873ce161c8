"""Conflicts of a replay with published rows, by the ledgers alone.

An append would duplicate rows, a merge would put older rows over newer ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from capstan.core.config import Mode
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.errors.shell_command import command
from capstan.replay.output.certificate import may_have
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.stamp_checks import require_same_places
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.published_changes import require_one_rule
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_json import may_overlap, render_bounds
from capstan.storage.ledger.runs import History

LOOK = "the table was replaced since: check whether the rows are there; if not, use --adopt"
"""The hint when a table is no longer the one that a run has written to."""


@dataclass(frozen=True, slots=True)
class _Published:
    """A run of the same output, with rows in the target."""

    covered: Covered
    history: History | None  # Its history; None when the runs ledger does not have it.
    same_table: bool

    @property
    def run(self) -> str:
        return self.covered.run

    @property
    def region(self) -> Region | None:
        """The times that it has written; None when unknown."""
        return None if self.history is None else self.history.region

    def has_workers_of(self, plan: Plan) -> bool:
        """Whether it may have replayed a worker of a plan; without a scope, its labels decide."""
        if self.covered.scope.workers is not None:
            return bool(set(self.covered.scope.workers) & set(plan.inputs.workers))
        intent = None if self.history is None else self.history.effective_intent
        return may_have(None if intent is None else intent.certificate.workers, plan.inputs.workers)


def require_no_clash(owner: Ownership, besides: Collection[str] = ()) -> None:
    """Check that a replay duplicates no row of its target, and merges none over a newer one.

    Only rows of the same output count, and none of the runs `besides`.
    """
    plan = owner.plan
    require_one_rule(owner, besides)
    own = (each for each in owner.covered if owner.is_own(each) and each.run not in besides)
    require_same_places(plan, (each.scope for each in own))
    if plan.request.mode is Mode.APPEND:
        _require_not_doubled(plan, _published(owner, besides))
    elif plan.request.mode is Mode.MERGE and plan.change_rule is None:
        _require_newest(plan, _published(owner, besides))


def require_same_table(owner: Ownership, before: History | None) -> None:
    """Check that the target still is the table to which an earlier run has appended."""
    # Another table in its place may or may not have these rows, which could then appear twice.
    plan = owner.plan
    if before is None or plan.request.mode is not Mode.APPEND or plan.request.adopt:
        return
    run = before.run_id
    covers = any(covered.run == run.name for covered in owner.recorded)
    if covers and not owner.has_published(run):
        raise InvalidRequestError(
            "CAP-GONE",
            f"run {run.name} has appended to another table than the present one at {plan.target}",
            LOOK,
            run=run.name,
            target=plan.target,
        )


def _published(owner: Ownership, besides: Collection[str]) -> Iterator[_Published]:
    """Other runs of the same output with rows in the target."""
    plan = owner.plan
    for covered in owner.recorded:
        if not owner.is_own(covered) or covered.run in besides:
            continue
        history = owner.histories.get(covered.run)
        if history is None:
            yield _Published(covered, None, same_table=True)
            continue
        if plan.request.follow and history.run_id.identity == plan.identity:
            continue
        same_table = owner.has_published(history.run_id)
        if same_table or not plan.request.adopt:
            yield _Published(covered, history, same_table=same_table)


def _require_not_doubled(plan: Plan, published: Iterable[_Published]) -> None:
    for other in published:
        if other.covered.scope.overlaps(plan.scope) and _meets(plan, other):
            raise InvalidRequestError(
                "CAP-APPEND",
                f"run {other.run} has already written rows of this range to {plan.request.into}, "
                "and mode append would duplicate them",
                f"choose mode replace; or roll it back first: {command('rollback', other.run)}"
                if other.same_table
                else LOOK,
                run=other.run,
            )


def _require_newest(plan: Plan, published: Iterable[_Published]) -> None:
    for other in published:
        region = other.region
        if region is None or other.history is None or other.history.mode != Mode.MERGE:
            continue
        if _shares_keys(plan, other) and _goes_beyond(region, plan.region):
            until = render_bounds(plan.time_type, region)["until"]
            raise InvalidRequestError(
                "CAP-ORDER",
                f"run {other.run} has merged rows of times after this range into "
                f"{plan.request.into}, up to {until or 'the frontier'}; for keys in both, the "
                "older row would win",
                f"roll it back first, {command('rollback', other.run)}, and replay both ranges, "
                "the older one first"
                if other.same_table
                else LOOK,
                run=other.run,
            )


def _goes_beyond(region: Region, other: Region) -> bool:
    """Whether a region has times after the end of another one, in any coordinate."""
    one, two = region.simplified(), other.simplified()
    ends = zip(one.box.until, two.box.until, strict=True)
    if any(end is not None and (until is None or until > end) for until, end in ends):
        return True
    if two.below is None or one.below is None:
        return one.below is not two.below and one.below is None
    return any(not one.below.less_equal(time) for time in two.below.elements)


def _shares_keys(plan: Plan, other: _Published) -> bool:
    """Whether a row of a plan can have the key of a row that a run has merged."""
    # A key with the column of the worker separates the workers. A worker by hash does not, since a
    # rescaled stream may assign the key to another worker.
    column = plan.computation.worker_column(plan.inputs.tape, plan.layout)
    return column not in plan.keys or other.has_workers_of(plan)


def _meets(plan: Plan, other: _Published) -> bool:
    """Whether a run may have written rows that a plan writes."""
    # When the target keeps worker and time, the scopes decide; else the intent of the run does.
    region = other.region
    if region is None:
        return True
    timeless = plan.layout.time is None and region.is_in(plan.time_type)
    if timeless and not may_overlap(region, plan.region):
        return False
    return other.has_workers_of(plan)
