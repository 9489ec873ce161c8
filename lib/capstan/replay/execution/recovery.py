"""What earlier attempts left behind: publishes without ledger rows, results that still stand."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from capstan.core.config import Mode, ProjectConfig
from capstan.errors import CheckFailedError, FencedError, InvalidRequestError, RangeLockedError
from capstan.instrumentation import emit
from capstan.replay.execution.approval import waiting
from capstan.replay.execution.job import Job, draft_of, require_intent, restore
from capstan.replay.execution.rollback import take_back
from capstan.replay.output import target_table
from capstan.replay.output.already_published import appended
from capstan.replay.output.audit_findings import note_findings
from capstan.replay.planning.plan import Plan, with_region
from capstan.storage import delta
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import claims, coverage, runs
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_json import parse_region
from capstan.storage.ledger.runs import History
from capstan.storage.tape import index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def recover_ledger(
    spark: SparkSession,
    lake: Lake,
    declarations: ProjectConfig,
    history: History | None,
    *,
    undo: bool = False,
) -> History | None:
    """Write the ledger rows that a crash left out, of a publish or of a rollback in the target.

    Args:
        spark: The session.
        lake: The lake.
        declarations: What is declared.
        history: The run's history, if there is one.
        undo: Whether the run is to be taken back: what it has written at once, and not audited
            yet, is then taken back without.
    """
    if history is None or history.rolled_back or history.first_intent is None:
        return history
    if history.published:
        return _complete_rollback(spark, lake, declarations, history)
    since = int(str(history.first_intent.detail["target_version"]))
    found = target_table.find_publish(history.last.target, history.last.run, since)
    if found is None:
        return history
    commit, note = found
    # What was staged was audited before; nothing has to be computed for it again.
    direct = bool(note.get("direct"))
    job = restore(spark, lake, declarations, history, undo=undo or not direct)
    landed = target_table.find_rollback(job.plan.target, job.run.name, commit.version) is not None
    if not landed and not (undo and direct):
        complete(job, commit.version, note)
    else:
        # It was found wrong, and is gone: another audit could only say otherwise of rows of before.
        take_back(job, commit.version)
    return runs.read_history(lake, history.last.run)


def complete_others(
    spark: SparkSession, lake: Lake, declarations: ProjectConfig, plan: Plan
) -> None:
    """Write what crashes of other runs into the same target have left out.

    Of those that hold nothing any more: that they have published, the target alone knows. One that
    has written at once, and whose code has changed since, stays unsaid; its rows are unknown ones.
    """
    unsaid = [
        (name, history, history.first_intent)
        for name, history in runs.read_unrecorded(lake, plan.target).items()
    ]
    if not unsaid or not is_table(plan.target):
        return
    changes = delta.open_table(plan.target)
    alive = {claim.run for claim in claims.active(lake, plan.target)}
    for name, history, intent in unsaid:
        if name in alive or intent is None:
            continue
        run = history.run_id
        newest = changes.transaction_version(run.app)
        if newest is not None and newest >= run.change(intent.attempt).version:
            # What that run has to be told, or that another one holds its range, is not this one's.
            with suppress(CheckFailedError, InvalidRequestError, FencedError, RangeLockedError):
                recover_ledger(spark, lake, declarations, history)


def _complete_rollback(
    spark: SparkSession, lake: Lake, declarations: ProjectConfig, history: History
) -> History:
    certificate = history.certificate or {}
    version, path = int(str(certificate["target_version"])), history.last.target
    # Told from the run's newest transaction, mostly without a look at the target's log.
    run = history.run_id
    untouched = target_table.latest_txn_version(path, run) <= run.change(_ended_by(history)).version
    if untouched or target_table.find_rollback(path, run.name, version) is None:
        return history
    take_back(restore(spark, lake, declarations, history, undo=True), version)
    return runs.read_history(lake, run.name)


def _ended_by(history: History) -> int:
    return max(row.attempt for row in history.rows if row.step is runs.Step.DONE)


def complete(job: Job, version: int, note: Mapping[str, object]) -> dict[str, object]:
    """Finish a run whose publish stands in the target as `version`, with its commit's note."""
    attempt = int(str(note["attempt"]))
    played = int(str(note.get("played", attempt)))
    history = runs.read_history(job.lake, job.run.name)
    intent = history.intent(played) or require_intent(history)
    draft = draft_of(intent)
    # What that attempt had pinned: of a followed replay, a later one plays more.
    plan = with_region(job.plan, parse_region(str(intent.detail["region"])))
    cut = index.find_cut(plan.tape, int(str(intent.detail["cut"])))
    plan = replace(plan, cut=cut, code=str(intent.detail["code"]))
    job = replace(job, plan=plan, attempt=attempt, played=played)
    if note.get("direct"):
        return audit_direct(job, version, draft)
    return job.record(draft, version, note["audit"])


def audit_direct(job: Job, version: int, draft: Mapping[str, object]) -> dict[str, object]:
    """Audit rows where they were written at once; take them back if they are not right."""
    audit = target_table.audit_target(job.spark, job.plan, version)
    emit("replay.audit", run=job.run.name, passed=audit.passed, cells=audit.cells)
    if not audit.passed:
        note_findings(
            job.lake,
            job.plan,
            audit,
            run=job.run.name,
            attempt=job.attempt,
            target_version=version,
        )
        known = {each.run for each in coverage.current(job.lake, job.plan.target)}
        if job.run.name not in known:
            covered, state = job.covered(version), coverage.PUBLISHED
            coverage.write_covered(job.lake, covered, job.plan.time_type, state)
        take_back(job, version)
    audit.require_passed(f"run {job.run.name}, taken back from {job.plan.request.into}")
    return job.record(draft, version, audit.to_json(job.plan.tape.time_type))


def is_still_published(job: Job, history: History) -> bool:
    """Whether what a run published is still what the target holds, and meets today's checks."""
    if not target_table.has_published(job.plan.target, history.run_id):
        return False
    certificate = history.certificate or {}
    version = int(str(certificate["target_version"]))
    checked = _checked(certificate) == [(each.title, each.rule) for each in job.plan.checks]
    if checked and delta.version_of(job.plan.target) == version:
        return True
    mine = [c for c in coverage.current(job.lake, job.plan.target) if c.run == history.last.run]
    if not mine or any(
        _wrote_over(job, other) for other in coverage.published_after(job.lake, mine[0])
    ):
        return False
    if job.plan.request.mode is not Mode.REPLACE:
        return True
    return target_table.audit_target(job.spark, job.plan).passed


def _wrote_over(job: Job, later: Covered) -> bool:
    """Whether a later run over part of the same has changed rows: an append changes none."""
    if job.plan.request.mode is not Mode.APPEND:
        return True
    return not appended(runs.read_history(job.lake, later.run))


def _checked(certificate: Mapping[str, object]) -> list[tuple[object, object]]:
    """The checks, by name and rule, that a certificate says were made."""
    audit = certificate.get("audit")
    checks = audit.get("checks") if isinstance(audit, Mapping) else None
    return [(each["name"], each["rule"]) for each in checks] if isinstance(checks, list) else []


def audited(history: History) -> tuple[int, str, dict[str, object]] | None:
    """Attempt, staging and audit of a run that waits to be published, if it does."""
    row = waiting(history)
    if row is None:
        return None
    audit = row.detail["audit"]
    assert isinstance(audit, dict)
    return row.attempt, str(row.detail["staging"]), audit
