"""Detection of output that is already published: by the same request at an earlier cut."""

from __future__ import annotations

from collections.abc import Mapping

from capstan.errors import InvalidRequestError
from capstan.replay.planning.intent import Intent
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import at_cuts
from capstan.replay.target.ownership import Ownership
from capstan.storage.ledger import runs
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.runs import History


def find_equivalent_run(owner: Ownership) -> History | None:
    """The run of the same request at an earlier cut, if both are the same replay."""
    # When the range was complete then, no record can have been added since. The index confirms it:
    # the same messages, records and fingerprint, worker by worker.
    plan = owner.plan
    if plan.request.follow is not None or not _is_complete(plan):
        return None
    for covered in reversed(owner.covered):
        earlier = _earlier(owner, covered)
        if earlier is None:
            continue
        last = runs.read_last(plan.lake, earlier.identity, earlier.target)
        if last is not None and last.published and last.last.run == covered.run:
            then, now = ([each.content(at.reads) for each in at.inputs] for at in (earlier, plan))
            return last if then == now else None
    return None


def _earlier(owner: Ownership, covered: Covered) -> Plan | None:
    """The plan of the same request at the cut of a run; None when it cannot be the same replay."""
    plan, computation = owner.plan, owner.plan.computation
    recorded = (covered.stream, covered.transform, covered.code, covered.scope.workers)
    planned = (plan.request.stream, computation.name, computation.code, plan.scope.workers)
    if recorded != planned or (covered.cut >= plan.inputs.cut.commit and not plan.inputs.several):
        return None
    if covered.scope.region.simplified().box != plan.scope.region.simplified().box:
        return None
    cuts = _cuts(owner, covered)
    if cuts is None:
        return None
    try:
        earlier = at_cuts(plan, cuts)
    except InvalidRequestError:
        return None  # Some of its workers did not exist yet.
    then, now = ([each.workers for each in at.inputs] for at in (earlier, plan))
    same = then == now
    return earlier if same and _is_complete(earlier) else None


def _is_complete(plan: Plan) -> bool:
    """Whether no row of the requested range can change any more."""
    return plan.computation.is_complete(plan.box, plan.frontier)


def _cuts(owner: Ownership, covered: Covered) -> Mapping[str, int] | None:
    """The cuts of a run, if none of them is later than those of the plan; else None."""
    planned, cuts = owner.plan.inputs.cuts, {"": covered.cut}
    if owner.plan.inputs.several:
        history = owner.histories.get(covered.run)
        row = None if history is None else history.effective_intent
        cuts = {} if row is None else dict(Intent.from_json(row.detail).cuts)
    if set(cuts) != set(planned) or any(cuts[source] > planned[source] for source in cuts):
        return None
    return cuts
