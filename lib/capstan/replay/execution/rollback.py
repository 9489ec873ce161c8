"""Taking a run back: the inverse replacement of its own rows, never a restore of the table.

It changes the target as a publish does: under a claim of its own, by an attempt of the run, with
which it can be shut out.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from capstan.core.config import Mode
from capstan.errors import InvalidRequestError
from capstan.instrumentation import emit
from capstan.replay.execution.fencing import fence_stale_attempts, runs_published_since
from capstan.replay.execution.job import Job
from capstan.replay.output import target_table
from capstan.replay.output.row_restore import before_image, except_all, rows_with_keys, with_columns
from capstan.storage import delta
from capstan.storage.delta import Commit
from capstan.storage.ledger import claims, coverage
from capstan.storage.ledger.coverage import ROLLED_BACK
from capstan.storage.ledger.runs import History, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_MOST_NAMED = 8

# Conditions and exceptions of Spark and Delta, for a file and for a version.
_NO_LONGER_KEPT = (
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "FileNotFoundException",
    "DELTA_FILE_NOT_FOUND",
    "DELTA_VERSION_NOT_FOUND",
    "VersionNotFoundException",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
)


def roll_back(job: Job, history: History) -> int:
    """Take back what a run published.

    Args:
        job: The run, restored.
        history: Its history.

    Returns:
        The version of the target that has the rows of before.

    Raises:
        InvalidRequestError: `CAP-NOT-PUBLISHED`; `CAP-LATER` when a later run wrote over part of
            it; `CAP-GONE` when the rows of before, or the table, are no longer there.
        RangeLockedError: `CAP-HELD` when another run holds part of the range.
    """
    if history.certificate is None:
        raise InvalidRequestError(
            "CAP-NOT-PUBLISHED",
            f"run {job.run.name} has published nothing that stands",
            "see `capstan runs`",
            run=job.run.name,
        )
    if not target_table.has_published(job.plan.target, job.run):
        raise InvalidRequestError(
            "CAP-GONE",
            f"the table that run {job.run.name} has published into is no longer at "
            f"{job.plan.target}, so there is nothing to take back",
            "replay what is to be there; what went with the table is not taken for published",
            run=job.run.name,
            target=job.plan.target,
        )
    version = int(str(history.certificate["target_version"]))
    _require_last(job, version)
    return take_back(job, version)


def take_back(job: Job, version: int) -> int:
    """Put the rows of before version `version` back, and say so in the ledgers.

    Raises:
        InvalidRequestError: `CAP-LATER`, `CAP-GONE`.
        RangeLockedError: `CAP-HELD` when another run holds part of the range.
        FencedError: `CAP-FENCED` when another attempt has taken over.
    """
    path = job.plan.target
    landed = target_table.find_rollback(path, job.run.name, version)
    restored = _carry_out(job, version) if landed is None else landed.version
    standing = {each.run for each in coverage.current(job.lake, path)}
    if job.run.name in standing:
        coverage.write_covered(job.lake, job.covered(version), job.plan.time_type, ROLLED_BACK)
    emit("rollback.coverage", run=job.run.name)
    job.end(Step.ROLLED_BACK, {"target_version": restored, "undone_version": version})
    emit("rollback.ledger", run=job.run.name)
    return restored


def _carry_out(job: Job, version: int) -> int:
    """Claim like an attempt that publishes, look again, and put the rows back."""
    # The rows of a merge lie where their keys lie, whatever range was played.
    scope = job.plan.whole if job.plan.request.mode is Mode.MERGE else job.plan.scope
    job = job.claimed(scope)
    emit("rollback.claim", run=job.run.name, attempt=job.attempt)
    try:
        fence_stale_attempts(job, scope)
        # Asked now that nobody else can change these rows any more.
        landed = target_table.find_rollback(job.plan.target, job.run.name, version)
        if landed is not None:
            return landed.version
        _require_last(job, version)
        job.hold()
        emit("rollback.holds", run=job.run.name)
        with _needing(job, version - 1):
            commit = _invert(job, version)
    except BaseException:
        claims.release(job.lake, job.run.name, job.attempt)
        raise
    if commit is None:
        raise target_table.fenced(job.run, job.attempt)
    emit("rollback.publish", run=job.run.name, version=commit.version)
    return commit.version


def _require_last(job: Job, version: int) -> None:
    """Check that no later run wrote over part of what this one did, or goes on from it."""
    for run in runs_published_since(job.lake, job.plan.scope, version, job.run.name):
        raise InvalidRequestError(
            "CAP-LATER",
            f"run {run} wrote over part of what {job.run.name} published, or goes on from it",
            f"roll back {run} first",
            run=job.run.name,
            later=run,
        )


def _invert(job: Job, version: int) -> Commit | None:
    plan, txn = job.plan, job.run.change(job.attempt)
    note = {"run": job.run.name, "attempt": job.attempt, "rollback": True}
    before = delta.load(job.spark, plan.target, version - 1)
    after = delta.load(job.spark, plan.target, version)
    now = delta.load(job.spark, plan.target)
    if plan.request.mode is Mode.MERGE:
        own = except_all(after, before)
        _given(job, own)
        _require_as_merged(job, version, own, now)
        rows = before_image(own, with_columns(before, after.schema), plan.keys)
        return delta.merge(rows, plan.target, plan.keys, txn=txn, note=note, delete_when="_gone")
    where = target_table.predicate(plan, after.schema)
    rows = before.where(where)
    if plan.request.mode is Mode.APPEND:
        # Others may have appended to the same range since: only the run's own rows go.
        rows = except_all(now.where(where), except_all(after.where(where), rows))
    return delta.replace(_given(job, rows), plan.target, where, txn=txn, note=note)


def _given(job: Job, rows: DataFrame) -> DataFrame:
    """Rows that are put back, without the columns that Delta numbers itself.

    Raises:
        InvalidRequestError: `CAP-IDENTITY` when there are rows: they would have other numbers.
    """
    numbered = delta.identity_columns(job.plan.target)
    if not numbered or rows.isEmpty():
        return rows.drop(*numbered)
    raise InvalidRequestError(
        "CAP-IDENTITY",
        f"run {job.run.name} cannot be taken back: rows would be put back, and the values of "
        f"{', '.join(numbered)} Delta gives itself",
        "replay the range as it should be instead; or bring the table back with Delta's RESTORE",
        run=job.run.name,
        columns=numbered,
    )


def _require_as_merged(job: Job, version: int, own: DataFrame, now: DataFrame) -> None:
    """Check that every row is as the run has merged it, and no other has its key.

    Keys know no range: what others have published since may be anywhere.

    Raises:
        InvalidRequestError: `CAP-LATER`, naming the runs that have published since.
    """
    if (
        except_all(own, now).isEmpty()
        and except_all(rows_with_keys(now, own, job.plan.keys), own).isEmpty()
    ):
        return
    path = job.plan.target
    later = [c.run for c in coverage.current(job.lake, path) if c.target_version > version]
    named = later if len(later) <= _MOST_NAMED else [*later[:_MOST_NAMED], "or later ones"]
    raise InvalidRequestError(
        "CAP-LATER",
        f"rows that {job.run.name} has merged into {job.plan.request.into} were changed since, or "
        "others of their keys were added",
        f"roll back first what of {', '.join(named)} has done so"
        if later
        else "replay the range as it should be instead",
        run=job.run.name,
        later=later,
    )


@contextmanager
def _needing(job: Job, version: int) -> Iterator[None]:
    """Tell of a version that is no longer kept; whatever else breaks in here is told as it is.

    Raises:
        InvalidRequestError: `CAP-GONE` when files of the version, or its entry of the log, are not
            there.
    """
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
    """Whether an error says that a version of a table, or a file of it, is not there any more."""
    causes: list[str] = []
    each: BaseException | None = error
    while each is not None:
        causes.append(f"{type(each).__name__}: {each}")
        each = each.__cause__
    return any(words in cause for cause in causes for words in _NO_LONGER_KEPT)
