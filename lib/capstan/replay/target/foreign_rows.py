"""Foreign rows and columns of a target, which a replay replaces or empties only with `--adopt`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.core.config import Mode
from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.replay.planning.plan import Plan
from capstan.replay.target import target_table
from capstan.replay.target.owned_rows import owned_rows_sql
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.row_restore import rows_with_keys
from capstan.replay.target.staged_output import default_columns
from capstan.replay.target.target_table import predicate, require_placed
from capstan.storage.delta import delta
from capstan.storage.delta.data_files import is_empty
from capstan.storage.lake import is_table
from capstan.storage.ledger.coverage import Covered


def require_own_rows(spark: SparkSession, owner: Ownership, rows: DataFrame | None = None) -> None:
    """Check that a replay replaces no foreign row; and with its rows, that it merges over none."""
    plan = owner.plan
    by_key = plan.request.mode is Mode.MERGE and plan.layout.time is not None
    if plan.request.adopt or by_key == (rows is None):
        return
    count = foreign_rows(spark, owner, rows)
    if not count:
        return
    others = (entry for entry in owner.within(plan.reach) if not owner.is_own(entry))
    runs = list(dict.fromkeys(f"{other.run} of stream {other.stream}" for other in others))
    raise InvalidRequestError(
        "CAP-ADOPT",
        f"target {plan.request.into} has {count} rows "
        + ("with keys of this replay" if by_key else "in the range")
        + " that this output was not the last to write"
        + (f"; runs of other outputs: {', '.join(runs[:3])}" if runs else ""),
        "inspect them, then replace them with --adopt"
        if plan.change_rule is None
        else "replay into a table of its own: these rows have no sequence to compare",
        target=plan.target,
        rows=count,
    )


def foreign_rows(spark: SparkSession, owner: Ownership, rows: DataFrame | None = None) -> int:
    """The number of rows of other outputs that a replay would replace or merge over.

    Without the rows to merge, or in a target without times, all foreign rows count.
    """
    plan = owner.plan
    if plan.request.mode is Mode.APPEND or not is_table(plan.target) or is_empty(plan.target):
        return 0
    merges = plan.request.mode is Mode.MERGE
    within = plan.reach
    require_placed(plan, target_table.schema_of(spark, plan.target))
    if owner.has_only_own(within):
        return 0
    present = delta.load(spark, plan.target)
    owned = owned_rows_sql(plan, present.schema, owner.covered, owner.labels, within)
    foreign = present.where(f"NOT coalesce({owned}, false)")
    if not merges:
        foreign = foreign.where(predicate(plan, present.schema))
    elif rows is not None and plan.layout.time is not None:
        foreign = rows_with_keys(foreign, rows, plan.keys)
    return foreign.count()


def require_columns_kept(spark: SparkSession, owner: Ownership, schema: StructType) -> None:
    """Check that replacing rows empties no foreign column, and adds no dropped one again."""
    # A column that no run of this output has written is foreign, and would be null in each replaced
    # row. A column that a run has written, and that is missing now, was dropped or renamed. A job
    # runs only when there are foreign columns.
    plan, request = owner.plan, owner.plan.request
    if request.adopt or request.mode is not Mode.REPLACE or not is_table(plan.target):
        return
    present = target_table.schema_of(spark, plan.target)
    names, replayed = _lower(present.names), _lower(schema.names)
    # Rows that are written anew get other numbers in identity columns, but not empty ones.
    path = plan.target
    computed = _lower([*delta.generated_columns(path), *delta.numbered_columns(path)])
    others = [f.name for f in present if f.name.lower() not in replayed | computed]
    lacking = [name for name in schema.names if name.lower() not in names]
    if not others and not lacking:
        return
    written = _written(owner)
    filled = _filled(spark, plan, present, [n for n in others if n.lower() not in written])
    if filled:
        counts = ", ".join(f"{name} ({count} rows)" for name, count in filled.items())
        raise InvalidRequestError(
            "CAP-ADOPT",
            f"target {request.into} has columns that no replay of this output has written, and "
            f"replacing rows would empty them: {counts}",
            "keep them in another table; or let them be emptied with --adopt",
            target=plan.target,
            columns=list(filled),
        )
    dropped = [name for name in lacking if name.lower() in written]
    if dropped:
        raise InvalidRequestError(
            "CAP-ADOPT",
            f"target {request.into} lacks columns that replays have written: "
            f"{', '.join(dropped)}; they were dropped or renamed",
            "declare the target's columns in streams.yaml; or add them again with --adopt",
            target=plan.target,
            columns=dropped,
        )


def _filled(
    spark: SparkSession, plan: Plan, schema: StructType, names: Sequence[str]
) -> dict[str, int]:
    """The number of rows to be replaced that would lose their value in each column; no zeros."""
    if not names:
        return {}
    rows = delta.load(spark, plan.target).where(target_table.predicate(plan, schema))
    # The rows that replace them have the defaults.
    defaults = default_columns(plan.target, schema)
    filled = [
        F.col(quoted(name))
        if name not in defaults
        else F.when(~F.col(quoted(name)).eqNullSafe(defaults[name]), F.col(quoted(name)))
        for name in names
    ]
    counts = [F.count(column).alias(f"n{i}") for i, column in enumerate(filled)]
    [row] = rows.agg(*counts).collect()
    return {name: count for name, count in zip(names, row, strict=True) if count}


def _written(owner: Ownership) -> set[str]:
    """The columns that published runs of the same output have written to the target."""
    written: set[str] = set()
    for covered in filter(owner.is_own, owner.covered):
        history = owner.histories.get(covered.run)
        intent = None if history is None else history.effective_intent
        columns = None if intent is None else intent.detail.get("columns")
        written |= _lower(columns if isinstance(columns, list) else _at(covered))
    return written


def _at(covered: Covered) -> list[str]:
    """The columns of the target after a run whose intent does not list its own."""
    try:
        table = delta.open_table(covered.scope.target, covered.target_version)
    except SystemFailureError:
        return []  # The log no longer reaches back to that version.
    return [field.name for field in table.schema().fields]


def _lower(names: Iterable[object]) -> set[str]:
    return {str(name).lower() for name in names}


def require_restorable(spark: SparkSession, plan: Plan) -> None:
    """Check that a rollback would not have to write rows that Delta alone numbers."""
    # It accepts no values for columns that are `GENERATED ALWAYS AS IDENTITY`. A rollback that only
    # takes rows away is possible. A job runs only when the target has such columns.
    numbered = delta.identity_columns(plan.target) if is_table(plan.target) else []
    if not numbered:
        return
    if plan.request.mode is Mode.MERGE:
        problem = "a merge into it could not be rolled back"
        hint = "use mode replace or append, over a range without rows"
    else:
        present = delta.load(spark, plan.target)
        if present.where(predicate(plan, present.schema)).isEmpty():
            return
        problem = "the range has rows, which a rollback could not put back"
        hint = "delete these rows first, if they may go for good"
    raise InvalidRequestError(
        "CAP-IDENTITY",
        f"target {plan.request.into}: {problem}, as Delta alone numbers its identity columns "
        + ", ".join(numbered),
        f"{hint}; or declare the columns GENERATED BY DEFAULT AS IDENTITY in a new table",
        target=plan.target,
        columns=numbered,
    )
