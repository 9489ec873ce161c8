"""The target of a replay: made, fenced, published to, and asked what was published."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.audit import (
    Audit,
    Shape,
    audit_computed,
    audit_copy,
    shape_of,
)
from capstan.audit.row_checks import prepare
from capstan.core.config import Mode
from capstan.errors import FencedError, InvalidRequestError, SystemFailureError
from capstan.replay.output.order_dependence import ordered
from capstan.replay.output.rows import playing
from capstan.replay.planning.plan import Plan
from capstan.storage import delta
from capstan.storage.data_files import is_empty
from capstan.storage.delta import Commit
from capstan.storage.lake import children, is_table
from capstan.storage.ledger import coverage
from capstan.storage.ledger.retirements import missing_boxes, retired_boxes, retired_error
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.table_creation import create_table
from capstan.storage.tape.region_sql import quoted
from capstan.storage.tape.tape import stored_payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


MOST_PARTITIONS = 256
"""The most workers that a new target is partitioned by."""


def create_or_check(spark: SparkSession, plan: Plan, schema: StructType) -> None:
    """Make the target if it is not there; check that the rows fit one that is.

    Copies are partitioned by worker while the stream has few: Delta lets replacements of disjoint
    workers land together only where they touch different partitions. Of many workers each would
    have a folder and a file of its own, and of two such replacements the later one is repeated.

    Raises:
        InvalidRequestError: `CAP-TARGET-SCHEMA`, naming the column that has another type or is
            missing; `CAP-NAME` for a folder that has files and is no table.
    """
    if not is_table(plan.target):
        _require_free(plan)
        _tell_gone(spark, plan)
        few = len(plan.layout.labels) <= MOST_PARTITIONS
        by_worker = (plan.layout.worker,) if plan.layout.worker and few else ()
        create_table(
            spark, plan.target, schema, properties=delta.KEEP_VERSIONS, partitions=by_worker
        )
        return
    there = schema_of(spark, plan.target)
    kinds = {field.name.lower(): field.dataType.simpleString() for field in there}
    # Spark reads them as texts; but those of the replay would be another text there.
    kinds |= {name.lower(): kind for name, kind in delta.char_columns(plan.target).items()}
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if kinds.get(field.name.lower(), kind) != kind:
            was = kinds[field.name.lower()]
            raise _misfit(plan, field.name, f"is {was} there, and {kind} in the replay")
    require_placed(plan, there)


def partitions(path: str) -> list[str]:
    """The columns that a target is partitioned by."""
    return list(delta.open_table(path).metadata().partition_columns)


def _require_free(plan: Plan) -> None:
    """Check that a table that is to be made lies in a folder of its own."""
    found = [name for name in children(plan.target) if name[:1] not in "._"]
    if found:
        raise InvalidRequestError(
            "CAP-NAME",
            f"{plan.request.into!r} cannot be a target: it is a folder with other files, such as "
            f"{found[0]}, and no Delta table",
            "give another path; or make a table of these files first (CONVERT TO DELTA)",
            target=plan.target,
        )


def _tell_gone(spark: SparkSession, plan: Plan) -> None:
    """Write down what went with a table that was there: in one that is made anew it is not."""
    told = coverage.current_by_ledger(plan.lake, plan.target)
    # Looked at after the ledger was read: another run may just have made it, and published.
    if told and not is_table(plan.target):
        coverage.write_gone(plan.lake, plan.target, {each.run for each in told})


def require_placed(plan: Plan, there: StructType) -> None:
    """Check that a table has the columns that say of which worker and time a row is.

    Raises:
        InvalidRequestError: `CAP-TARGET-SCHEMA`, naming the column that it lacks.
    """
    for name in (plan.layout.worker, plan.layout.time):
        if name is not None and name not in there.names:
            raise _misfit(plan, name, "is not there: rows could not be told apart")


def schema_of(spark: SparkSession, path: str) -> StructType:
    """The columns of a Delta table."""
    return delta.load(spark, path).schema


def _misfit(plan: Plan, column: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-TARGET-SCHEMA",
        f"target {plan.request.into}: column {column} {what}",
        "replay into another table, or declare the target's columns in streams.yaml",
        target=plan.target,
        column=column,
    )


def predicate(plan: Plan, schema: StructType) -> str:
    """The condition of the rows that the replay may change."""
    scope = plan.scope
    return plan.layout.predicate(schema, plan.time_type, scope.workers, scope.region)


def audit(spark: SparkSession, plan: Plan, rows: DataFrame) -> Audit:
    """Audit rows of the plan's workers and times, from staging or from the target itself.

    Raises:
        InvalidRequestError: `CAP-RETIRED` when records that it has to compute again were deleted.
    """
    tape, workers, region = plan.tape, plan.workers, plan.reads
    retired = missing_boxes(tape, plan.cut, tuple(workers), region, retired_boxes(plan.lake, tape))
    if plan.computation is None:
        tagged = plan.layout.tagged(rows, tape.time_type)
        shape = copy_shape(spark, plan, rows.columns)
        return audit_copy(
            spark,
            tape,
            plan.cut,
            workers,
            region,
            tagged,
            shape,
            checks=plan.checks,
            retired=retired,
        )
    if retired:
        hint = "what was published stands, but its rows cannot be computed again"
        raise retired_error(tape, retired[0], "the audit", hint)
    with playing(spark, plan, again=True) as output:
        depends = ordered(plan, output.rows)
        found = audit_computed(
            spark,
            tape,
            plan.cut,
            workers,
            region,
            rows,
            output_shape(plan, rows.schema, output.rows.columns),
            output.rows,
            plan.keys,
            kind="transform" if plan.piped is None else "pipeline",
            checks=plan.checks,
            tolerance=depends.close,
        )
    return replace(found, near=replace(found.near, unsure=tuple(depends.refused)))


def output_shape(plan: Plan, schema: StructType, columns: Sequence[str]) -> Shape:
    """Where the output of a transform or pipeline has worker, time and data.

    Args:
        plan: The replay.
        schema: The columns that there are.
        columns: Those that take part.
    """
    layout = plan.layout
    found = shape_of(
        schema, plan.time_type, worker=layout.worker, time=layout.time, columns=columns
    )
    kept = dict(zip(plan.axes, found.times, strict=True)) if found.times else {}
    count = len(plan.tape.time_type.coordinates)
    return replace(found, times=tuple(map(kept.get, range(count))) if kept else ())


def copy_shape(spark: SparkSession, plan: Plan, columns: Collection[str]) -> Shape:
    """Where a copy has worker, time and data, once it is tagged with `_worker` and `_time`.

    Args:
        spark: The session.
        plan: The replay, which is a copy.
        columns: The columns that there are.
    """
    times = tuple(f"`_time`.{quoted(name)}" for name in plan.tape.time_type.names)
    payload = stored_payload(plan.tape).names
    wanted = plan.declared.columns if plan.declared and plan.declared.columns else payload
    return Shape("_worker", times, tuple(name for name in wanted if name in columns))


def require_checks(plan: Plan, rows: DataFrame) -> None:
    """Check that the declared checks fit the rows that a replay will put out; no job runs.

    Raises:
        InvalidRequestError: `CAP-CHECK-COLUMN`, naming the check.
    """
    if plan.checks:
        copied = plan.computation is None
        prepare(plan.checks, plan.layout.tagged(rows, plan.tape.time_type) if copied else rows)


def require_inside(plan: Plan, rows: DataFrame) -> None:
    """Check that what a transform or pipeline adds or merges is of the workers and times played.

    What replaces them is checked by Delta as it is written. A run could not be taken back, nor
    audited, by the range that it says it has written, if it had written beside it.

    Raises:
        CheckFailedError: `CAP-OUTSIDE`.
    """
    if plan.request.mode is not Mode.REPLACE:
        _require_inside(plan, rows)


def _require_inside(plan: Plan, rows: DataFrame) -> None:
    if plan.computation is None:
        return
    where = predicate(plan, rows.schema)
    if not rows.where(~F.coalesce(F.expr(where), F.lit(False))).isEmpty():
        raise delta.outside_range_error(plan.target, where)


def audit_target(spark: SparkSession, plan: Plan, version: int | None = None) -> Audit:
    """Audit the target's own rows of the plan's workers and times, now or at a version."""
    rows = delta.load(spark, plan.target, version)
    return audit(spark, plan, rows.where(predicate(plan, rows.schema)))


def fence(spark: SparkSession, path: str, run: RunId, attempt: int, by: str) -> None:
    """Shut out all attempts of a run before this one, by a commit of no rows.

    Args:
        spark: The session.
        path: The target.
        run: The run.
        attempt: The first attempt that may still change the target.
        by: The run that shuts them out: the same one, or another that has claimed after it.

    Raises:
        FencedError: `CAP-FENCED` when a later attempt has begun already.
    """
    txn = run.fence(attempt)
    note = {"run": by, "fence": run.name, "attempt": attempt}
    empty = spark.createDataFrame([], schema_of(spark, path))
    while delta.append(empty, path, txn=txn, note=note) is None:
        stands = latest_txn_version(path, run)
        if stands == txn.version:
            return  # Another run has shut them out already.
        if stands > txn.version:
            raise fenced(run, attempt)
        # One of them has changed the target in just this moment.


def latest_txn_version(path: str, run: RunId) -> int:
    """The newest transaction of a run that its target has, `2k` or `2k + 1`; -1 where none is."""
    found = delta.open_table(path).transaction_version(run.app) if is_table(path) else None
    return -1 if found is None else found


def has_published(path: str, run: RunId) -> bool:
    """Whether a table is there, and is the one that a run has published into: none made since."""
    return latest_txn_version(path, run) >= 0


def fenced(run: RunId, attempt: int) -> FencedError:
    """The error of an attempt that a later one has taken over from."""
    return FencedError(
        "CAP-FENCED",
        f"run {run.name}: attempt {attempt} was shut out of the target by a later one, or by "
        "another run that has claimed after it",
        f"see `capstan runs` for what became of {run.name}",
        run=run.name,
        attempt=attempt,
    )


def find_publish(target: str, run: str, since: int) -> tuple[Commit, Mapping[str, object]] | None:
    """The commit newer than version `since` by which a run published, with its note."""
    return _find(target, run, since, "publish")


def find_rollback(target: str, run: str, since: int) -> Commit | None:
    """The commit newer than version `since` by which a run was taken back."""
    found = _find(target, run, since, "rollback")
    return found[0] if found is not None else None


def _find(
    target: str, run: str, since: int, what: str
) -> tuple[Commit, Mapping[str, object]] | None:
    if not is_table(target):
        return None
    for commit in delta.commits_since(target, since):
        note = delta.note_of(commit)
        if note.get("run") == run and note.get(what):
            metrics = commit.get("operationMetrics")
            version = int(str(commit["version"]))
            return Commit(version, metrics if isinstance(metrics, dict) else {}), note
    return None


def publish(
    plan: Plan, run: RunId, attempt: int, rows: DataFrame, note: Mapping[str, object]
) -> Commit:
    """Put the rows into the target, in one commit; the caller's claim holds.

    Raises:
        FencedError: `CAP-FENCED` when a later attempt has begun.
        RangeLockedError: `CAP-CONFLICT` when other writers won again and again.
    """
    txn = run.change(attempt)
    note = {**note, "run": run.name, "attempt": attempt, "publish": True}
    if plan.request.mode is Mode.APPEND:
        commit = delta.append(rows, plan.target, txn=txn, note=note, merge_schema=True)
    elif plan.request.mode is Mode.MERGE:
        commit = delta.merge(rows, plan.target, plan.keys, txn=txn, note=note)
    elif is_empty(plan.target):
        # Delta would look for rows to replace all the same. What others add meanwhile is theirs.
        _require_inside(plan, rows)
        commit = delta.append(rows, plan.target, txn=txn, note=note, merge_schema=True)
    else:
        where = predicate(plan, rows.schema)
        commit = delta.replace(rows, plan.target, where, txn=txn, note=note, merge_schema=True)
    if commit is None or latest_txn_version(plan.target, run) != txn.version:
        raise fenced(run, attempt)
    return commit


def require_all_rows(plan: Plan, commit: Commit, staged: int) -> None:
    """Check from the commit's own metrics that it wrote as many rows as were audited.

    Raises:
        SystemFailureError: `CAP-PUBLISH` when it did not.
    """
    if plan.request.mode is Mode.MERGE or "numOutputRows" not in commit.metrics:
        return
    copied = int(commit.metrics.get("numCopiedRows", 0))
    written = int(commit.metrics["numOutputRows"]) - copied
    if written != staged:
        raise SystemFailureError(
            "CAP-PUBLISH",
            f"{plan.request.into}: {staged} rows were audited and {written} were published",
            "take it back with `capstan rollback`, and report this",
        )
