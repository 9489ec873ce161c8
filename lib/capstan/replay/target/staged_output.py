"""Output of a run: staged for its audit, then published in one commit.

Rows are written once. They are staged in the target's folder, in files that no commit has added
yet; the audit reads just those, and the publish adds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.core.config import Mode
from capstan.core.sql_names import quoted
from capstan.core.times import AdjoiningRanges
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.replay.planning.plan import Plan
from capstan.replay.target import target_table
from capstan.replay.target.standing import may_have_rows
from capstan.storage.delta import delta
from capstan.storage.delta.data_files import read_all
from capstan.storage.delta.delta import Commit
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.delta.staged_rows import can_stage, missing_file, stage_rows, staged_files
from capstan.storage.lake import delete_folder
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.tape.region_sql import number_sql

# Each task writes a file for each worker whose partition it has rows of. Up to so many workers that
# costs less than a shuffle, which costs two thirds of a copy.
_FEW_WORKERS = 16


def stages_in_target(plan: Plan) -> bool:
    """Whether rows are staged in the target itself: not where the publish has a part in them."""
    merges = plan.request.mode is Mode.MERGE
    return not merges and can_stage(plan.target, replaces=_replaces(plan))


def stage(plan: Plan, rows: DataFrame, staging: str) -> DataFrame:
    """Write the rows where no reader of the target sees them, list them, and read them back.

    They are written into the target itself, so that the publish writes none of them; or into a
    table of their own where the publish has a part in them, as a merge has.
    """
    if stages_in_target(plan):
        return stage_all(plan, rows, [staging])
    delete_folder(staging)
    worker, partitions = plan.layout.worker, target_table.partitions(plan.target)
    # It is read as a whole, twice, and then deleted: statistics would not help.
    plain = {"delta.dataSkippingNumIndexedCols": "0"}
    writer = rows.write.format("delta").mode("overwrite").options(**plain)
    if worker in partitions:
        # Otherwise each task of the publish would write a file per worker.
        writer = writer.partitionBy(worker)
    writer.save(staging)
    return read_all(rows.sparkSession, staging)


def stage_all(
    plan: Plan, rows: DataFrame, stagings: Sequence[str], ranges: AdjoiningRanges | None = None
) -> DataFrame:
    """Write the rows into the target, list those of each range by itself, and read all back."""
    path, layout, apart = plan.target, plan.layout, None
    gather = layout.worker in target_table.partitions(path)
    gather = gather and len(layout.labels) > _FEW_WORKERS
    complete = with_defaults(rows, path)
    if ranges is not None:
        # A name that no table has, nor a folder.
        names, apart = [quoted(name) for name in complete.columns], f"apart_{uuid4().hex}"
        timed = replace(layout, worker=None).tagged(complete, plan.time_type)
        axis = plan.time_type.coordinates[-1]
        number = F.expr(number_sql(axis, ranges, f"`_time`.{quoted(axis.name)}"))
        complete = timed.select(*names, number.alias(apart))
    staged = stage_rows(complete, path, stagings, gather=gather, apart=apart)
    return staged.select(*(quoted(name) for name in rows.columns))


def publish(
    plan: Plan, run: RunId, attempt: int, rows: DataFrame, staging: str, note: Mapping[str, object]
) -> Commit:
    """Publish staged rows in one commit, under the caller's claim."""
    txn = run.change(attempt)
    note = {**note, "run": run.name, "attempt": attempt, "publish": True}
    if plan.request.mode is Mode.MERGE:
        commit = delta.merge(rows, plan.target, plan.keys, txn=txn, note=note)
    else:
        commit = _write(plan, rows, staging, txn, note)
    return target_table.require_landed(commit, plan.target, run, attempt)


def _write(
    plan: Plan, rows: DataFrame, staging: str, txn: Txn, note: Mapping[str, object]
) -> Commit | None:
    path, replaces = plan.target, _replaces(plan)
    rows, files = with_defaults(rows, path), []
    # Looked at again: somebody may have altered the target, or written into it when it was empty;
    # or have published the run, which deletes the list, and fences this attempt.
    if can_stage(path, replaces=replaces):
        files = staged_files(path, staging)
    if replaces:
        where = target_table.predicate(plan, rows.schema)
        return delta.replace(rows, path, where, txn=txn, note=note, merge_schema=True, files=files)
    return delta.append(rows, path, txn=txn, note=note, merge_schema=True, files=files)


def _replaces(plan: Plan) -> bool:
    """Whether a publish looks for rows to replace: not where no file can have any."""
    # Rows that others add meanwhile are foreign.
    return plan.request.mode is Mode.REPLACE and may_have_rows(plan)


def require_staged_files(plan: Plan, staging: str) -> None:
    """Check that the staged files of a run that has waited are still there."""
    missing = missing_file(plan.target, staging)
    if missing is not None:
        raise InvalidRequestError(
            "CAP-GONE",
            f"a staged file of target {plan.request.into} is gone: {missing}",
            "end this run with `capstan reject`, and replay again; VACUUM deletes staged files "
            "that are older than the retention of the table",
            target=plan.target,
        )


def require_all_rows(plan: Plan, commit: Commit, staged: int) -> None:
    """Check by the commit's metrics that it wrote the number of audited rows."""
    if plan.request.mode is Mode.MERGE or "numOutputRows" not in commit.metrics:
        return
    copied = int(commit.metrics.get("numCopiedRows", 0))
    written = int(commit.metrics["numOutputRows"]) - copied
    if written != staged:
        raise SystemFailureError(
            "CAP-PUBLISH",
            f"{plan.request.into}: {staged} rows were audited and {written} were published",
            "roll it back with `capstan rollback`, and report this error",
        )


def default_columns(path: str, schema: StructType) -> dict[str, Column]:
    """Columns of a table that have a default value, each as an expression of that value."""
    defaults = delta.default_values(path)
    return {
        field.name: F.expr(defaults[field.name]).cast(field.dataType)
        for field in schema
        if field.name in defaults
    }


def with_defaults(rows: DataFrame, path: str) -> DataFrame:
    """Rows with the default values of the table's other columns."""
    # An `INSERT` in SQL fills them in; for a DataFrame, Delta writes nulls.
    if not delta.default_values(path):
        return rows
    present = {name.lower() for name in rows.columns}
    columns = default_columns(path, delta.load(rows.sparkSession, path).schema)
    missing = {name: value for name, value in columns.items() if name.lower() not in present}
    return rows.withColumns(missing) if missing else rows
