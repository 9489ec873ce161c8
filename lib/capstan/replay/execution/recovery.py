"""Recovery of what earlier attempts left behind: publishes without ledger rows."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext, suppress
from dataclasses import replace

from pyspark.sql import SparkSession

from capstan.core.config import Mode, ProjectConfig
from capstan.errors import CheckFailedError, FencedError, InvalidRequestError, RangeLockedError
from capstan.replay.execution.job import Job, require_intent, restore
from capstan.replay.execution.recording import RunPublish, record_coverage, record_publishes
from capstan.replay.execution.rollback import restore_previous_rows
from capstan.replay.planning.intent import Intent
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import at_versions, with_region
from capstan.replay.publish.audit_findings import record_findings
from capstan.replay.target import target_table
from capstan.replay.target.ownership import Ownership, record_whole
from capstan.replay.target.published_changes import is_in_effect
from capstan.storage.delta import delta
from capstan.storage.delta.commits import CommitInfo
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.certificate import Certificate
from capstan.storage.ledger.made_by import making
from capstan.storage.ledger.runs import History
from capstan.telemetry.instrumentation import emit


def recover_ledger(
    spark: SparkSession,
    lake: Lake,
    config: ProjectConfig,
    history: History | None,
    *,
    undo: bool = False,
) -> History | None:
    """Write the ledger rows that a crash left out, of a publish or a rollback in the target.

    When the run is to be rolled back (`undo`), a direct write that was not audited yet is rolled
    back without an audit.
    """
    if history is None or history.rolled_back:
        return history
    # What only writes down the work of others is not done by whoever has this job made.
    with nullcontext() if undo else making(None):
        return _recovered(spark, lake, config, history, undo=undo)


def _recovered(
    spark: SparkSession, lake: Lake, config: ProjectConfig, history: History, *, undo: bool
) -> History:
    if history.published:
        return _complete_rollback(spark, lake, config, history)
    commit = target_table.find_landed(history)
    if commit is None:
        return history
    # Staged output was audited before the publish; nothing has to be computed for it again.
    direct = bool(commit.note.get("direct"))
    job = restore(spark, lake, config, history, undo=undo or not direct)
    undone = target_table.find_rollback(job.plan.target, job.run.name, commit.version) is not None
    if not undone and not (undo and direct):
        complete(job, commit)
    else:
        # It failed its audit and is gone; another audit would only look at the previous rows.
        restore_previous_rows(job, commit.version)
    return runs.read_history(lake, history.last.run)


def complete_others(spark: SparkSession, lake: Lake, config: ProjectConfig, plan: Plan) -> None:
    """Write the ledger rows that crashes of other runs into the same target left out."""
    # This concerns runs that hold no lock any more; only the target shows that they have published.
    # A direct write whose code has changed since is not recorded: its rows count as foreign.
    unrecorded = runs.read_unrecorded(lake, plan.target)
    if not unrecorded:
        return
    active = {claim.run for claim in claims.active(lake, plan.target)}
    # Opened after the claims were read: a run that had ended by then changes it no more.
    table = delta.open_if_table(plan.target)
    for name, history in unrecorded.items():
        if name not in active and target_table.may_have_landed(table, history):
            # Errors of the other run, and locks on its range, are not this run's to report.
            with suppress(CheckFailedError, InvalidRequestError, FencedError, RangeLockedError):
                recover_ledger(spark, lake, config, history)


def _complete_rollback(
    spark: SparkSession, lake: Lake, config: ProjectConfig, history: History
) -> History:
    if not target_table.was_undone(delta.open_if_table(history.last.target), history):
        return history
    job = restore(spark, lake, config, history, undo=True)
    restore_previous_rows(job, _published_version(history))
    return runs.read_history(lake, job.run.name)


def _published_version(history: History) -> int:
    assert history.done is not None
    return history.done.target_version


def complete(job: Job, commit: CommitInfo) -> Certificate:
    """Finish a run whose publish is in the target."""
    note, attempt = commit.note, int(commit.note["attempt"])
    played = int(note.get("played", attempt))
    history = runs.read_history(job.lake, job.run.name)
    intent = Intent.from_json((history.intent(played) or require_intent(history)).detail)
    # As that attempt pinned it: a later attempt of a followed replay covers more.
    plan = with_region(job.plan, intent.region)
    computation = replace(plan.computation, code=intent.code)
    plan = replace(plan, inputs=plan.inputs.at_cuts(intent.pinned), computation=computation)
    plan = at_versions(plan, intent.lookups)
    job = replace(job, plan=plan, attempt=attempt, played=played)
    if note.get("direct"):
        return audit_direct(job, commit.version, intent.certificate)
    publish = RunPublish(job, intent.certificate, commit.version, note["audit"])
    return record_publishes([publish])[0]


def audit_direct(job: Job, version: int, draft: Certificate) -> Certificate:
    """Audit rows that were written directly to the target; roll them back if they are wrong."""
    audit = target_table.audit_target(job.spark, job.plan, version)
    emit("replay.audit", run=job.run.name, passed=audit.passed, cells=audit.cells)
    if not audit.passed:
        record_findings(job.plan, audit, job.run.name, job.attempt, version)
        record_coverage([(job, version)])
        restore_previous_rows(job, version)
    audit.require_passed(f"run {job.run.name}, rolled back from {job.plan.request.into}")
    stated = audit.to_json(job.plan.inputs.tape.time_type)
    return record_publishes([RunPublish(job, draft, version, stated)])[0]


def is_still_published(job: Job, owner: Ownership, history: History) -> bool:
    """Whether the target still holds the output of a run, and it meets the present checks."""
    if not owner.has_published(history.run_id):
        return False
    certificate = history.certificate
    audited = {} if certificate is None else certificate.audit or {}
    checked = [(check["name"], check["rule"]) for check in audited.get("checks") or []]
    same_checks = checked == [(check.title, check.rule) for check in job.plan.checks]
    if same_checks and delta.version_of(job.plan.target) == _published_version(history):
        return True
    covered = owner.publish_of(history.last.run)
    if covered is None:
        return False
    if job.plan.change_rule is not None:
        return is_in_effect(owner, covered.run)
    later_runs = [each for each in owner.covered if covered.is_overlaid_by(each)]
    if job.plan.request.mode is Mode.MERGE:
        return not later_runs
    if job.plan.request.mode is Mode.APPEND:
        # Other appends of this output have changed no row.
        modes = {runs.read_history(job.lake, later.run).mode for later in later_runs}
        if modes <= {Mode.APPEND} and not owner.is_disturbed(covered.run):
            return True
    return _compared_whole(job, covered.run)


def compared_run(job: Job, owner: Ownership, columns: Collection[str]) -> History | None:
    """The run that has written all of the range, if an audit finds all rows of the range whole."""
    there = {field.name.lower() for field in delta.open_table(job.plan.target).schema().fields}
    run = owner.covering_run if all(name.lower() in there for name in columns) else None
    if run is None or not _compared_whole(job, run):
        return None
    return runs.read_history(job.lake, run)


def _compared_whole(job: Job, run: str) -> bool:
    """Whether an audit of the target finds the rows whole that a run has written; records it."""
    version = delta.open_table(job.plan.target).version()
    passed = target_table.audit_target(job.spark, job.plan, version).passed
    if passed:
        record_whole(job.plan, run, version)
    return passed
