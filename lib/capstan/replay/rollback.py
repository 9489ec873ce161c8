"""Taking a run back: the inverse replacement of its own rows, never a restore of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.declare import Mode
from capstan.errors import BadRequest
from capstan.ledger import claims, coverage
from capstan.ledger.coverage import ROLLED_BACK
from capstan.ledger.runs import History, Step
from capstan.replay import target
from capstan.replay.job import Job
from capstan.replay.layout import quoted
from capstan.steps import reached
from capstan.tape import delta
from capstan.tape.delta import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def roll_back(job: Job, history: History, later_follows: list[str]) -> int:
    """Take back what a run published.

    Args:
        job: The run, restored.
        history: Its history.
        later_follows: Runs of the same followed replay that come after it and stand.

    Returns:
        The version of the target that has the rows of before.

    Raises:
        BadRequest: `CAP-NOT-PUBLISHED`; `CAP-LATER` when a later run wrote over part of it.
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
    later = [c.run for c in coverage.later_than(job.lake, job.covered(version))]
    for run in later + later_follows:
        raise BadRequest(
            "CAP-LATER",
            f"run {run} wrote over part of what {job.run.name} published, or goes on from it",
            f"roll back {run} first",
            run=job.run.name,
            later=run,
        )
    claims.require_free(job.lake, job.plan.scope, besides=[job.run.name])
    return take_back(job, version)


def take_back(job: Job, version: int) -> int:
    """Put the rows of before version `version` back, and say so in the ledgers."""
    path, txn = job.plan.target, job.run.rollback
    if delta.open_table(path).transaction_version(txn.app) is None:
        _require_version(job, version - 1)
        _invert(job, version)
    restored = _rollback_version(job, version)
    reached("rollback.publish", run=job.run.name, version=restored)
    standing = {each.run for each in coverage.standing(job.lake, path)}
    if job.run.name in standing:
        coverage.write_covered(
            job.spark, job.lake, job.covered(version), job.plan.time_type, ROLLED_BACK
        )
    reached("rollback.coverage", run=job.run.name)
    job.write(Step.ROLLED_BACK, {"target_version": restored, "undone_version": version})
    reached("rollback.ledger", run=job.run.name)
    return restored


def _invert(job: Job, version: int) -> Commit | None:
    plan, txn = job.plan, job.run.rollback
    note = {"run": job.run.name, "rollback": True}
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


def _require_version(job: Job, version: int) -> None:
    # A real look at the files: a count would be answered from statistics alone.
    try:
        delta.load(job.spark, job.plan.target, version).limit(1).collect()
    except Exception as error:
        raise BadRequest(
            "CAP-GONE",
            f"run {job.run.name}: version {version} of the target is no longer kept",
            "replay the range as it should be instead",
            run=job.run.name,
        ) from error


def _rollback_version(job: Job, since: int) -> int:
    for commit in delta.commits_since(job.plan.target, since):
        note = delta.note_of(commit)
        if note.get("run") == job.run.name and note.get("rollback"):
            return int(str(commit["version"]))
    return delta.open_table(job.plan.target).version()
