"""What can be done with replays: carried out, published after a wait, taken back, unlocked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from capstan.core.config import ProjectConfig
from capstan.errors import FencedError, InvalidRequestError
from capstan.instrumentation import emit
from capstan.replay.execution import recovery
from capstan.replay.execution.approval import Decision, require_unmoved, require_waiting
from capstan.replay.execution.attempt import ReplayResult, carry_out, publish_staged, take_turn
from capstan.replay.execution.job import Job, draft_of, require_intent, restore
from capstan.replay.execution.rollback import roll_back
from capstan.replay.output import target_table
from capstan.replay.output.already_published import find_equivalent_run, require_same_table
from capstan.replay.output.foreign_changes import changes_since
from capstan.replay.planning.cursor import Cursor, find_cursor, follow_identity
from capstan.replay.planning.cursor_checks import nothing_new
from capstan.replay.planning.plan import Plan, make_plan, target_path
from capstan.replay.planning.request import Request
from capstan.spark.session import require_one_winner
from capstan.storage import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, coverage, runs
from capstan.storage.ledger.runs import History, Step
from capstan.storage.tape import index
from capstan.storage.tape.index import WorkerState
from capstan.storage.tape.tape import open_tape
from capstan.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ReplayResult", "publish", "replay", "rollback", "unlock"]


def replay(
    spark: SparkSession, lake: Lake, declarations: ProjectConfig, request: Request
) -> ReplayResult:
    """Carry out a replay; the same request again changes nothing while its result stands.

    Of a range that was complete it is the same at any later cut: nothing can have come to it.

    Raises:
        InvalidRequestError: The request cannot be meant as it stands; see `make_plan`,
            `require_own_rows`; `CAP-LAKE` for a target where two that commit at once would both
            win.
        CheckFailedError: `CAP-VIOLATION` when the recording is not sound, `CAP-AUDIT` when what was
            stored is not what the tape promises; nothing is published.
        OperatorFailed: An operator of a pipeline raised; nothing is published.
        IncompleteError: `CAP-INCOMPLETE`.
        InvalidRequestError: `CAP-RETIRED` when records that it needs were deleted; `CAP-APPEND`
            when it would put rows into the target twice.
        RangeLockedError: `CAP-HELD` when another run holds an overlapping range.
        FencedError: `CAP-FENCED` when a later attempt of the same run has taken over, its claim was
            unlocked, or another run has claimed after it ran out.
    """
    started = time.monotonic()
    cursor: Cursor | None = None
    stands: History | None = None
    if request.follow is not None:
        path = target_path(lake, declarations, request.into)[0]
        identity = follow_identity(request, path)
        recovery.recover_ledger(spark, lake, declarations, runs.read_last(lake, identity))
        stands = runs.read_last_published(lake, identity)
        cursor = find_cursor(lake, request, stands)
    plan = _pinned(spark, lake, declarations, request, cursor)
    plan.require_complete()
    identity = plan.identity
    last = recovery.recover_ledger(spark, lake, declarations, runs.read_last(lake, identity))
    recovery.complete_others(spark, lake, declarations, plan)
    generation = 1 if last is None else last.last.generation
    run = runs.name_run(lake, identity, generation, plan.target)
    job = Job(spark, lake, plan, run, started)
    if request.follow is not None:
        _require_target(plan, stands)
        _tell_changes(plan, stands)
    if request.follow is not None and nothing_new(plan):
        found = last.certificate if last is not None else None
        return ReplayResult(found or {}, stood=True)
    before = (
        last
        if last is not None and last.published
        else find_equivalent_run(lake, declarations, plan)
    )
    if request.follow is None and before is not None and recovery.is_still_published(job, before):
        return ReplayResult(before.certificate or {}, stood=True)
    require_same_table(lake, plan, before)
    if last is not None and (last.published or last.rolled_back):
        job = replace(job, run=replace(run, generation=run.generation + 1))
    plan.require_records()
    return carry_out(job)


def _require_target(plan: Plan, last: History | None) -> None:
    """Check that what a followed replay goes on from is still in its target.

    Raises:
        InvalidRequestError: `CAP-FOLLOW` when the table is gone, or was made anew.
    """
    if plan.cursor is None or last is None or target_table.has_published(plan.target, last.run_id):
        return
    raise InvalidRequestError(
        "CAP-FOLLOW",
        f"{plan.request.follow} has played into a table that is no longer at {plan.target}",
        "put the table back; or follow under another name, which plays all of it again",
        follow=plan.request.follow,
        target=plan.target,
    )


def _tell_changes(plan: Plan, last: History | None) -> None:
    """Tell what others have done to rows of the target since the last run of a followed replay."""
    if last is None or last.certificate is None:
        return
    version = int(str(last.certificate["target_version"]))
    for each in changes_since(plan, coverage.current(plan.lake, plan.target), version):
        emit("replay.changed", into=plan.request.into, change=str(each))


def _pinned(
    spark: SparkSession,
    lake: Lake,
    declarations: ProjectConfig,
    request: Request,
    cursor: Cursor | None,
) -> Plan:
    """The plan, over workers that have just been verified at a pinned cut."""
    tape = open_tape(lake, request.stream)
    cut = index.find_cut(tape, request.as_of)
    workers = index.resolve_workers(tape, cut, request.workers)
    # Whatever can be refused is refused before Spark works.
    asked = make_plan(lake, declarations, request, states=[], cut=cut)
    require_one_winner(spark, asked.target)
    verification = verify(spark, lake, tape, workers=tuple(workers), cut=cut)
    verification.require_valid(tape)
    emit("replay.verify", stream=tape.name, workers=len(workers))
    states = [
        WorkerState(v.worker, v.label, v.events, v.records, tuple(v.holdings))
        for v in verification.workers
    ]
    return make_plan(lake, declarations, request, states=states, cut=cut, cursor=cursor)


def publish(
    spark: SparkSession,
    lake: Lake,
    declarations: ProjectConfig,
    run: str,
    decision: Decision | None = None,
) -> ReplayResult:
    """Publish a run that was held back after its audit, or finish one that was cut off.

    Args:
        spark: The session.
        lake: The lake.
        declarations: What is declared.
        run: The run.
        decision: Who has approved it. One that waits for approval is published with it alone.

    Raises:
        InvalidRequestError: `CAP-RUN` for an unknown run, `CAP-NOT-AUDITED` for one that is not
            ready, `CAP-DECISION` for one that nobody has approved, `CAP-LATER` when others have
            published into its range since its audit, `CAP-LAKE` where two that commit would both
            win.
        CheckFailedError: `CAP-REJECTED` for one that was rejected.
        RangeLockedError: `CAP-HELD` when its claim has died while it waited, and another run holds
            its range.
        FencedError: `CAP-FENCED` when its claim is ended while it publishes.
    """
    history = runs.read_history(lake, run)
    require_one_winner(spark, history.last.target)
    before = history.published
    history = recovery.recover_ledger(spark, lake, declarations, history) or history
    if history.published:
        return ReplayResult(history.certificate or {}, stood=before)
    require_waiting(history)
    waiting = recovery.audited(history)
    assert waiting is not None
    attempt, staging, audit = waiting
    job = restore(spark, lake, declarations, history).at(attempt)
    require_unmoved(job, history)
    _require_decision(job, history, decision)
    holding = claims.active(lake, job.plan.target)
    if any((each.run, each.attempt) == (run, attempt) for each in holding):
        try:
            return _publish_waiting(job, history, decision, staging, audit)
        except FencedError:
            claims.release_if_active(lake, run, attempt)
            raise
    # Its claim has died while it waited: another attempt claims for it.
    job = replace(job, played=attempt).claimed()
    emit("publish.claim", run=run, attempt=job.attempt)
    try:
        done = take_turn(job)
        if done is not None:
            return ReplayResult(done)
        history = runs.read_history(lake, run)
        require_waiting(history)
        require_unmoved(job, history)
        return _publish_waiting(job, history, decision, staging, audit)
    except BaseException:
        # It waits on, and holds nothing.
        claims.release(lake, run, job.attempt)
        raise


def _publish_waiting(
    job: Job,
    history: History,
    decision: Decision | None,
    staging: str,
    audit: Mapping[str, object],
) -> ReplayResult:
    """Publish what was staged and audited, once it is written down who has approved it."""
    if decision is not None and history.approval(job.source) is None:
        job.at(job.source).write(Step.APPROVED, decision.to_json())
        emit("replay.approved", run=job.run.name)
    staged = delta.load(job.spark, staging)
    draft = draft_of(history.intent(job.source) or require_intent(history))
    return ReplayResult(publish_staged(job, staged, staging, audit, draft))


def _require_decision(job: Job, history: History, decision: Decision | None) -> None:
    """Check that somebody has approved what waits for approval."""
    if job.plan.request.approve and decision is None and history.approval(job.source) is None:
        raise InvalidRequestError(
            "CAP-DECISION",
            f"run {job.run.name} waits for a person's approval",
            "approve it in Airflow, or with `capstan publish`",
            run=job.run.name,
        )


def rollback(spark: SparkSession, lake: Lake, declarations: ProjectConfig, run: str) -> int:
    """Take back what a run published; a run that was taken back already stays so.

    Returns:
        The version of the target that has the rows of before.

    Raises:
        InvalidRequestError: `CAP-RUN`, `CAP-LAKE`, `CAP-NOT-PUBLISHED`, `CAP-LATER`, `CAP-GONE`.
        RangeLockedError: `CAP-HELD` when another run holds part of the range.
    """
    history = runs.read_history(lake, run)
    require_one_winner(spark, history.last.target)
    history = recovery.recover_ledger(spark, lake, declarations, history, undo=True) or history
    for row in history.rows:
        if row.step is Step.ROLLED_BACK:
            return int(str(row.detail["target_version"]))
    return roll_back(restore(spark, lake, declarations, history, undo=True), history)


def unlock(lake: Lake, run: str) -> int:
    """Declare a run's attempt dead, so that its claim holds nothing any more.

    Returns:
        The attempt that was unlocked; 0 when it held nothing.

    Raises:
        InvalidRequestError: `CAP-RUN` when there is no such run.
    """
    held = [claim for claim in claims.active(lake) if claim.run == run]
    if not held:
        runs.read_history(lake, run)
        return 0
    claims.release(lake, run, held[-1].attempt)
    return held[-1].attempt
