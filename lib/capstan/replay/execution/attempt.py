"""One attempt of a run: it locks its range, fences others, stages, audits and publishes.

Every write is a named point (`capstan.telemetry.instrumentation`). After a kill between any two of
them, the same command finishes the work: the target's own transactions tell what was published, not
the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from capstan.errors import FencedError, InvalidRequestError, translation
from capstan.pipeline import NodeKind
from capstan.pipeline.spark.stage_frames import PipelineRun
from capstan.replay.execution import recovery
from capstan.replay.execution.change_merge import publish_changes
from capstan.replay.execution.fencing import fence_stale_attempts
from capstan.replay.execution.job import Job
from capstan.replay.execution.recording import RunPublish, record_publishes
from capstan.replay.order.order_dependence import require_comparable
from capstan.replay.output.certificate import draft_certificate
from capstan.replay.output.change_rows import require_rule_fits, require_sequence, table_schema
from capstan.replay.output.latest_rows import require_latest, rows_to_publish
from capstan.replay.output.row_times import require_own_times, require_times_of_rows
from capstan.replay.output.rows import Output, expected_rows, playing
from capstan.replay.output.state_resume import keep_state, snapshot_of_run
from capstan.replay.planning.pipeline_computation import PipelineComputation
from capstan.replay.planning.planner import require_cursor
from capstan.replay.planning.stream_input import total_content
from capstan.replay.publish.audit_findings import record_findings
from capstan.replay.publish.change_merges import images_after
from capstan.replay.publish.diff import difference
from capstan.replay.result import ReplayResult
from capstan.replay.target import staged_output, target_table
from capstan.replay.target.conflicts import require_no_clash
from capstan.replay.target.foreign_rows import (
    require_columns_kept,
    require_own_rows,
    require_restorable,
)
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.target_creation import create_or_check
from capstan.spark.own_session import interpreting
from capstan.storage.delta.staged_rows import count_staged
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.runs import Step
from capstan.storage.ledger.side_outputs import write_metrics, write_side_outputs
from capstan.storage.tape.index import ContentSummary
from capstan.telemetry.instrumentation import emit


def carry_out(job: Job) -> ReplayResult:
    """Carry out a run that has not published: lock, compute, stage, audit, publish."""
    expected = _before_lock(job)
    if isinstance(expected, ReplayResult):
        return expected
    job = job.claimed()
    emit("replay.claim", run=job.run.name, attempt=job.attempt)
    try:
        return _attempt(job, expected)
    except (FencedError, KeyboardInterrupt):
        # Not recorded as its end: a later attempt may be at work or waiting. After an interrupt,
        # Spark may still commit something, so the next attempt fences this one.
        claims.release_if_active(job.lake, job.run.name, job.attempt)
        raise
    except Exception as error:
        # Recorded before the process ends, so that the claim does not outlive the attempt.
        failure = job.plan.computation.failure(error, job.plan.inputs.tape.name)
        coded = translation.to_capstan_error(failure or error, runs.AGAIN)
        job.write(Step.FAILED, coded.to_json())
        if failure is not None:
            raise failure from error
        raise


def _before_lock(job: Job) -> DataFrame | ReplayResult:
    """A frame with the columns of the rows; or the result of a run that has nothing to do."""
    # What is known here of the target is outdated under the lock, and let go.
    owner = Ownership(job.plan)
    expected = require_publishable(job.spark, owner, [job.run.name])
    try:
        require_columns_kept(job.spark, owner, expected.schema)
    except InvalidRequestError:
        whole = recovery.compared_run(job, owner, expected.columns)
        if whole is None:
            raise
        return ReplayResult(whole.certificate, unchanged=True)
    return expected


def require_publishable(spark: SparkSession, owner: Ownership, names: Collection[str]) -> DataFrame:
    """Check before a lock is taken that a plan's rows can be published, by these runs.

    Returns a frame with the columns of the rows: the rows themselves, unless a pipeline makes them.
    """
    plan = owner.plan
    require_no_clash(owner, names)
    require_own_rows(spark, owner)
    expected = expected_rows(spark, plan)
    require_comparable(plan, expected)
    if plan.change_rule is not None:
        require_rule_fits(plan.change_rule, expected)
    require_own_times(spark, plan)
    require_times_of_rows(spark, plan)
    return expected


def open_target(
    spark: SparkSession, owner: Ownership, expected: DataFrame, names: Collection[str]
) -> None:
    """Check again what may have changed before the lock was taken, and create the target."""
    # Under the claim, no records are retired, and no others publish.
    plan = owner.plan
    plan.require_records()
    require_no_clash(owner, names)
    target_table.require_checks(plan, expected)
    require_columns_kept(spark, owner, expected.schema)
    # Fencing needs a table, and an earlier attempt may have ended before it created one.
    schema = table_schema(plan.change_rule, expected.schema)
    create_or_check(spark, plan, schema)
    for run in names:
        emit("replay.target", run=run)


def _attempt(job: Job, expected: DataFrame) -> ReplayResult:
    plan = job.plan
    open_target(job.spark, Ownership(plan), expected, [job.run.name])
    published = take_turn(job)
    if published is not None:
        return ReplayResult(published)
    require_restorable(job.spark, plan)
    if plan.request.follow is not None:
        # First, so that a fenced attempt reports that, and not the progress of its successor.
        job.ensure_lock()
        require_cursor(plan, runs.read_last_published(job.lake, job.run.identity, plan.target))
    contents = [stream.content(plan.reads) for stream in plan.inputs]
    with (
        interpreting(job.spark, total_content(contents).records),
        playing(job.spark, plan, expected) as output,
    ):
        return _write_output(job, output, contents)


def take_turn(job: Job) -> Certificate | None:
    """Fence all earlier claims on the range that an attempt has just claimed.

    Returns the certificate, if an earlier attempt of the run has published.
    """
    path, published = job.plan.target, None
    if job.attempt > 1:
        # The earlier claims may be of another identity, whose run has just begun.
        runs.require_unique_name(job.lake, job.run)
        target_table.fence(job.spark, path, job.run, job.attempt, job.run.name)
        emit("replay.fence", run=job.run.name, attempt=job.attempt)
        history = runs.read_histories(job.lake, run=job.run.name).get(job.run.name)
        commit = None if history is None else target_table.find_landed(history)
        if commit is not None:
            published = recovery.complete(job, commit)
    if published is None:
        fence_stale_attempts(job)
    else:
        # Another attempt may have recorded the publish, which would have ended this claim.
        claims.release_if_active(job.lake, job.run.name, job.attempt)
    return published


def _write_output(job: Job, output: Output, contents: Sequence[ContentSummary]) -> ReplayResult:
    """Write the intent, then stage, audit and publish the output."""
    plan = job.plan
    counters = output.counted
    snapshot = None
    if output.sink is not None and output.state is not None:
        snapshot = snapshot_of_run(job.name, output.sink, plan.peers, output.state)
        counters = {**(counters or {}), "state": snapshot.to_json()}
    draft = draft_certificate(plan, contents, counters)
    job.ensure_lock()
    job.write(Step.INTENT, job.intent(draft, output.rows.columns).to_json())
    emit("replay.intent", run=job.run.name, records=draft.records)
    if output.sink is not None and output.played is not None:
        _record_side_outputs(job, output.sink, output.played)
    if snapshot is not None and output.state is not None:
        keep_state(job.spark, job.lake, snapshot, output.state)
    staging = job.lake.staging(job.name)
    staged, audit = _stage(job, output.rows, staging)
    if plan.request.held:
        return _hold(job, staged, staging, audit, draft)
    return ReplayResult(publish_staged(job, staged, staging, audit, draft))


def _record_side_outputs(job: Job, computation: PipelineComputation, played: PipelineRun) -> None:
    """Write the side outputs of a run, if it has any, and the counters of its nodes."""
    # Both name run and attempt. After a kill, the next attempt writes the rows again under its own
    # number, and the certificate names the attempt that has published.
    pipeline, sink = computation.pipeline, computation.sink.node
    nodes = pipeline.plan([sink]).dag.nodes
    # The changes of a view are not counted, so they are written even when no other row is.
    if played.put_aside or any(node.kind is NodeKind.VIEW for node in nodes):
        about = {"stream": job.plan.request.stream, "target": job.plan.target, "sink": sink}
        write_side_outputs(
            job.spark, job.lake, pipeline.name, job.run, job.attempt, played.aside, about
        )
        emit("replay.aside", run=job.run.name, rows=sum(played.put_aside.values()))
    metrics = [node.to_json() for node in played.nodes]
    write_metrics(job.lake, job.run, job.attempt, pipeline.name, metrics)
    emit("replay.metrics", run=job.run.name, nodes=len(metrics))


def _hold(
    job: Job, staged: DataFrame, staging: str, audit: dict[str, object], draft: Certificate
) -> ReplayResult:
    """Leave a run as audited; for an approval, record what publishing would change."""
    detail: dict[str, Any] = {"audit": audit, "staging": staging}
    if job.plan.request.approve:
        changes = difference(job.spark, job.plan, staged)
        detail["diff"] = changes.to_json(job.plan.inputs.tape.time_type)
    job.write(Step.AUDITED, detail)
    emit("replay.audited", run=job.run.name)
    certificate = replace(
        draft, run=job.run.name, attempt=job.attempt, generation=job.run.generation, **detail
    )
    return ReplayResult(certificate)


def _stage(job: Job, rows: DataFrame, staging: str) -> tuple[DataFrame, dict[str, object]]:
    rule = job.plan.change_rule
    staged = staged_output.stage(job.plan, rows_to_publish(job.plan, rows), staging)
    emit("replay.staging", run=job.run.name)
    # Made anew: the claim is for the range, and others may have published rows with these keys.
    owner = Ownership(job.plan)
    if rule is not None:
        require_sequence(rule, staged)
        if rule.unchanged is not None:
            # Refuses rows that lack a value.
            images_after(job.spark, owner, rule, staged)
    require_latest(job.plan, staged)
    target_table.require_inside(job.plan, staged)
    require_own_rows(job.spark, owner, staged)
    audit = target_table.audit(job.spark, job.plan, staged)
    emit("replay.audit", run=job.run.name, passed=audit.passed, cells=audit.cells)
    record_findings(job.plan, audit, job.run.name, job.attempt)
    audit.require_passed(f"run {job.run.name}, staged at {staging}", staged=True)
    return staged, audit.to_json(job.plan.inputs.tape.time_type)


def publish_staged(
    job: Job, staged: DataFrame, staging: str, audit: Mapping[str, object], draft: Certificate
) -> Certificate:
    """Publish staged and audited rows under the attempt's claim, and delete their folder."""
    job.ensure_lock()
    [published] = record_publishes([commit_staged(job, staged, staging, audit, draft)])
    return published


def commit_staged(
    job: Job, staged: DataFrame, staging: str, audit: Mapping[str, object], draft: Certificate
) -> RunPublish:
    """Publish staged and audited rows, under a claim that was just seen to hold."""
    note: dict[str, object] = {"audit": audit}
    if job.source != job.attempt:
        note["played"] = job.source
    emit("replay.holds", run=job.run.name)
    if job.plan.change_rule is not None:
        commit = publish_changes(job, staged, note)
    else:
        commit = staged_output.publish(job.plan, job.run, job.attempt, staged, staging, note)
    emit("replay.publish", run=job.run.name, version=commit.version)
    staged_output.require_all_rows(job.plan, commit, count_staged(staging))
    return RunPublish(job, draft, commit.version, audit)
