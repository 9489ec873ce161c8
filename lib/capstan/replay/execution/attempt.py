"""One attempt of a run: it claims, shuts others out, plays, stages, audits and publishes.

Every write is a named point (`capstan.instrumentation`), and a kill between any two of them leaves
work that the same command finishes: the target's own transactions say what was published, never the
ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capstan import error_translation
from capstan.errors import FencedError
from capstan.instrumentation import emit
from capstan.replay.execution import recovery
from capstan.replay.execution.fencing import fence_stale_attempts
from capstan.replay.execution.job import Job
from capstan.replay.execution.side_outputs import keep_aside
from capstan.replay.output import certificate, target_table
from capstan.replay.output.audit_findings import note_findings
from capstan.replay.output.coarse_times import require_own_times
from capstan.replay.output.conflicting_rows import require_no_clash
from capstan.replay.output.diff import difference
from capstan.replay.output.foreign_columns import require_columns_kept
from capstan.replay.output.foreign_rows import require_own_keys, require_own_rows
from capstan.replay.output.order_dependence import require_comparable
from capstan.replay.output.record_times import require_times_of_rows
from capstan.replay.output.rows import (
    Output,
    expected_rows,
    failed_transform,
    playing,
    require_columns,
)
from capstan.replay.output.state_resume import keep_state, snapshot_of_run
from capstan.replay.planning.cursor_checks import require_cursor
from capstan.spark.session import interpreting
from capstan.storage.data_files import count_rows, read_all
from capstan.storage.delta import Commit
from capstan.storage.lake import delete_folder
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.runs import Step
from capstan.storage.tape import index
from capstan.storage.tape.index import ContentSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay came to.

    Attributes:
        certificate: The certificate; of a run that is held back, as far as it is known.
        stood: Whether nothing had to be done, because an earlier run stands.
    """

    certificate: Mapping[str, object]
    stood: bool = False

    def to_json(self) -> dict[str, object]:
        """The certificate with all the keys that others rely on, null where not known."""
        return {**dict.fromkeys(certificate.KEYS), **self.certificate, "stood": self.stood}


def carry_out(job: Job) -> ReplayResult:
    """Carry out a run that has not published: claim, play, stage, audit, publish.

    Raises:
        CapstanError: What `capstan.replay.run.replay` tells of.
    """
    require_own_rows(job.spark, job.plan)
    require_no_clash(job.lake, job.plan, [job.run.name])
    require_columns(job.spark, job.plan)
    require_comparable(job.spark, job.plan)
    require_own_times(job.spark, job.plan)
    require_times_of_rows(job.spark, job.plan)
    job = job.claimed()
    emit("replay.claim", run=job.run.name, attempt=job.attempt)
    try:
        return _attempt(job)
    except (FencedError, KeyboardInterrupt):
        # Not written down as its end: a later attempt may be at work, or wait; and of one that is
        # interrupted Spark may be about to commit something, so whoever comes next shuts it out.
        claims.release_if_active(job.lake, job.run.name, job.attempt)
        raise
    except Exception as error:
        # Said before it is over, so that the claim does not outlive the attempt.
        told = failed_transform(job.plan, error)
        job.write(
            Step.FAILED, error_translation.to_capstan_error(told or error, runs.AGAIN).to_json()
        )
        if told is not None:
            raise told from error
        raise


def _attempt(job: Job) -> ReplayResult:
    plan = job.plan
    # Again: from the claim on, nothing of the stream is retired, nor published by others.
    plan.require_records()
    require_no_clash(job.lake, plan, [job.run.name])
    expected = expected_rows(job.spark, plan)
    target_table.require_checks(plan, expected)
    require_columns_kept(job.spark, plan, expected.schema)
    # Before the fence, which needs a table: an earlier attempt may not have got so far.
    target_table.create_or_check(job.spark, plan, expected.schema)
    emit("replay.target", run=job.run.name)
    done = take_turn(job)
    if done is not None:
        return ReplayResult(done)
    if plan.request.follow is not None:
        # One that was taken over is told so, rather than how far its successor has got.
        job.hold()
        require_cursor(plan, runs.read_last_published(job.lake, job.run.identity))
    played = index.content_summary(plan.tape, plan.cut, tuple(plan.workers), plan.reads)
    with (
        interpreting(job.spark, played.records),
        playing(job.spark, plan, expected) as output,
    ):
        return _written(job, output, played)


def take_turn(job: Job) -> dict[str, object] | None:
    """Shut out who has claimed before an attempt, which has just claimed.

    Returns:
        The certificate, if an earlier attempt of the run has published: nothing is left to do.

    Raises:
        FencedError: `CAP-FENCED` when a later attempt has begun already, or another run of this
            name.
    """
    path, done = job.plan.target, None
    if job.attempt > 1:
        # Whoever has claimed before it may have been of another identity, and just have begun.
        runs.require_unique_name(job.lake, job.run)
        target_table.fence(job.spark, path, job.run, job.attempt, job.run.name)
        emit("replay.fence", run=job.run.name, attempt=job.attempt)
        history = runs.read_histories(job.lake, run=job.run.name).get(job.run.name)
        since = history.first_intent if history is not None else None
        if since is not None:
            version = int(str(since.detail["target_version"]))
            published = target_table.find_publish(path, job.run.name, version)
            if published is not None:
                done = recovery.complete(job, published[0].version, published[1])
    if done is None:
        fence_stale_attempts(job)
    else:
        # Another attempt may have said so before this one could end itself by it.
        claims.release_if_active(job.lake, job.run.name, job.attempt)
    return done


def _written(job: Job, output: Output, played: ContentSummary) -> ReplayResult:
    """What becomes of what was played: written down, staged, audited, published."""
    plan = job.plan
    counted = output.counted
    snapshot = None
    if plan.piped is not None and output.state is not None:
        snapshot = snapshot_of_run(job.name, plan.piped, plan.peers, output.state)
        counted = {**(counted or {}), "state": snapshot.to_json()}
    draft = certificate.draft(plan, played, counted)
    job.hold()
    job.write(Step.INTENT, job.intent(draft, output.rows.columns))
    emit("replay.intent", run=job.run.name, records=played.records)
    if plan.piped is not None and output.played is not None:
        keep_aside(job, plan.piped, output.played)
    if snapshot is not None and output.state is not None:
        keep_state(job.spark, job.lake, snapshot, output.state)
    if plan.request.direct:
        commit = _commit(job, output.rows, {"direct": True})
        return ReplayResult(recovery.audit_direct(job, commit.version, draft))
    staging = job.lake.staging(job.name)
    staged, audit = _stage(job, output.rows, staging)
    if plan.request.held:
        return _hold(job, staged, {"audit": audit, "staging": staging}, draft)
    return ReplayResult(publish_staged(job, staged, staging, audit, draft))


def _hold(
    job: Job, staged: DataFrame, waiting: dict[str, object], draft: Mapping[str, object]
) -> ReplayResult:
    """Leave a run as audited; who is to approve it is told what it would change."""
    plan = job.plan
    if plan.request.approve:
        found = difference(job.spark, plan, staged)
        waiting = {**waiting, "diff": found.to_json(plan.tape.time_type)}
    job.write(Step.AUDITED, waiting)
    emit("replay.audited", run=job.run.name)
    told = {"attempt": job.attempt, "generation": job.run.generation}
    return ReplayResult({"run": job.run.name, **draft, **told, **waiting})


def _stage(job: Job, rows: DataFrame, staging: str) -> tuple[DataFrame, dict[str, object]]:
    delete_folder(staging)
    # It is read as a whole, twice, and then deleted: nothing is looked up in it.
    plain = {"delta.dataSkippingNumIndexedCols": "0"}
    writer = rows.write.format("delta").mode("overwrite").options(**plain)
    worker = job.plan.layout.worker
    if worker in target_table.partitions(job.plan.target):
        # Or each of the tasks that publish would write a file for each worker.
        writer = writer.partitionBy(worker)
    writer.save(staging)
    emit("replay.staging", run=job.run.name)
    staged = read_all(job.spark, staging)
    target_table.require_inside(job.plan, staged)
    require_own_keys(job.plan, staged)
    audit = target_table.audit(job.spark, job.plan, staged)
    emit("replay.audit", run=job.run.name, passed=audit.passed, cells=audit.cells)
    note_findings(job.lake, job.plan, audit, run=job.run.name, attempt=job.attempt)
    audit.require_passed(f"run {job.run.name}, staged at {staging}")
    return staged, audit.to_json(job.plan.tape.time_type)


def publish_staged(
    job: Job,
    staged: DataFrame,
    staging: str,
    audit: Mapping[str, object],
    draft: Mapping[str, object],
) -> dict[str, object]:
    """Publish what was staged and audited, under the claim that the attempt holds.

    Args:
        job: The run, at the attempt that publishes.
        staged: The rows.
        staging: Where they are; it is deleted.
        audit: What the audit came to, for the certificate.
        draft: The certificate as far as it is known.

    Returns:
        The certificate.

    Raises:
        FencedError: `CAP-FENCED` when the claim is gone.
        RangeLockedError: `CAP-CONFLICT` when other writers won again and again.
    """
    commit = _commit(job, staged, {"audit": audit})
    target_table.require_all_rows(job.plan, commit, count_rows(staging))
    done = job.record(draft, commit.version, audit)
    delete_folder(staging)
    return done


def _commit(job: Job, rows: DataFrame, note: Mapping[str, object]) -> Commit:
    """Publish the rows under the claim that the attempt holds."""
    if job.source != job.attempt:
        note = {**note, "played": job.source}
    job.hold()
    emit("replay.holds", run=job.run.name)
    commit = target_table.publish(job.plan, job.run, job.attempt, rows, note)
    emit("replay.publish", run=job.run.name, version=commit.version)
    return commit
