"""The rows of a merge without a sequence: of each key that of the latest time.

Runs replay later times after earlier ones (`CAP-ORDER`), and the row that is merged last wins. So
it does within a run, and how a range is cut into runs does not matter: rows of one time are in one
run. Which of several rows of one time is the later is unknown.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.core.config import Mode
from capstan.core.sql_names import quoted
from capstan.errors import CheckFailedError
from capstan.replay.output.change_rows import changes_of
from capstan.replay.planning.plan import Plan

_RANK = "_capstan_rank"


def rows_to_publish(plan: Plan, rows: DataFrame) -> DataFrame:
    """What a replay stages of its output: of a merge the changes, or the latest row of each key."""
    rule, time = plan.change_rule, plan.layout.time
    if rule is not None:
        return changes_of(rule, rows)
    if plan.request.mode is not Mode.MERGE or time is None:
        return rows
    order = [F.col(quoted(time)).desc()]
    kind = rows.schema[time].dataType
    if isinstance(kind, StructType):
        # Of an epoch and an event time, ranges are cut by the latter.
        order = [F.col(quoted(time))[name].desc() for name in reversed(kind.names)]
    window = Window.partitionBy(*map(quoted, plan.keys)).orderBy(*order)
    ranked = rows.withColumn(_RANK, F.rank().over(window))
    return ranked.where(F.col(_RANK) == 1).drop(_RANK)


def require_latest(plan: Plan, staged: DataFrame) -> None:
    """Check that a merge without a sequence has one row of each key: that of the latest time."""
    # When the table lacks a key, a merge inserts every row of that key.
    if plan.request.mode is not Mode.MERGE or plan.change_rule is not None:
        return
    repeated = staged.groupBy(*map(quoted, plan.keys)).count().where("count > 1")
    found = repeated.select(*(F.col(quoted(k)).cast("string") for k in plan.keys), "count").first()
    if found is None:
        return
    *values, count = found
    key = ", ".join(f"{name} {value}" for name, value in zip(plan.keys, values, strict=True))
    when = "no time" if plan.layout.time is None else "the same time"
    raise CheckFailedError(
        "CAP-KEYS",
        f"{count} rows of {key} have {when}, so which of them a merge keeps is unknown",
        "name the columns that order them in sequence_by, or further columns in keys",
    )
