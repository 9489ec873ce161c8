"""Rows that a replay must not put into its target: a second time, or over newer ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from capstan.core.config import Mode
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.output import target_table
from capstan.replay.output.already_published import LOOK
from capstan.replay.output.worker_lists import may_have
from capstan.replay.planning.plan import Plan
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_json import may_overlap, render_bounds
from capstan.storage.ledger.runs import History


@dataclass(frozen=True, slots=True)
class _There:
    """What a run of the same output has in a target.

    Attributes:
        covered: As the ledger of coverage has it.
        history: What it has done; None where the ledger of runs does not have it.
        known: Whether the table is the one that it has published into.
    """

    covered: Covered
    history: History | None
    known: bool

    @property
    def run(self) -> str:
        return self.covered.run

    @property
    def region(self) -> Region | None:
        """What it has played."""
        return None if self.history is None else self.history.region

    def has_workers_of(self, plan: Plan) -> bool:
        """Whether it may have played workers that a plan plays; where only its labels tell that."""
        intent = None if self.history is None else self.history.effective_intent
        certificate = None if intent is None else intent.detail.get("certificate")
        said = certificate.get("workers") if isinstance(certificate, Mapping) else None
        if self.covered.scope.workers is not None:
            return bool(set(self.covered.scope.workers) & set(plan.workers))
        return may_have(said, plan.workers)


def require_no_clash(lake: Lake, plan: Plan, besides: Collection[str] = ()) -> None:
    """Check that a replay doubles no row of its target, and merges none over a newer one.

    Rows of other streams, transforms and pipelines are others. A followed replay goes on after the
    times that its own runs have played.

    Args:
        lake: The lake.
        plan: The replay.
        besides: Runs that are the replay's own.

    Raises:
        InvalidRequestError: `CAP-APPEND`, naming the run that has put rows of the range there;
            `CAP-ORDER`, naming the run that has merged rows of later times.
    """
    if plan.request.mode is Mode.APPEND:
        _require_not_doubled(plan, _there(lake, plan, besides))
    elif plan.request.mode is Mode.MERGE:
        _require_newest(plan, _there(lake, plan, besides))


def _there(lake: Lake, plan: Plan, besides: Collection[str]) -> Iterator[_There]:
    """What runs of the same output have put there, other than its own."""
    standing = [
        each
        for each in coverage.current(lake, plan.target)
        if each.output == plan.output and each.run not in besides
    ]
    histories = runs.read_histories(lake, target=plan.target) if standing else {}
    for each in standing:
        history = histories.get(each.run)
        if history is None:
            yield _There(each, None, known=True)
            continue
        if plan.request.follow and history.run_id.identity == plan.identity:
            continue
        known = target_table.has_published(plan.target, history.run_id)
        if known or not plan.request.adopt:
            yield _There(each, history, known=known)


def _require_not_doubled(plan: Plan, there: Iterable[_There]) -> None:
    for each in there:
        if each.covered.scope.overlaps(plan.scope) and _meets(plan, each):
            raise InvalidRequestError(
                "CAP-APPEND",
                f"run {each.run} has put rows of that range into {plan.request.into} already, and "
                "mode append would put them there twice",
                f"choose mode replace; or roll it back first: `capstan rollback {each.run}`"
                if each.known
                else LOOK,
                run=each.run,
            )


def _require_newest(plan: Plan, there: Iterable[_There]) -> None:
    for each in there:
        region = each.region
        if region is None or each.history is None or each.history.mode != Mode.MERGE:
            continue
        if _shares_keys(plan, each) and _goes_beyond(region, plan.region):
            until = render_bounds(plan.time_type, region)["until"]
            raise InvalidRequestError(
                "CAP-ORDER",
                f"run {each.run} has merged rows of times after this range into "
                f"{plan.request.into}, up to {until or 'the frontier'}: where both have a row of "
                "one key, the older one would win",
                f"roll it back first, `capstan rollback {each.run}`, and replay both ranges, the "
                "older one first"
                if each.known
                else LOOK,
                run=each.run,
            )


def _goes_beyond(region: Region, other: Region) -> bool:
    """Whether a region has times after the end of another one, in any coordinate."""
    one, two = region.simplified(), other.simplified()
    ends = zip(one.box.until, two.box.until, strict=True)
    if any(end is not None and (theirs is None or theirs > end) for theirs, end in ends):
        return True
    if two.below is None or one.below is None:
        return one.below is not two.below and one.below is None
    return any(not one.below.less_equal(time) for time in two.below.elements)


def _shares_keys(plan: Plan, there: _There) -> bool:
    """Whether a row of a plan can have the key of one that a run has merged.

    A key that tells the worker keeps those of different workers apart. That of a worker by hash
    does not: a stream that was rescaled has given it to another one.
    """
    column = plan.tape.worker_column if plan.computation is None else plan.layout.worker
    return column not in plan.keys or there.has_workers_of(plan)


def _meets(plan: Plan, there: _There) -> bool:
    """Whether what a run has played is part of what a plan plays.

    Its scope tells that where the target keeps worker and time; else what it set out to do does.
    """
    region = there.region
    if region is None:
        return True
    if plan.layout.time is None and plan.tells(region) and not may_overlap(region, plan.region):
        return False
    return there.has_workers_of(plan)
