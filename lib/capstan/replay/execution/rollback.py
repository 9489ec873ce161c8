"""Rollback of a run: the inverse replacement of its own rows, never a restore of the table.

It changes the target as a publish does: under a claim of its own, and as an attempt of the run,
which can be fenced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from capstan.core.config import Mode
from capstan.errors import InvalidRequestError
from capstan.replay.execution.change_merge import forget, take_back
from capstan.replay.execution.fencing import fence_stale_attempts, runs_published_since
from capstan.replay.execution.job import Job
from capstan.replay.target import target_table
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.row_restore import before_image, except_all, rows_with_keys, with_columns
from capstan.storage.delta import delta
from capstan.storage.delta.delta import Commit
from capstan.storage.ledger import claims, coverage
from capstan.storage.ledger.coverage import ROLLED_BACK
from capstan.storage.ledger.run_identity import have_same_identity
from capstan.storage.ledger.runs import History, Step
from capstan.telemetry.instrumentation import emit

_MOST_NAMED = 8

# Conditions and exceptions of Spark and Delta for a missing file or version.
_VERSION_GONE = (
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "FileNotFoundException",
    "DELTA_FILE_NOT_FOUND",
    "DELTA_VERSION_NOT_FOUND",
    "VersionNotFoundException",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
)


def roll_back(job: Job, history: History) -> int:
    """Roll back a published run; returns the version of the target with the previous rows."""
    if history.done is None:
        raise InvalidRequestError(
            "CAP-NOT-PUBLISHED",
            f"run {job.run.name} has published nothing that could be rolled back",
            "see `capstan runs`",
            run=job.run.name,
        )
    if not Ownership(job.plan).has_published(job.run):
        raise InvalidRequestError(
            "CAP-GONE",
            f"the table that run {job.run.name} has published into is no longer at "
            f"{job.plan.target}, so there is nothing to roll back",
            "replay the range; rows that were lost with the table do not count as published",
            run=job.run.name,
            target=job.plan.target,
        )
    version = history.done.target_version
    _require_last(job, version)
    return restore_previous_rows(job, version)


def restore_previous_rows(job: Job, version: int) -> int:
    """Restore the rows that version `version` replaced, and record that in the ledgers."""
    path = job.plan.target
    earlier = target_table.find_rollback(path, job.run.name, version)
    restored = _carry_out(job, version) if earlier is None else earlier.version
    # Read after the commit: another attempt may have recorded the rollback meanwhile.
    if Ownership(job.plan).publish_of(job.run.name) is not None:
        coverage.write_covered(job.lake, [job.covered(version)], job.plan.time_type, ROLLED_BACK)
    emit("rollback.coverage", run=job.run.name)
    if job.plan.change_rule is not None:
        # Before the row that ends the run, after which no attempt comes back to them.
        forget(job)
    job.finish(Step.ROLLED_BACK, {"target_version": restored, "undone_version": version})
    emit("rollback.ledger", run=job.run.name)
    return restored


def _carry_out(job: Job, version: int) -> int:
    """Claim like an attempt that publishes, check again, and restore the rows."""
    scope = job.plan.reach
    job = job.claimed(scope)
    emit("rollback.claim", run=job.run.name, attempt=job.attempt)
    try:
        fence_stale_attempts(job, scope)
        # Checked again, as from now on no other run can change these rows.
        earlier = target_table.find_rollback(job.plan.target, job.run.name, version)
        if earlier is not None:
            return earlier.version
        _require_last(job, version)
        job.ensure_lock()
        emit("rollback.holds", run=job.run.name)
        with _requiring_version(job, version - 1):
            commit = _invert(job, version)
    except BaseException:
        claims.release(job.lake, job.run.name, job.attempt)
        raise
    if commit is None:
        raise target_table.fenced(job.run, job.attempt)
    emit("rollback.publish", run=job.run.name, version=commit.version)
    return commit.version


def _require_last(job: Job, version: int) -> None:
    """Check that no later run wrote over part of this one's range, or resumed from it."""
    # A merge by sequence can be taken back under later ones, except those of the same followed
    # replay, which continue from it.
    for run in runs_published_since(job.lake, job.plan.scope, version, job.run.name):
        if job.plan.change_rule is not None and not have_same_identity(run, job.run.name):
            continue
        raise InvalidRequestError(
            "CAP-LATER",
            f"run {run} wrote over part of what {job.run.name} published, or resumed from it",
            f"roll back {run} first",
            run=job.run.name,
            later=run,
        )


def _invert(job: Job, version: int) -> Commit | None:
    if job.plan.change_rule is not None:
        return take_back(job)
    plan, txn = job.plan, job.run.change(job.attempt)
    note = {"run": job.run.name, "attempt": job.attempt, "rollback": True}
    before = delta.load(job.spark, plan.target, version - 1)
    after = delta.load(job.spark, plan.target, version)
    now = delta.load(job.spark, plan.target)
    if plan.request.mode is Mode.MERGE:
        merged = except_all(after, before)
        _insertable(job, merged)
        _require_as_merged(job, version, merged, now)
        rows = before_image(merged, with_columns(before, after.schema), plan.keys)
        return delta.merge(rows, plan.target, plan.keys, txn=txn, note=note, delete_when="_gone")
    where = target_table.predicate(plan, after.schema)
    rows = before.where(where)
    if plan.request.mode is Mode.APPEND:
        # Others may have appended to the same range since; only the run's own rows go.
        rows = except_all(now.where(where), except_all(after.where(where), rows))
    return delta.replace(_insertable(job, rows), plan.target, where, txn=txn, note=note)


def _insertable(job: Job, rows: DataFrame) -> DataFrame:
    """Rows to restore, without the identity columns that Delta numbers itself."""
    numbered = delta.identity_columns(job.plan.target)
    if not numbered or rows.isEmpty():
        return rows.drop(*numbered)
    raise InvalidRequestError(
        "CAP-IDENTITY",
        f"run {job.run.name} cannot be rolled back: Delta would give restored rows other values "
        f"in the identity columns {', '.join(numbered)}",
        "replay the range as it should be instead, or restore the table with Delta's RESTORE",
        run=job.run.name,
        columns=numbered,
    )


def _require_as_merged(job: Job, version: int, merged: DataFrame, now: DataFrame) -> None:
    """Check that every row is as the run has merged it, and that its key is unique."""
    # Keys are not bound to a range, so any run that has published since may have changed them.
    if (
        except_all(merged, now).isEmpty()
        and except_all(rows_with_keys(now, merged, job.plan.keys), merged).isEmpty()
    ):
        return
    later = [c.run for c in Ownership(job.plan).covered if c.target_version > version]
    named = later if len(later) <= _MOST_NAMED else [*later[:_MOST_NAMED], "or later ones"]
    raise InvalidRequestError(
        "CAP-LATER",
        f"rows that {job.run.name} has merged into {job.plan.request.into} were changed since, or "
        "rows with the same keys were added",
        f"first roll back the runs that did so, among {', '.join(named)}"
        if later
        else "replay the range as it should be instead",
        run=job.run.name,
        later=later,
    )


@contextmanager
def _requiring_version(job: Job, version: int) -> Iterator[None]:
    """Translate errors about a version that is no longer kept; others pass unchanged."""
    try:
        yield
    except Exception as error:
        if not is_gone(error):
            raise
        raise InvalidRequestError(
            "CAP-GONE",
            f"run {job.run.name}: version {version} of the target is no longer kept",
            "replay the range as it should be instead",
            run=job.run.name,
        ) from error


def is_gone(error: BaseException) -> bool:
    """Whether an error means that a version of a table, or one of its files, is gone."""
    causes: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    return any(words in text for text in causes for words in _VERSION_GONE)
