"""Columns of a target that its replays do not write, or have written and are now missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.core.config import Mode
from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.replay.planning.plan import Plan
from capstan.replay.target import target_table
from capstan.replay.target.default_columns import default_columns
from capstan.storage.delta import delta
from capstan.storage.lake import is_table
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.coverage import Covered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def require_columns_kept(spark: SparkSession, plan: Plan, schema: StructType) -> None:
    """Check that replacing rows empties no foreign column, and adds no dropped one again.

    A column that no run of this output has written is foreign, and would be null in each replaced
    row. A column that a run has written, and that is missing now, was dropped or renamed. As in
    Delta, names are compared without regard to case. A job runs only when there are foreign
    columns.
    """
    request = plan.request
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
    written = _written(plan)
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


def _written(plan: Plan) -> set[str]:
    """The columns that published runs of the same output have written to the target."""
    standing = coverage.current(plan.lake, plan.target)
    same_output = [covered for covered in standing if covered.output == plan.output]
    histories = runs.read_histories(plan.lake, target=plan.target) if same_output else {}
    written: set[str] = set()
    for covered in same_output:
        history = histories.get(covered.run)
        intent = None if history is None else history.effective_intent
        columns = None if intent is None else intent.detail.get("columns")
        written |= _lower(columns if isinstance(columns, list) else _at(plan, covered))
    return written


def _at(plan: Plan, covered: Covered) -> list[str]:
    """The columns of the target after a run whose intent does not list its own."""
    try:
        table = delta.open_table(plan.target, covered.target_version)
    except SystemFailureError:
        return []  # The log no longer reaches back to that version.
    return [field.name for field in table.schema().fields]


def _lower(names: Iterable[object]) -> set[str]:
    return {str(name).lower() for name in names}
