"""Transforms whose output depends on the order of rows by Spark's plan; audits find others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from capstan.audit import FloatTolerance
from capstan.errors import InvalidRequestError
from capstan.replay.order.causes import Cause, Grade, examine
from capstan.replay.order.spark_plan import plan_of
from capstan.replay.output.rows import played_rows
from capstan.replay.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Ordered:
    """Columns of float sums, and the causes of what is refused; of rows under an empty name."""

    close: FloatTolerance
    refused: Mapping[str, Cause]


def require_comparable(plan: Plan, rows: DataFrame) -> None:
    """Check that an audit can compare the output of a replay; no job runs."""
    refused = ordered(plan, rows).refused
    for column, cause in refused.items():
        part = f"column {column}" if column else "the set of rows"
        raise InvalidRequestError(
            "CAP-ORDERED",
            f"{plan.computation.title}: {part} depends on the order of rows: "
            f"{cause.expression} {cause.why}; it would fail its audit after maintenance, or on "
            "another number of cores",
            cause.remedy,
            transform=plan.computation.name,
            columns=[name for name in refused if name],
            expression=cause.expression,
        )


def close_of(spark: SparkSession, plan: Plan) -> FloatTolerance:
    """The columns of a replay's output that are compared within its transform's tolerance."""
    if plan.computation.transform is None:
        return FloatTolerance()
    return ordered(plan, played_rows(spark, plan)).close


def ordered(plan: Plan, rows: DataFrame) -> Ordered:
    """The parts of a replay's output that depend on the order; copies and pipelines have none."""
    transform = plan.computation.transform
    if transform is None:
        return Ordered(FloatTolerance(), {})
    refused = examine(plan_of(rows))
    sequence = () if plan.change_rule is None else plan.change_rule.sequence
    identifying = {
        transform.time,
        transform.worker,
        *plan.keys,
        *(each.column for each in sequence),
    }
    close: list[str] = []
    for name, cause in list(refused.items()):
        if cause.grade is not Grade.LAST_DIGITS:
            continue
        if name in identifying:
            refused[name] = cause.used("it identifies rows")
        elif rows.schema[name].dataType.simpleString() != "double":
            refused[name] = cause.used("a tolerance applies only to a DOUBLE column of its own")
        elif not transform.tolerance:
            refused[name] = cause.used("the declared tolerance is 0")
        else:
            close.append(name)
            del refused[name]
    return Ordered(FloatTolerance(tuple(close), transform.tolerance if close else 0.0), refused)
