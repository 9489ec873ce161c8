"""Operations on replays: carry out, publish after a wait, roll back, unlock.

A replay is carried out in five steps. Each ends with what the next one needs, and after a kill the
same command goes on from what the tables tell.

1. Plan: find the tables, pin a cut of each stream, and resolve the range and the computation.
2. Verify: the recordings are sound up to the cut, and the range is complete.
3. Recover: record what earlier runs published without telling, and stop if one of them stands.
4. Lock: claim the workers and times of the target, and fence all who may still write there.
5. Stage, audit, publish: in one commit, with a certificate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from capstan.core.config import ProjectConfig
from capstan.errors import FencedError, InvalidRequestError
from capstan.replay.execution import recovery
from capstan.replay.execution.approval import Decision, require_unmoved, require_waiting
from capstan.replay.execution.attempt import carry_out, publish_staged, take_turn
from capstan.replay.execution.job import Job, located, require_intent, restore
from capstan.replay.execution.rollback import roll_back
from capstan.replay.planning.intent import Intent
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import continues, nothing_new, plan_with_spark
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.target.already_published import find_equivalent_run
from capstan.replay.target.conflicts import require_same_table
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.staged_output import require_staged_files
from capstan.spark.safe_commits import require_safe_commits
from capstan.spark.session import Later
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.runs import History, Row, Step
from capstan.storage.stored_log import remembering
from capstan.telemetry.instrumentation import emit
from capstan.verify import verify


@remembering()
def replay(
    session: SparkSession | Later, lake: Lake, config: ProjectConfig, request: Request
) -> ReplayResult:
    """Carry out a replay. Repeating a request changes nothing while its result is published.

    A request over a range that was complete is the same at any later cut, since no record can have
    been added to it.

    Args:
        session: The session; or one that starts once nothing is left to refuse without it.

    Raises:
        InvalidRequestError: The request is invalid; see `make_plan`, `require_own_rows`. `CAP-LAKE`
            for a target on which two concurrent commits would both win.
        CheckFailedError: `CAP-VIOLATION` when the recording is not sound; `CAP-AUDIT` when the
            output is not what the tape determines. Nothing is published.
        OperatorFailed: An operator of a pipeline raised. Nothing is published.
        IncompleteError: `CAP-INCOMPLETE`.
        InvalidRequestError: `CAP-RETIRED` when records that it needs were deleted; `CAP-APPEND`
            when it would put rows into the target twice.
        RangeLockedError: `CAP-HELD` when another run holds an overlapping range.
        FencedError: `CAP-FENCED` when a later attempt of the run has taken over, or its claim was
            unlocked, or expired and another run has claimed the range.
    """
    started = time.monotonic()
    spark, plan = plan_with_spark(session, lake, config, request)
    require_safe_commits(spark, plan.target)
    if plan.request.follow is not None:
        return _follow(spark, config, plan, started)
    return _replay_once(spark, config, plan, started)


def _replay_once(
    spark: SparkSession, config: ProjectConfig, plan: Plan, started: float
) -> ReplayResult:
    """Carry out a replay of a range, unless a run that stands has published the same."""
    lake = plan.lake
    verify_inputs(spark, plan)
    plan.require_complete()
    last = recovery.recover_ledger(
        spark, lake, config, runs.read_last(lake, plan.identity, plan.target)
    )
    recovery.complete_others(spark, lake, config, plan)
    job, owner = _next_run(spark, plan, last, started), Ownership(plan)
    equivalent = last
    if last is None or not last.published:
        equivalent = find_equivalent_run(owner)
    if equivalent is not None and recovery.is_still_published(job, owner, equivalent):
        return ReplayResult(equivalent.certificate, unchanged=True)
    require_same_table(owner, equivalent)
    plan.require_records()
    return carry_out(job)


def _follow(spark: SparkSession, config: ProjectConfig, plan: Plan, started: float) -> ReplayResult:
    """Carry out what has become complete since the last run of a followed replay."""
    lake = plan.lake
    last = recovery.recover_ledger(
        spark, lake, config, runs.read_last(lake, plan.identity, plan.target)
    )
    previous = runs.read_last_published(lake, plan.identity, plan.target)
    if not continues(plan, previous):
        # A run was recovered, or has ended while Spark started.
        _, plan = plan_with_spark(spark, lake, config, plan.request)
    verify_inputs(spark, plan)
    recovery.complete_others(spark, lake, config, plan)
    owner = Ownership(plan)
    _require_target(owner, previous)
    _require_tapes(plan, previous)
    _report_changes(owner, previous)
    if nothing_new(plan):
        return ReplayResult(None if last is None else last.certificate, unchanged=True)
    require_same_table(owner, last if last is not None and last.published else None)
    plan.require_records()
    return carry_out(_next_run(spark, plan, last, started))


def verify_inputs(spark: SparkSession, plan: Plan) -> None:
    """Check the recordings of the chosen workers."""
    for stream in plan.inputs:
        chosen = tuple(stream.workers)
        verification = verify(spark, plan.lake, stream.tape, workers=chosen, cut=stream.cut)
        verification.raise_for_violations()
    workers = sum(len(stream.workers) for stream in plan.inputs)
    emit("replay.verify", stream=plan.request.stream, workers=workers)


def _next_run(spark: SparkSession, plan: Plan, last: History | None, started: float) -> Job:
    """The run of a plan: that of its identity, or after one that has ended a new generation."""
    generation = 1
    if last is not None:
        generation = last.last.generation + (last.published or last.rolled_back)
    run = runs.name_run(plan.lake, plan.identity, generation, plan.target)
    return Job(spark, plan.lake, plan, run, started)


def _require_target(owner: Ownership, last: History | None) -> None:
    """Check that the target still is the table into which a followed replay has published."""
    plan = owner.plan
    if plan.cursor is None or last is None or owner.has_published(last.run_id):
        return
    raise InvalidRequestError(
        "CAP-FOLLOW",
        f"the table into which {plan.request.follow} has published is no longer at {plan.target}",
        "put the table back; or follow under another name, which replays the whole range",
        follow=plan.request.follow,
        target=plan.target,
    )


def _require_tapes(plan: Plan, last: History | None) -> None:
    """Check that a followed replay still reads the tapes of which its cursor tells."""
    row = None if last is None else last.effective_intent
    if row is None:
        return
    before = Intent.from_json(row.detail).tapes
    for stream, known in zip(plan.inputs, before, strict=False):
        if stream.tape.identity != known:
            raise InvalidRequestError(
                "CAP-FOLLOW",
                f"stream {stream.tape.name} was recorded anew since {plan.request.follow} has "
                "followed it, so its cursor and its state are those of other records",
                "follow under another name, which replays the whole range",
                follow=plan.request.follow,
                stream=stream.tape.name,
            )


def _report_changes(owner: Ownership, last: History | None) -> None:
    """Report changes by others to the target's rows since the last run of a followed replay."""
    if last is None or last.done is None:
        return
    for change in owner.changes(owner.covered, last.done.target_version):
        emit("replay.changed", into=owner.plan.request.into, change=str(change))


@remembering()
def publish(
    spark: SparkSession,
    lake: Lake,
    config: ProjectConfig,
    run: str,
    decision: Decision | None = None,
) -> ReplayResult:
    """Publish a run that waits after its audit, or finish one that was cut off.

    A run that waits for an approval is published only with one.

    Raises:
        InvalidRequestError: `CAP-RUN` for an unknown run; `CAP-NOT-AUDITED` for a run that is not
            ready; `CAP-DECISION` without an approval; `CAP-LATER` when others have published into
            its range since its audit; `CAP-LAKE` for a target on which two concurrent commits would
            both win.
        CheckFailedError: `CAP-REJECTED` for a rejected run.
        RangeLockedError: `CAP-HELD` when its claim has expired, and another run holds its range.
        FencedError: `CAP-FENCED` when its claim ends while it publishes.
    """
    history = located(spark, lake, config, run)
    require_safe_commits(spark, history.last.target)
    was_published = history.published
    history = recovery.recover_ledger(spark, lake, config, history) or history
    if history.published:
        return ReplayResult(history.certificate, unchanged=was_published)
    audited = require_waiting(history)
    job = restore(spark, lake, config, history).at(audited.attempt)
    require_unmoved(job, history)
    _require_decision(job, history, decision)
    active = claims.active(lake, job.plan.target)
    if any((claim.run, claim.attempt) == (run, audited.attempt) for claim in active):
        try:
            return _publish_waiting(job, history, decision, audited)
        except FencedError:
            claims.release_if_active(lake, run, audited.attempt)
            raise
    # Its claim has expired while it waited, so another attempt claims for it.
    job = replace(job, played=audited.attempt).claimed()
    emit("publish.claim", run=run, attempt=job.attempt)
    try:
        published = take_turn(job)
        if published is not None:
            return ReplayResult(published)
        history = runs.read_history(lake, run)
        require_waiting(history)
        require_unmoved(job, history)
        return _publish_waiting(job, history, decision, audited)
    except BaseException:
        # The run keeps waiting, without a claim.
        claims.release(lake, run, job.attempt)
        raise


def _publish_waiting(
    job: Job, history: History, decision: Decision | None, audited: Row
) -> ReplayResult:
    """Record the approval, then publish the staged and audited rows."""
    if decision is not None and history.approval(job.source) is None:
        job.at(job.source).write(Step.APPROVED, decision.to_json())
        emit("replay.approved", run=job.run.name)
    # Not as recorded: the lake may have moved since.
    staging, audit = job.lake.staging(job.name), audited.detail["audit"]
    assert isinstance(audit, Mapping)
    require_staged_files(job.plan, staging)
    staged = delta.load(job.spark, staging)
    draft = (history.intent(job.source) or require_intent(history)).certificate
    return ReplayResult(publish_staged(job, staged, staging, audit, draft))


def _require_decision(job: Job, history: History, decision: Decision | None) -> None:
    """Check that a run that waits for approval has been approved."""
    if job.plan.request.approve and decision is None and history.approval(job.source) is None:
        raise InvalidRequestError(
            "CAP-DECISION",
            f"run {job.run.name} waits for a person's approval",
            "approve it in Airflow, or with `capstan publish`",
            run=job.run.name,
        )


@remembering()
def rollback(spark: SparkSession, lake: Lake, config: ProjectConfig, run: str) -> int:
    """Roll back a published run; a second rollback changes nothing.

    Returns:
        The version of the target that has the previous rows.

    Raises:
        InvalidRequestError: `CAP-RUN`, `CAP-LAKE`, `CAP-NOT-PUBLISHED`, `CAP-LATER`, `CAP-GONE`.
        RangeLockedError: `CAP-HELD` when another run holds part of the range.
    """
    history = located(spark, lake, config, run)
    require_safe_commits(spark, history.last.target)
    history = recovery.recover_ledger(spark, lake, config, history, undo=True) or history
    for row in history.rows:
        if row.step is Step.ROLLED_BACK:
            return row.target_version
    return roll_back(restore(spark, lake, config, history, undo=True), history)


def unlock(lake: Lake, run: str) -> int:
    """Release the lock of a run, whose attempt is declared dead.

    Returns:
        The attempt that was unlocked; 0 when it held no lock.

    Raises:
        InvalidRequestError: `CAP-RUN` for an unknown run.
    """
    held = [claim for claim in claims.active(lake) if claim.run == run]
    if not held:
        runs.read_history(lake, run)
        return 0
    claims.release(lake, run, held[-1].attempt)
    return held[-1].attempt
