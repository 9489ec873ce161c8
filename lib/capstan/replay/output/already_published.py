"""What of a replay stands in its target already: all of it, or rows that nobody can tell of."""

from __future__ import annotations

from capstan.core.config import Mode, ProjectConfig
from capstan.errors import InvalidRequestError
from capstan.replay.output import target_table
from capstan.replay.planning.plan import Plan, make_plan
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.runs import History
from capstan.storage.tape import index

LOOK = "the table was put in its place since: look whether its rows are there; if not, --adopt"
"""What helps where a table is another one than that which a run has written to."""


def find_equivalent_run(lake: Lake, declarations: ProjectConfig, plan: Plan) -> History | None:
    """The run of the same request at an earlier cut, if it is this very replay all the same.

    Its range was complete then, so nothing can have come to it since; that nothing has is told from
    the index: the same messages, records and fingerprint, worker by worker. A followed replay goes
    by its cursor, and has no such run.

    Args:
        lake: The lake.
        declarations: Those that `plan` was made with.
        plan: The replay.
    """
    if plan.request.follow is not None or not plan.completes(plan.box):
        return None
    for each in reversed(coverage.current(lake, plan.target)):
        earlier = _earlier(lake, declarations, plan, each)
        if earlier is None:
            continue
        last = runs.read_last(lake, earlier.identity)
        if last is not None and last.published and last.last.run == each.run:
            return last if _reads_the_same(plan, earlier) else None
    return None


def _earlier(lake: Lake, declarations: ProjectConfig, plan: Plan, covered: Covered) -> Plan | None:
    """The plan's request as it was at the cut of a run; None where that cannot be the same."""
    there = (covered.stream, covered.transform, covered.code, covered.scope.workers)
    own = (plan.tape.name, plan.name, plan.code, plan.scope.workers)
    if there != own or covered.cut >= plan.cut.commit:
        return None
    if covered.scope.region.simplified().box != plan.scope.region.simplified().box:
        return None
    cut = index.find_cut(plan.tape, covered.cut)
    try:
        earlier = make_plan(lake, declarations, plan.request, cut=cut)
    except InvalidRequestError:
        return None  # Of its workers some were not there yet.
    same = earlier.workers == plan.workers and earlier.completes(earlier.box)
    return earlier if same else None


def _reads_the_same(plan: Plan, earlier: Plan) -> bool:
    then, now = (
        index.content_summary(each.tape, each.cut, tuple(each.workers), each.reads)
        for each in (earlier, plan)
    )
    return then == now


def appended(history: History) -> bool:
    """Whether a run has put rows beside those that were there, and changed none."""
    return history.mode == Mode.APPEND


def require_same_table(lake: Lake, plan: Plan, before: History | None) -> None:
    """Check that rows which a run is said to have appended are in the table that it wrote to.

    Of another one in its place nobody can tell whether it has them, and they would come twice.

    Args:
        lake: The lake.
        plan: The replay, which does not stand.
        before: The run of the same request, if there is one.

    Raises:
        InvalidRequestError: `CAP-GONE`.
    """
    if before is None or plan.request.mode is not Mode.APPEND or plan.request.adopt:
        return
    run = before.run_id
    stands = any(each.run == run.name for each in coverage.current(lake, plan.target))
    if stands and not target_table.has_published(plan.target, run):
        raise InvalidRequestError(
            "CAP-GONE",
            f"run {run.name} has appended to another table than the one at {plan.target}",
            LOOK,
            run=run.name,
            target=plan.target,
        )
