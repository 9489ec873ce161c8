"""The creation of a replay's target, or the check that the rows fit the table that exists."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, MapType, StructType

from capstan.core.config import Creation
from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import Plan
from capstan.replay.target.target_table import misfit, require_placed, schema_of
from capstan.storage.delta import delta
from capstan.storage.delta.table_creation import create_table
from capstan.storage.lake import children, is_table
from capstan.storage.ledger import coverage
from capstan.storage.ledger.moved_tables import register_named

MOST_PARTITIONS = 256
"""The most workers by which a new target is partitioned."""


def create_or_check(spark: SparkSession, plan: Plan, schema: StructType) -> None:
    """Create the target if it does not exist; else check that the rows fit it; then register it."""
    # Unless declared otherwise, copies are partitioned by worker while the stream has few workers:
    # Delta commits concurrent replacements of disjoint workers only when they touch different
    # partitions. With many workers, each would have a folder and a file of its own; then the later
    # of two replacements is repeated.
    if not is_table(plan.target):
        _require_free(plan)
        _record_gone(plan)
        _create(spark, plan, schema)
    else:
        _require_fit(spark, plan, schema)
    if plan.declared is not None and plan.declared.table is not None:
        register_named(spark, plan.lake, plan.declared.table, plan.target)


def _require_fit(spark: SparkSession, plan: Plan, schema: StructType) -> None:
    """Check that the rows of a replay fit the target that exists."""
    present = schema_of(spark, plan.target)
    kinds = {field.name.lower(): field.dataType.simpleString() for field in present}
    # Spark reads padded columns as strings, but the replay's strings would be padded too.
    kinds |= {name.lower(): kind for name, kind in delta.char_columns(plan.target).items()}
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if kinds.get(field.name.lower(), kind) != kind:
            present_kind = kinds[field.name.lower()]
            problem = f"is {present_kind} in the table, and {kind} in the replay"
            raise misfit(plan, field.name, problem)
    require_placed(plan, present)


def _create(spark: SparkSession, plan: Plan, schema: StructType) -> None:
    """Create the target, as declared."""
    declared = plan.declared.create if plan.declared and plan.declared.create else Creation()
    kinds = {field.name.lower(): field.dataType for field in schema}
    for name in declared.columns:
        if name.lower() not in kinds:
            raise InvalidRequestError(
                "CAP-TARGET-COLUMNS",
                f"target {plan.request.into} is to be partitioned or clustered by column {name}, "
                "which its rows do not have",
                f"its columns: {', '.join(schema.names)}",
            )
    for name in declared.partition_by or ():
        kind = kinds[name.lower()]
        if isinstance(kind, StructType | ArrayType | MapType):
            raise InvalidRequestError(
                "CAP-TARGET-COLUMNS",
                f"target {plan.request.into} cannot be partitioned by column {name}, which is "
                f"{kind.simpleString()}",
                "name a column without parts, or cluster by a part of it, such as _time.event",
            )
    few = len(plan.layout.labels) <= MOST_PARTITIONS and declared.cluster_by is None
    by_worker = (plan.layout.worker,) if plan.layout.worker and few else ()
    create_table(
        spark,
        plan.target,
        schema,
        properties=delta.KEEP_VERSIONS,
        partitions=declared.partition_by or by_worker,
        clusters=declared.cluster_by or (),
        declared=declared.properties,
    )


def _require_free(plan: Plan) -> None:
    """Check that the folder of a new table is empty."""
    files = [name for name in children(plan.target) if name[:1] not in "._"]
    if files:
        raise InvalidRequestError(
            "CAP-NAME",
            f"{plan.request.into!r} cannot be a target: it is a folder with other files, such as "
            f"{files[0]}, and no Delta table",
            "give another path; or turn these files into a table first (CONVERT TO DELTA)",
            target=plan.target,
        )


def _record_gone(plan: Plan) -> None:
    """Record the runs whose rows were lost with an earlier table at the same path."""
    covered = coverage.current_by_ledger(plan.lake, plan.target)
    # Checked after reading the ledger: another run may just have created the table and published.
    if covered and not is_table(plan.target):
        coverage.write_gone(plan.lake, plan.target, {entry.run for entry in covered})
