"""The job `rollback`: checks without Spark, and the rollback itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from capstan.api.context import Context
from capstan.errors import InvalidRequestError
from capstan.jobs.job_types import JobResult
from capstan.replay.execution.job import require_intent
from capstan.replay.result import RollbackResult
from capstan.replay.target import target_table
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage
from capstan.storage.ledger.runs import History, Step, read_history


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """The request of `rollback`: the run to roll back."""

    run: str


def require_reversible(lake: Lake, run: str) -> History:
    """Check without a JVM that a run can be rolled back, or already was.

    After an interrupted publish, only the target shows how far it got; the rollback itself
    completes the ledgers.
    """
    lake.require()
    history = read_history(lake, run)
    if history.rolled_back:
        return history
    unpublished = history.last.step in (
        Step.FAILED,
        Step.REJECTED,
        Step.AUDITED,
        Step.APPROVED,
    )
    unpublished = (
        unpublished and not history.published and target_table.find_landed(history) is None
    )
    if history.effective_intent is None or unpublished:
        raise InvalidRequestError(
            "CAP-NOT-PUBLISHED",
            f"run {run} has no published rows: its last step was {history.last.step}",
            "see `capstan runs`",
            run=run,
        )
    published = coverage.current(lake, history.last.target)
    for covered in (each for each in published if each.run == run):
        later = next((each for each in published if covered.is_overlaid_by(each)), None)
        if later is not None:
            raise InvalidRequestError(
                "CAP-LATER",
                f"run {later.run} overwrote part of what {run} published",
                f"roll back {later.run} first",
                run=run,
                later=later.run,
            )
    return history


def roll_back(context: Context, request: RollbackRequest) -> JobResult:
    """Roll a run back; the result is a `RollbackResult`."""
    repeated = read_history(context.lake, request.run).rolled_back
    version = context.rollback(request.run)
    history = read_history(context.lake, request.run)
    draft = require_intent(history).certificate
    result = RollbackResult(
        run=request.run,
        stream=draft.stream,
        target=draft.target,
        workers=draft.workers,
        since=draft.since,
        until=draft.until,
        target_path=history.last.target,
        target_version=version,
        unchanged=repeated,
    )
    return JobResult(asdict(result))
