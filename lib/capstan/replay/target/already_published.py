"""Detection of output that is already published, or that was appended to a table since replaced."""

from __future__ import annotations

from collections.abc import Mapping

from capstan.core.config import Mode, ProjectConfig
from capstan.errors import InvalidRequestError
from capstan.replay.planning.intent import Intent
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan
from capstan.replay.target import target_table
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.runs import History

LOOK = "the table was replaced since: check whether the rows are there; if not, use --adopt"
"""The hint when a table is no longer the one that a run has written to."""


def find_equivalent_run(lake: Lake, declarations: ProjectConfig, plan: Plan) -> History | None:
    """The run of the same request at an earlier cut, if both are the same replay.

    When the range was complete then, no record can have been added since. The index confirms it:
    the same messages, records and fingerprint, worker by worker. A followed replay uses its cursor
    instead.
    """
    if plan.request.follow is not None or not _is_complete(plan):
        return None
    for covered in reversed(coverage.current(lake, plan.target)):
        earlier = _earlier(lake, declarations, plan, covered)
        if earlier is None:
            continue
        last = runs.read_last(lake, earlier.identity)
        if last is not None and last.published and last.last.run == covered.run:
            return last if _reads_the_same(plan, earlier) else None
    return None


def _earlier(lake: Lake, declarations: ProjectConfig, plan: Plan, covered: Covered) -> Plan | None:
    """The plan of the same request at the cut of a run; None when it cannot be the same replay."""
    recorded = (covered.stream, covered.transform, covered.code, covered.scope.workers)
    computation = plan.computation
    planned = (plan.request.stream, computation.name, computation.code, plan.scope.workers)
    if recorded != planned or (covered.cut >= plan.inputs.cut.commit and not plan.inputs.several):
        return None
    if covered.scope.region.simplified().box != plan.scope.region.simplified().box:
        return None
    cuts = _cuts(lake, plan, covered)
    if cuts is None:
        return None
    try:
        pins = computation.lookup_pins
        earlier = make_plan(lake, declarations, plan.request, cuts=cuts, pins=pins)
    except InvalidRequestError:
        return None  # Some of its workers did not exist yet.
    same = _workers(earlier) == _workers(plan)
    return earlier if same and _is_complete(earlier) else None


def _is_complete(plan: Plan) -> bool:
    """Whether no row of the requested range can change any more."""
    return plan.computation.is_complete(plan.box, plan.frontier)


def _cuts(lake: Lake, plan: Plan, covered: Covered) -> Mapping[str, int] | None:
    """The cuts of a run, none of them later than those of a plan; None when it is no such run."""
    cuts: Mapping[str, int] = {"": covered.cut}
    if plan.inputs.several:
        history = runs.read_histories(lake, run=covered.run).get(covered.run)
        row = None if history is None else history.effective_intent
        cuts = {} if row is None else Intent.from_json(row.detail).cuts
    planned = plan.inputs.cuts
    if set(cuts) != set(planned) or any(cuts[source] > planned[source] for source in cuts):
        return None
    return cuts


def _workers(plan: Plan) -> list[Mapping[int, str]]:
    return [stream.workers for stream in plan.inputs]


def _reads_the_same(plan: Plan, earlier: Plan) -> bool:
    then, now = ([each.content(at.reads) for each in at.inputs] for at in (earlier, plan))
    return then == now


def require_same_table(lake: Lake, plan: Plan, before: History | None) -> None:
    """Check that the target still is the table to which an earlier run has appended.

    Another table in its place may or may not have these rows, which could then appear twice.
    """
    if before is None or plan.request.mode is not Mode.APPEND or plan.request.adopt:
        return
    run = before.run_id
    recorded = coverage.recorded_at(lake, plan.target)
    covers = any(covered.run == run.name for covered in recorded)
    if covers and not target_table.has_published(lake, plan.target, run):
        raise InvalidRequestError(
            "CAP-GONE",
            f"run {run.name} has appended to another table than the present one at {plan.target}",
            LOOK,
            run=run.name,
            target=plan.target,
        )
