"""A replay from request to certificate: verify, plan, claim, stage, audit, publish.

Every write is a named point (`capstan.steps`), and a kill between any two of them leaves work that
the same command finishes: the target's own transactions say what was published, never the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from capstan.declare import Declarations
from capstan.errors import BadRequest, CapstanError, Fenced
from capstan.ledger import claims, runs
from capstan.ledger.identity import RunId, short_name
from capstan.ledger.runs import History, Step
from capstan.replay import certificate, settle, target
from capstan.replay.approval import Decision, require_unmoved, require_waiting
from capstan.replay.aside import keep_aside
from capstan.replay.difference import difference
from capstan.replay.findings import note_findings
from capstan.replay.follow import Cursor, find_cursor, follow_identity, nothing_new, require_cursor
from capstan.replay.holding import shut_out
from capstan.replay.job import Job, draft_of, require_intent, restore
from capstan.replay.plan import Plan, make_plan, target_path
from capstan.replay.play import Output, expected_rows, playing, require_columns
from capstan.replay.request import Request
from capstan.replay.resuming import keep_state, snapshot_of_run
from capstan.replay.rollback import roll_back
from capstan.replay.standing import require_not_doubled, stood_before
from capstan.steps import reached
from capstan.tape import delta, summary
from capstan.tape.delta import Commit
from capstan.tape.lake import Lake, delete_folder
from capstan.tape.summary import WorkerState
from capstan.tape.tape import open_tape
from capstan.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay came to.

    Attributes:
        certificate: The certificate; of a run that is held back, as far as it is known.
        stood: Whether nothing had to be done, because an earlier run stands.
    """

    certificate: Mapping[str, object]
    stood: bool = False

    def as_json(self) -> dict[str, object]:
        """The certificate with all the keys that others rely on, null where not known."""
        return {**dict.fromkeys(certificate.KEYS), **self.certificate, "stood": self.stood}


def replay(
    spark: SparkSession, lake: Lake, declarations: Declarations, request: Request
) -> Outcome:
    """Carry out a replay; the same request again changes nothing while its result stands.

    Of a range that was complete it is the same at any later cut: nothing can have come to it.

    Raises:
        BadRequest: The request cannot be meant as it stands; see `make_plan`, `require_known`.
        AnswerIsNo: `CAP-VIOLATION` when the recording is not sound, `CAP-AUDIT` when what was
            stored is not what the tape promises; nothing is published.
        OperatorFailed: An operator of a pipeline raised; nothing is published.
        NotComplete: `CAP-INCOMPLETE`.
        BadRequest: `CAP-RETIRED` when records that it needs were deleted; `CAP-APPEND` when it
            would put rows into the target twice.
        Held: `CAP-HELD` when another run holds an overlapping range.
        Fenced: A later attempt of the same run has taken over.
    """
    started = time.monotonic()
    cursor: Cursor | None = None
    if request.follow is not None:
        path = target_path(lake, declarations, request.into)[0]
        identity = follow_identity(request, path)
        settle.complete_ledger(spark, lake, declarations, _last(lake, identity))
        histories = runs.read_histories(lake, identity=identity).values()
        cursor = find_cursor(lake, request, histories)
    plan = _pinned(spark, lake, declarations, request, cursor)
    plan.require_complete()
    identity = plan.identity
    last = settle.complete_ledger(spark, lake, declarations, _last(lake, identity))
    run = RunId(identity, 1 if last is None else last.last.generation, short_name(plan.target))
    job = Job(spark, lake, plan, run, started)
    if request.follow is not None and nothing_new(plan):
        found = last.certificate if last is not None else None
        return Outcome(found or {}, stood=True)
    before = last if last is not None and last.published else stood_before(lake, declarations, plan)
    if request.follow is None and before is not None and settle.stands(job, before):
        return Outcome(before.certificate or {}, stood=True)
    if last is not None and (last.published or last.rolled_back):
        job = replace(job, run=replace(run, generation=run.generation + 1))
    plan.require_kept()
    return _carry_out(job)


def _last(lake: Lake, identity: str) -> History | None:
    return runs.last_generation(runs.read_histories(lake, identity=identity).values())


def _pinned(
    spark: SparkSession,
    lake: Lake,
    declarations: Declarations,
    request: Request,
    cursor: Cursor | None,
) -> Plan:
    """The plan, over workers that have just been verified at a pinned cut."""
    tape = open_tape(lake, request.stream)
    cut = summary.find_cut(tape, request.as_of)
    workers = summary.resolve_workers(tape, cut, request.workers)
    # Whatever can be refused is refused before Spark works.
    make_plan(lake, declarations, request, states=[], cut=cut)
    verification = verify(spark, lake, tape, workers=tuple(workers), cut=cut)
    verification.require_valid(tape)
    reached("replay.verify", stream=tape.name, workers=len(workers))
    states = [
        WorkerState(v.worker, v.label, v.events, v.records, tuple(v.holdings))
        for v in verification.workers
    ]
    return make_plan(lake, declarations, request, states=states, cut=cut, cursor=cursor)


def _carry_out(job: Job) -> Outcome:
    target.require_known(job.spark, job.lake, job.plan)
    require_not_doubled(job.lake, job.plan, [job.run.name])
    require_columns(job.spark, job.plan)
    job = job.claimed()
    reached("replay.claim", run=job.run.name, attempt=job.attempt)
    try:
        return _attempt(job)
    except Fenced:
        raise
    except (Exception, KeyboardInterrupt) as error:
        # Said before it is over, so that the claim does not outlive the attempt.
        detail = error.as_json() if isinstance(error, CapstanError) else {"error": str(error)}
        job.write(Step.FAILED, detail)
        raise


def _attempt(job: Job) -> Outcome:
    plan = job.plan
    # Again: from the claim on, nothing of the stream is retired, nor published by others.
    plan.require_kept()
    require_not_doubled(job.lake, plan, [job.run.name])
    expected = expected_rows(job.spark, plan)
    target.require_checks(plan, expected)
    # Before the fence, which needs a table: an earlier attempt may not have got so far.
    target.ensure(job.spark, plan, expected.schema)
    reached("replay.target", run=job.run.name)
    done = _turn(job)
    if done is not None:
        return Outcome(done)
    if plan.request.follow is not None:
        chain = runs.read_histories(job.lake, identity=job.run.identity).values()
        require_cursor(plan, chain)
    with playing(job.spark, plan, expected) as output:
        return _written(job, output)


def _turn(job: Job) -> dict[str, object] | None:
    """Shut out who has claimed before; the certificate, if an earlier attempt has published."""
    path, done = job.plan.target, None
    if job.attempt > 1:
        target.fence(job.spark, path, job.run, job.attempt, job.run.name)
        reached("replay.fence", run=job.run.name, attempt=job.attempt)
        history = runs.read_histories(job.lake, run=job.run.name).get(job.run.name)
        since = history.first_intent if history is not None else None
        if since is not None:
            version = int(str(since.detail["target_version"]))
            published = target.find_publish(path, job.run.name, version)
            if published is not None:
                done = settle.complete(job, published[0].version, published[1])
    if done is None:
        shut_out(job)
    return done


def _written(job: Job, output: Output) -> Outcome:
    """What becomes of what was played: written down, staged, audited, published."""
    plan = job.plan
    played = summary.played(plan.tape, plan.cut, tuple(plan.workers), plan.reads)
    counted = output.counted
    snapshot = None
    if plan.piped is not None and output.state is not None:
        snapshot = snapshot_of_run(job.name, plan.piped, plan.peers, output.state)
        counted = {**(counted or {}), "state": snapshot.as_json()}
    draft = certificate.draft(plan, played, counted)
    job.hold()
    job.write(Step.INTENT, job.intent(draft))
    reached("replay.intent", run=job.run.name, records=played.records)
    if plan.piped is not None and output.played is not None:
        keep_aside(job, plan.piped, output.played)
    if snapshot is not None and output.state is not None:
        keep_state(job.spark, job.lake, snapshot, output.state)
    if plan.request.direct:
        commit = _commit(job, output.rows, {"direct": True})
        return Outcome(settle.audit_direct(job, commit.version, draft))
    staging = job.lake.staging(job.name)
    staged, audit = _stage(job, output.rows, staging)
    if plan.request.held:
        return _hold(job, staged, {"audit": audit, "staging": staging}, draft)
    return Outcome(_publish(job, staged, staging, audit, draft))


def _hold(
    job: Job, staged: DataFrame, waiting: dict[str, object], draft: Mapping[str, object]
) -> Outcome:
    """Leave a run as audited; who is to approve it is told what it would change."""
    plan = job.plan
    if plan.request.approve:
        found = difference(job.spark, plan, staged)
        waiting = {**waiting, "diff": found.as_json(plan.tape.time_type)}
    job.write(Step.AUDITED, waiting)
    reached("replay.audited", run=job.run.name)
    told = {"attempt": job.attempt, "generation": job.run.generation}
    return Outcome({"run": job.run.name, **draft, **told, **waiting})


def _stage(job: Job, rows: DataFrame, staging: str) -> tuple[DataFrame, dict[str, object]]:
    delete_folder(staging)
    writer = rows.write.format("delta").mode("overwrite")
    if job.plan.layout.worker:
        writer = writer.partitionBy(job.plan.layout.worker)
    writer.save(staging)
    reached("replay.staging", run=job.run.name)
    staged = delta.load(job.spark, staging)
    audit = target.audit(job.spark, job.plan, staged)
    reached("replay.audit", run=job.run.name, passed=audit.passed, cells=audit.cells)
    note_findings(job.spark, job.lake, job.plan, audit, run=job.run.name, attempt=job.attempt)
    audit.require_passed(f"run {job.run.name}, staged at {staging}")
    return staged, audit.as_json(job.plan.tape.time_type)


def _publish(
    job: Job,
    staged: DataFrame,
    staging: str,
    audit: Mapping[str, object],
    draft: Mapping[str, object],
) -> dict[str, object]:
    commit = _commit(job, staged, {"audit": audit})
    target.require_all_rows(job.plan, commit, staged.count())
    done = job.record(draft, commit.version, audit)
    delete_folder(staging)
    return done


def _commit(job: Job, rows: DataFrame, note: Mapping[str, object]) -> Commit:
    """Publish the rows under the claim that the attempt holds."""
    if job.source != job.attempt:
        note = {**note, "played": job.source}
    job.hold()
    reached("replay.holds", run=job.run.name)
    commit = target.publish(job.plan, job.run, job.attempt, rows, note)
    reached("replay.publish", run=job.run.name, version=commit.version)
    return commit


def publish(
    spark: SparkSession,
    lake: Lake,
    declarations: Declarations,
    run: str,
    decision: Decision | None = None,
) -> Outcome:
    """Publish a run that was held back after its audit, or finish one that was cut off.

    Args:
        spark: The session.
        lake: The lake.
        declarations: What is declared.
        run: The run.
        decision: Who has approved it. One that waits for approval is published with it alone.

    Raises:
        BadRequest: `CAP-RUN` for an unknown run, `CAP-NOT-AUDITED` for one that is not ready,
            `CAP-DECISION` for one that nobody has approved, `CAP-LATER` when others have published
            into its range since its audit.
        AnswerIsNo: `CAP-REJECTED` for one that was rejected.
        Held: `CAP-HELD` when its claim has died while it waited, and another run holds its range.
        Fenced: `CAP-FENCED` when its claim is ended while it publishes.
    """
    history = runs.read_history(lake, run)
    before = history.published
    history = settle.complete_ledger(spark, lake, declarations, history) or history
    if history.published:
        return Outcome(history.certificate or {}, stood=before)
    require_waiting(history)
    waiting = settle.audited(history)
    assert waiting is not None
    attempt, staging, audit = waiting
    job = restore(spark, lake, declarations, history).at(attempt)
    require_unmoved(job, history)
    _require_decision(job, history, decision)
    if any((each.run, each.attempt) == (run, attempt) for each in claims.alive(lake)):
        return _publish_waiting(job, history, decision, staging, audit)
    # Its claim has died while it waited: another attempt claims for it.
    job = replace(job, played=attempt).claimed()
    reached("publish.claim", run=run, attempt=job.attempt)
    try:
        done = _turn(job)
        if done is not None:
            return Outcome(done)
        require_unmoved(job, history)
        return _publish_waiting(job, history, decision, staging, audit)
    except BaseException:
        # It waits on, and holds nothing.
        claims.release(spark, lake, run, job.attempt)
        raise


def _publish_waiting(
    job: Job,
    history: History,
    decision: Decision | None,
    staging: str,
    audit: Mapping[str, object],
) -> Outcome:
    """Publish what was staged and audited, once it is written down who has approved it."""
    if decision is not None and history.approval(job.source) is None:
        job.at(job.source).write(Step.APPROVED, decision.as_json())
        reached("replay.approved", run=job.run.name)
    staged = delta.load(job.spark, staging)
    draft = draft_of(history.intent(job.source) or require_intent(history))
    return Outcome(_publish(job, staged, staging, audit, draft))


def _require_decision(job: Job, history: History, decision: Decision | None) -> None:
    """Check that somebody has approved what waits for approval."""
    if job.plan.request.approve and decision is None and history.approval(job.source) is None:
        raise BadRequest(
            "CAP-DECISION",
            f"run {job.run.name} waits for a person's approval",
            "approve it in Airflow, or with `capstan publish`",
            run=job.run.name,
        )


def rollback(spark: SparkSession, lake: Lake, declarations: Declarations, run: str) -> int:
    """Take back what a run published; a run that was taken back already stays so.

    Returns:
        The version of the target that has the rows of before.

    Raises:
        BadRequest: `CAP-RUN`, `CAP-NOT-PUBLISHED`, `CAP-LATER`, `CAP-GONE`.
        Held: `CAP-HELD` when another run holds part of the range.
    """
    history = runs.read_history(lake, run)
    history = settle.complete_ledger(spark, lake, declarations, history) or history
    for row in history.rows:
        if row.step is Step.ROLLED_BACK:
            return int(str(row.detail["target_version"]))
    return roll_back(restore(spark, lake, declarations, history), history)


def unlock(spark: SparkSession, lake: Lake, run: str) -> int:
    """Declare a run's attempt dead, so that its claim holds nothing any more.

    Returns:
        The attempt that was unlocked; 0 when it held nothing.

    Raises:
        BadRequest: `CAP-RUN` when there is no such run.
    """
    held = [claim for claim in claims.alive(lake) if claim.run == run]
    if not held:
        runs.read_history(lake, run)
        return 0
    claims.release(spark, lake, run, held[-1].attempt)
    return held[-1].attempt
