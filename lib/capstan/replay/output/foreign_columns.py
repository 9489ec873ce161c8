"""Columns of a target that its replays do not write, or did once: what others have made of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.core.config import Mode
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.replay.output import target_table
from capstan.replay.planning.plan import Plan
from capstan.storage import delta
from capstan.storage.lake import is_table
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.coverage import Covered
from capstan.storage.tape.region_sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def require_columns_kept(spark: SparkSession, plan: Plan, schema: StructType) -> None:
    """Check that replacing rows empties no column of others, and brings none back.

    A column that no run of this output has written is somebody else's, and would be null in each
    row that is replaced. One that a run has written, and that is not there now, somebody has
    dropped, or given another name. Names are told apart as Delta does: whatever their case.

    Args:
        spark: The session; a job runs only where there are columns of others.
        plan: The replay.
        schema: The columns of the rows that it puts out.

    Raises:
        InvalidRequestError: `CAP-ADOPT`, with the columns, and how many rows have values in them.
    """
    request = plan.request
    if request.adopt or request.mode is not Mode.REPLACE or not is_table(plan.target):
        return
    there = target_table.schema_of(spark, plan.target)
    names, own = _lower(there.names), _lower(schema.names)
    computed = _lower(delta.generated_columns(plan.target))
    others = [f.name for f in there if f.name.lower() not in own | computed]
    lacking = [name for name in schema.names if name.lower() not in names]
    if not others and not lacking:
        return
    written = _written(plan)
    filled = _filled(spark, plan, there, [n for n in others if n.lower() not in written])
    if filled:
        said = ", ".join(f"{name} ({count} rows)" for name, count in filled.items())
        raise InvalidRequestError(
            "CAP-ADOPT",
            f"target {request.into} has columns that no replay of this output has written, and "
            f"replacing rows would empty them: {said}",
            "keep them in a table of their own; or let them be emptied with --adopt",
            target=plan.target,
            columns=list(filled),
        )
    dropped = [name for name in lacking if name.lower() in written]
    if dropped:
        raise InvalidRequestError(
            "CAP-ADOPT",
            f"target {request.into} lacks columns that replays have written: "
            f"{', '.join(dropped)}; somebody has dropped them, or given them other names",
            "declare the target's columns in streams.yaml; or have them added again with --adopt",
            target=plan.target,
            columns=dropped,
        )


def _filled(
    spark: SparkSession, plan: Plan, there: StructType, names: Sequence[str]
) -> dict[str, int]:
    """In how many of the rows that would be replaced these columns have a value; no zeros."""
    if not names:
        return {}
    rows = delta.load(spark, plan.target).where(target_table.predicate(plan, there))
    counts = [F.count(F.col(quoted(name))).alias(f"n{i}") for i, name in enumerate(names)]
    [found] = rows.agg(*counts).collect()
    return {name: count for name, count in zip(names, found, strict=True) if count}


def _written(plan: Plan) -> set[str]:
    """The columns that runs of the same output have put into the target and that stand there."""
    mine = [x for x in coverage.current(plan.lake, plan.target) if x.output == plan.output]
    histories = runs.read_histories(plan.lake, target=plan.target) if mine else {}
    found: set[str] = set()
    for each in mine:
        history = histories.get(each.run)
        intent = None if history is None else history.effective_intent
        columns = None if intent is None else intent.detail.get("columns")
        found |= _lower(columns if isinstance(columns, list) else _at(plan, each))
    return found


def _at(plan: Plan, covered: Covered) -> list[str]:
    """The columns of the target as a run has left it which did not write down its own."""
    try:
        table = delta.open_table(plan.target, covered.target_version)
    except SystemFailureError:
        return []  # The log does not go back to that version any more.
    return [field.name for field in table.schema().fields]


def _lower(names: Iterable[object]) -> set[str]:
    return {str(name).lower() for name in names}
