"""The target of a replay: fencing, publishing, audits, and lookup of commits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.audit import Audit, AuditScope, Computed, Shape, audit_computed, audit_copy, shape_of
from capstan.audit.result import TAPE
from capstan.audit.row_checks import prepare
from capstan.core.config import Mode
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import FencedError, InvalidRequestError
from capstan.replay.order.order_dependence import ordered
from capstan.replay.output.change_rows import OWN, with_hashes
from capstan.replay.output.latest_rows import rows_to_publish
from capstan.replay.output.rows import Output, playing
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.stream_input import StreamInput
from capstan.replay.target.engine_sample import engine_part
from capstan.storage.delta import delta
from capstan.storage.delta.commits import CommitInfo
from capstan.storage.delta.delta import Commit
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import cached
from capstan.storage.lake import is_table
from capstan.storage.ledger.retirements import missing_boxes, retired_boxes, retired_error
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import History, Step


def partitions(path: str) -> list[str]:
    """The columns that a target is partitioned by."""
    return list(delta.open_table(path).metadata().partition_columns)


def require_placed(plan: Plan, schema: StructType) -> None:
    """Check that a table has the columns of worker and time."""
    for name in (plan.layout.worker, plan.layout.time):
        if name is not None and name not in schema.names:
            raise misfit(plan, name, "is missing, so its rows have no worker or time")


def schema_of(spark: SparkSession, path: str) -> StructType:
    """The columns of a Delta table, as Spark reads them."""
    # A session may read some types in another way.
    kind = f"columns in session {spark._jsparkSession.sessionUUID()}"
    return cached(kind, path, lambda: delta.load(spark, path).schema)


def misfit(plan: Plan, column: str, problem: str) -> InvalidRequestError:
    """The error of a column of the target that does not fit the replay."""
    return InvalidRequestError(
        "CAP-TARGET-SCHEMA",
        f"target {plan.request.into}: column {column} {problem}",
        "replay into another table, or declare the target's columns in streams.yaml",
        target=plan.target,
        column=column,
    )


def predicate(plan: Plan, schema: StructType) -> str:
    """The condition that the replay may change a row."""
    scope = plan.scope
    return plan.layout.predicate(schema, plan.time_type, scope.workers, scope.region)


def audit(spark: SparkSession, plan: Plan, rows: DataFrame, *, deep: bool = False) -> Audit:
    """Audit rows of the plan's workers and times, from staging or from the target.

    Where Spark computes a pipeline, the engine computes a part of its rows again, or all (`deep`).
    """
    columns = None
    if plan.request.mode is not Mode.MERGE:  # It leaves one row of each key.
        columns = record_shape(plan, rows.columns)
    if columns is not None:
        return audit_records(spark, plan, tagged(plan, rows), columns)
    require_computable(plan)
    part = None if deep else engine_part(plan, rows)
    if part is None:
        return _computed_again(spark, plan, rows, engine=True)
    result = _computed_again(spark, plan, rows, engine=False, parts=part.records)
    chosen = part.rows.where(predicate(part.plan, rows.schema))
    # Its records were compared with the index, or counted, by now.
    by_engine = _computed_again(spark, part.plan, chosen, engine=True, inputs=False)
    result = result if by_engine.passed else by_engine
    # Where a record differs, all were compared.
    inputs = () if result.totals.get(TAPE) else part.inputs
    return replace(result, engine=part.sample(by_engine.cells), inputs=inputs)


def _computed_again(
    spark: SparkSession,
    plan: Plan,
    rows: DataFrame,
    *,
    engine: bool,
    inputs: bool = True,
    parts: Mapping[str, Region] = MappingProxyType({}),
) -> Audit:
    with playing(spark, plan, again=True, engine=engine) as output:
        computed = rows_to_publish(plan, output.rows)
        shape = output_shape(plan, rows.schema, computed.columns)
        if plan.change_rule is not None:
            # Their hashes say all of what changes are, so little is sorted. Differing rows are
            # looked for in the changes themselves.
            own = {*plan.row_keys, *OWN}
            brief = replace(shape, columns=tuple(name for name in shape.columns if name in own))
            hashed = with_hashes(rows)
            result = audit_again(spark, plan, hashed, brief, computed, output, inputs=inputs)
            if not result.differing:
                return result
        return audit_again(spark, plan, rows, shape, computed, output, inputs=inputs, parts=parts)


def audit_again(
    spark: SparkSession,
    plan: Plan,
    rows: DataFrame,
    shape: Shape,
    computed: DataFrame,
    output: Output,
    *,
    inputs: bool = True,
    parts: Mapping[str, Region] = MappingProxyType({}),
) -> Audit:
    """Audit rows against those that were computed again, from the second output of a replay.

    The records of its `inputs` are compared with their index, unless they have been; of a stream
    that has one of the `parts`, only those in it are, and all others are counted.
    """
    depends = ordered(plan, output.rows)
    again = Computed(computed, plan.computation.kind, plan.row_keys, depends.close)
    streams = (*plan.inputs.keepers, *plan.inputs.others)
    scopes = [_scope(spark, plan, stream) for stream in streams]
    read = scopes if inputs else ()
    result = audit_computed(scopes[0], rows, shape, again, plan.checks, read, parts)
    return replace(result, near=replace(result.near, unsure=tuple(depends.refused)))


def require_computable(plan: Plan) -> None:
    """Check that all records from which an audit computes the rows again are on the tape."""
    for stream in plan.inputs:
        retired = _retired(plan, stream)
        if retired:
            hint = "the published rows stay, but they cannot be computed again"
            raise retired_error(stream.tape, retired[0], "the audit", hint)


def audit_records(spark: SparkSession, plan: Plan, tagged: DataFrame, shape: Shape) -> Audit:
    """Audit rows tagged with `_worker` and `_time` as copies of the plan's records."""
    retired = _retired(plan, plan.inputs.streams[0])
    scope = _scope(spark, plan, plan.inputs.keepers[0])
    return audit_copy(scope, tagged, shape, checks=plan.checks, retired=retired)


def _scope(spark: SparkSession, plan: Plan, stream: StreamInput) -> AuditScope:
    """What an audit reads of a stream."""
    return AuditScope(spark, stream.tape, stream.cut, stream.workers, plan.reads)


def _retired(plan: Plan, stream: StreamInput) -> list[Box]:
    """The times of retired records of a stream that the plan reads."""
    retired = retired_boxes(plan.lake, stream.tape)
    return missing_boxes(stream.tape, stream.cut, tuple(stream.workers), plan.reads, retired)


def record_shape(plan: Plan, columns: Collection[str]) -> Shape | None:
    """The columns of tagged rows that are records of the tape; None when rows are computed."""
    return plan.computation.record_shape(plan.inputs.tape, plan.declared, columns)


def tagged(plan: Plan, rows: DataFrame) -> DataFrame:
    """Rows of the target, those of a copy with `_worker` and `_time` as on tape."""
    return plan.computation.tagged(plan.layout, rows, plan.inputs.tape.time_type)


def output_shape(plan: Plan, schema: StructType, columns: Sequence[str]) -> Shape:
    """The columns of worker, time and data in the output of a transform or pipeline."""
    layout = plan.layout
    shape = shape_of(
        schema, plan.time_type, worker=layout.worker, time=layout.time, columns=columns
    )
    of_tape = plan.inputs.tape.time_type
    axes = plan.computation.axes(of_tape)
    kept = dict(zip(axes, shape.times, strict=True)) if shape.times else {}
    count = len(of_tape.coordinates)
    return replace(shape, times=tuple(map(kept.get, range(count))) if kept else ())


def require_checks(plan: Plan, rows: DataFrame) -> None:
    """Check that the declared checks fit the rows of a replay; no job runs."""
    if plan.checks:
        prepare(plan.checks, tagged(plan, rows))


def require_inside(plan: Plan, rows: DataFrame) -> None:
    """Check that rows lie within the workers and times of the replay."""
    # Rows outside the recorded range could neither be rolled back nor audited.
    if record_shape(plan, rows.columns) is not None:
        return  # The tape's records were read by the same workers and times.
    where = predicate(plan, rows.schema)
    if not rows.where(~F.coalesce(F.expr(where), F.lit(False))).isEmpty():
        raise delta.outside_range_error(plan.target, where)


def audit_target(
    spark: SparkSession, plan: Plan, version: int | None = None, *, deep: bool = False
) -> Audit:
    """Audit the target's rows of the plan's workers and times, now or at a version."""
    rows = delta.load(spark, plan.target, version)
    return audit(spark, plan, rows.where(predicate(plan, rows.schema)), deep=deep)


def fence(spark: SparkSession, path: str, run: RunId, attempt: int, by: str) -> None:
    """Exclude attempts of a run before `attempt` from the target, by a commit without rows."""
    txn = run.fence(attempt)
    note = {"run": by, "fence": run.name, "attempt": attempt}
    # Delta accepts no column that it numbers itself, not even without rows.
    empty = spark.createDataFrame([], schema_of(spark, path)).drop(*delta.identity_columns(path))
    while delta.append(empty, path, txn=txn, note=note) is None:
        newest = txn_version(delta.open_table(path), run)
        if newest == txn.version:
            return  # Another run has already fenced them.
        if newest > txn.version:
            raise fenced(run, attempt)
        # One of them has just changed the target.


def txn_version(table: OpenedTable | None, run: RunId) -> int:
    """The newest transaction of a run in its target, `2k` or `2k + 1`; -1 when there is none."""
    version = None if table is None else table.transaction_version(run.app)
    return -1 if version is None else version


def fenced(run: RunId, attempt: int) -> FencedError:
    """The error of a fenced attempt."""
    return FencedError(
        "CAP-FENCED",
        f"run {run.name}: attempt {attempt} was fenced by a later attempt, or by another run that "
        "has claimed the range since",
        f"see the state of {run.name} with `capstan runs`",
        run=run.name,
        attempt=attempt,
    )


def require_landed(commit: Commit | None, path: str, run: RunId, attempt: int) -> Commit:
    """The commit by which an attempt has changed a target, unless the attempt was fenced."""
    newest = txn_version(delta.open_table(path), run)
    if commit is None or newest != run.change(attempt).version:
        raise fenced(run, attempt)
    return commit


def may_have_landed(table: OpenedTable | None, history: History) -> bool:
    """Whether an attempt of a run may have published; mostly decided without reading the log."""
    first, run = history.first_intent, history.run_id
    return first is not None and txn_version(table, run) >= run.change(first.attempt).version


def find_landed(history: History) -> CommitInfo | None:
    """The publish of a run in its target's log, whether or not a ledger has it."""
    first, target = history.first_intent, history.last.target
    if first is None or not may_have_landed(delta.open_if_table(target), history):
        return None
    return _find(target, history.last.run, first.target_version, "publish")


def find_rollback(target: str, run: str, since: int) -> CommitInfo | None:
    """The commit newer than version `since` by which a run was rolled back."""
    return _find(target, run, since, "rollback")


def was_undone(table: OpenedTable | None, history: History) -> bool:
    """Whether the publish of a run was rolled back in its target, even if no ledger has it."""
    done, run = history.done, history.run_id
    assert done is not None
    # The run's newest transaction mostly decides this, without reading the target's log.
    last = max(row.attempt for row in history.rows if row.step is Step.DONE)
    if txn_version(table, run) <= run.change(last).version:
        return False
    return find_rollback(history.last.target, run.name, done.target_version) is not None


def _find(target: str, run: str, since: int, kind: str) -> CommitInfo | None:
    commits = delta.commits_since(target, since) if is_table(target) else []
    return next((c for c in commits if c.note.get("run") == run and c.note.get(kind)), None)
