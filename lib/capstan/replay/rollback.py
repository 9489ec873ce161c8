"""Taking a run back: the inverse replacement of its own rows, never a restore of the table.

It changes the target as a publish does: under a claim of its own, by an attempt of the run, with
which it can be shut out.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.declare import Mode
from capstan.errors import BadRequest
from capstan.ledger import claims, coverage
from capstan.ledger.coverage import ROLLED_BACK
from capstan.ledger.runs import History, Step
from capstan.replay import target
from capstan.replay.holding import changed_since, shut_out
from capstan.replay.job import Job
from capstan.replay.layout import quoted
from capstan.steps import reached
from capstan.tape import delta
from capstan.tape.delta import Commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

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
        BadRequest: `CAP-NOT-PUBLISHED`; `CAP-LATER` when a later run wrote over part of it;
            `CAP-GONE` when the rows of before are no longer kept.
        Held: `CAP-HELD` when another run holds part of the range.
    """
    if history.certificate is None:
        raise BadRequest(
            "CAP-NOT-PUBLISHED",
            f"run {job.run.name} has published nothing that stands",
            "see `capstan runs`",
            run=job.run.name,
        )
    version = int(str(history.certificate["target_version"]))
    _require_last(job, version)
    return take_back(job, version)


def take_back(job: Job, version: int) -> int:
    """Put the rows of before version `version` back, and say so in the ledgers.

    Raises:
        BadRequest: `CAP-LATER`, `CAP-GONE`.
        Held: `CAP-HELD` when another run holds part of the range.
        Fenced: `CAP-FENCED` when another attempt has taken over.
    """
    path = job.plan.target
    landed = target.find_rollback(path, job.run.name, version)
    restored = _carry_out(job, version) if landed is None else landed.version
    standing = {each.run for each in coverage.standing(job.lake, path)}
    if job.run.name in standing:
        coverage.write_covered(
            job.spark, job.lake, job.covered(version), job.plan.time_type, ROLLED_BACK
        )
    reached("rollback.coverage", run=job.run.name)
    job.end(Step.ROLLED_BACK, {"target_version": restored, "undone_version": version})
    reached("rollback.ledger", run=job.run.name)
    return restored


def _carry_out(job: Job, version: int) -> int:
    """Claim like an attempt that publishes, look again, and put the rows back."""
    job = job.claimed()
    reached("rollback.claim", run=job.run.name, attempt=job.attempt)
    try:
        shut_out(job)
        # Asked now that nobody else can change these rows any more.
        landed = target.find_rollback(job.plan.target, job.run.name, version)
        if landed is not None:
            return landed.version
        _require_last(job, version)
        job.hold()
        reached("rollback.holds", run=job.run.name)
        with _needing(job, version - 1):
            commit = _invert(job, version)
    except BaseException:
        claims.release(job.spark, job.lake, job.run.name, job.attempt)
        raise
    if commit is None:
        raise target.fenced(job.run, job.attempt)
    reached("rollback.publish", run=job.run.name, version=commit.version)
    return commit.version


def _require_last(job: Job, version: int) -> None:
    """Check that no later run wrote over part of what this one did, or goes on from it."""
    for run in changed_since(job.lake, job.plan.scope, version, job.run.name):
        raise BadRequest(
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
    if plan.request.mode is Mode.MERGE:
        own = after.exceptAll(before.select(after.columns)) if before.columns else after
        changed = own.select(*map(quoted, plan.keys)).distinct()
        return delta.merge(
            _before_image(changed, before, plan.keys),
            plan.target,
            plan.keys,
            txn=txn,
            note=note,
            delete_when="_gone",
        )
    where = target.predicate(plan, after.schema)
    rows = before.where(where)
    if plan.request.mode is Mode.APPEND:
        # Others may have appended to the same range since: only the run's own rows go.
        own = after.where(where).exceptAll(before.where(where))
        now = delta.load(job.spark, plan.target).where(where)
        rows = now.exceptAll(own.select(now.columns))
    return delta.replace(rows, plan.target, where, txn=txn, note=note)


def _before_image(changed: DataFrame, before: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Per changed key its row of before, or `_gone` where there was none."""
    # By name alone: both sides may be the same table, and Spark could not tell their columns apart.
    named = changed.select(*(F.col(quoted(k)).alias(f"_key{i}") for i, k in enumerate(keys)))
    marked = before.withColumn("_gone", F.lit(False))
    same = [F.col(f"_key{i}").eqNullSafe(F.col(quoted(k))) for i, k in enumerate(keys)]
    rest = [F.col(quoted(name)) for name in before.columns if name not in keys]
    return named.join(marked, same, "left").select(
        *(F.col(f"_key{i}").alias(key) for i, key in enumerate(keys)),
        *rest,
        F.coalesce(F.col("_gone"), F.lit(True)).alias("_gone"),
    )


@contextmanager
def _needing(job: Job, version: int) -> Iterator[None]:
    """Tell of a version that is no longer kept; whatever else breaks in here is told as it is.

    Raises:
        BadRequest: `CAP-GONE` when files of the version, or its entry of the log, are not there.
    """
    try:
        yield
    except Exception as error:
        if not is_gone(error):
            raise
        raise BadRequest(
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
