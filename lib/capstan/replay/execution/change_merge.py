"""Publish, rollback, audit and preview of a merge by sequence.

A run keeps its staged changes in a table beside the target. They count while the run is in effect,
so the target's own commit stays the only one that decides: changes that were kept before a kill do
not count. A publish and a rollback then do the same: they bring the keys of all changes that begin
or cease to count to what the changes in effect result in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from capstan.audit import Audit, Shape
from capstan.core.config.change_rules import ChangeRule
from capstan.errors import InvalidRequestError
from capstan.replay.execution.job import Job
from capstan.replay.output.change_rows import GONE, RUN, changes_of, named, of_runs
from capstan.replay.output.rows import playing
from capstan.replay.publish.change_merges import after_images, kept_changes, rows_to_merge
from capstan.replay.target import target_table
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.published_changes import (
    KeptChanges,
    changes_of_plan,
    in_effect,
    published_changes,
)
from capstan.storage.delta import delta
from capstan.storage.delta.delta import Commit
from capstan.storage.delta.table_creation import create_table
from capstan.storage.lake import delete_folder, is_table
from capstan.storage.ledger.tables import kept_changes_path
from capstan.telemetry.instrumentation import emit


def publish_changes(job: Job, staged: DataFrame, note: Mapping[str, object]) -> Commit:
    """Keep the staged changes of a run, and bring their keys in the target up to date."""
    plan = job.plan
    published = published_changes(Ownership(plan), [job.run.name])
    own = changes_of_plan(plan, job.name, job.run.name)
    if not published:
        # Those of a table that was here before may have other columns. The whole table is claimed.
        delete_folder(kept_changes_path(job.lake, plan.target))
    _keep(job, staged)
    emit("replay.changes", run=job.run.name)
    rows = _rows_to_merge(job, in_effect(published), in_effect((*published, own)))
    return _merge(job, rows, {**note, "publish": True})


def take_back(job: Job) -> Commit:
    """Bring the keys of a published run to what the changes of the other runs result in."""
    # Neither earlier versions of the target nor the tape are read, and later runs may stand.
    published = published_changes(Ownership(job.plan))
    others = [changes for changes in published if changes.run != job.run.name]
    rows = _rows_to_merge(job, in_effect(published), in_effect(others))
    return _merge(job, rows, {"rollback": True})


def forget(job: Job) -> None:
    """Delete the kept changes of a run that was rolled back; they count no more."""
    path = kept_changes_path(job.lake, job.plan.target)
    for name in _kept_names(path):
        if name.rpartition("-")[0] == job.run.name:
            delta.delete_rows(job.spark, path, f"{RUN} = '{name}'")


def audit_changes(job: Job) -> Audit:
    """Audit the rows of a run's keys in the target, now."""
    # Its changes are computed again from the tape; those of other runs are as they were kept. Rows
    # are compared by key.
    plan, spark, rule = job.plan, job.spark, _rule(job)
    target_table.require_computable(plan)
    published = published_changes(Ownership(plan))
    own = next((changes for changes in published if changes.run == job.run.name), None)
    if own is None:
        raise InvalidRequestError(
            "CAP-NOT-PUBLISHED",
            f"run {job.run.name} is not in effect in {plan.request.into} any more",
            "see `capstan runs`",
            run=job.run.name,
        )
    counting = in_effect(published)
    kept, present = kept_changes(spark, plan), delta.load(spark, plan.target)
    others = of_runs(kept, {changes.name for changes in counting} - {own.name})
    with playing(spark, plan, again=True) as output:
        again = named(changes_of(rule, output.rows), own.name)
        moved = again.unionByName(of_runs(kept, {own.name}), allowMissingColumns=True)
        changes = others.unionByName(again, allowMissingColumns=True) if own in counting else others
        wanted, rows = after_images(rule, changes, moved, present)
        shape = Shape(None, (), tuple(wanted.columns))
        return target_table.audit_again(spark, plan, rows, shape, wanted, output)


def require_newest_version(version: int | None) -> None:
    """Check that an audit of a merge by sequence is one of the present table."""
    if version is not None:
        raise InvalidRequestError(
            "CAP-VERSION",
            "a merge by sequence can be audited only as the table is now",
            "leave out --version",
        )


def _rows_to_merge(
    job: Job, before: Sequence[KeptChanges], after: Sequence[KeptChanges]
) -> DataFrame:
    kept, present = kept_changes(job.spark, job.plan), delta.load(job.spark, job.plan.target)
    counted, counting = ({changes.name for changes in group} for group in (before, after))
    return rows_to_merge(_rule(job), kept, counted, counting, present)


def _merge(job: Job, rows: DataFrame, note: Mapping[str, object]) -> Commit:
    run, attempt, target = job.run, job.attempt, job.plan.target
    txn = run.change(attempt)
    note = {**note, "run": run.name, "attempt": attempt}
    keys = _rule(job).identity
    commit = delta.merge(rows, target, keys, txn=txn, note=note, delete_when=GONE)
    return target_table.require_landed(commit, target, run, attempt)


def _keep(job: Job, staged: DataFrame) -> None:
    """Append the changes of an attempt, unless one that was cut off has kept them already."""
    path = kept_changes_path(job.lake, job.plan.target)
    if job.name in _kept_names(path):
        return
    rows = named(staged, job.name)
    # A column that has no nulls now may have some later.
    schema = StructType([StructField(field.name, field.dataType) for field in rows.schema])
    create_table(job.spark, path, schema, partitions=(RUN,))
    delta.append(rows, path, note={"run": job.run.name, "changes": job.name}, merge_schema=True)


def _kept_names(path: str) -> set[str]:
    """The attempts whose changes are kept, from the table's log alone."""
    if not is_table(path):
        return set()
    files = pa.table(delta.open_table(path).get_add_actions(flatten=True))
    name = f"partition.{RUN}"
    return set(files[name].to_pylist()) if name in files.column_names else set()


def _rule(job: Job) -> ChangeRule:
    rule = job.plan.change_rule
    assert rule is not None
    return rule
