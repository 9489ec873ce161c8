"""Transforms whose output depends on the order of rows: told from Spark's plan, with no job.

Files that are compacted, another layout and another number of cores give Spark the same rows in
another order. So what depends on it would fail a later audit though nothing has changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capstan.audit import FloatTolerance
from capstan.core.config.order import Cause, Expression, Grade, Node, examine
from capstan.errors import InvalidRequestError
from capstan.replay.output.rows import played_rows
from capstan.replay.planning.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUALIFIER = re.compile(r"\b(records|__auto_generated_subquery_name)\.")
_PLAIN = frozenset({"AttributeReference", "Alias", "OuterReference", "LambdaFunction"})
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Ordered:
    """What of a transform's output depends on the order of the records.

    Attributes:
        close: Columns that do in the last digits, and are compared within its tolerance.
        refused: What cannot be compared: by column, or by an empty name which rows there are.
    """

    close: FloatTolerance
    refused: Mapping[str, Cause]


def require_comparable(spark: SparkSession, plan: Plan) -> None:
    """Check that an audit can compare the output of a transform; no job runs.

    Raises:
        InvalidRequestError: `CAP-ORDERED`, naming the column, the expression and what to write in
            its place; what `played_rows` raises.
    """
    if plan.transform is None:
        return
    refused = ordered(plan, played_rows(spark, plan)).refused
    for column, cause in refused.items():
        what = f"column {column}" if column else "which rows it gives"
        raise InvalidRequestError(
            "CAP-ORDERED",
            f"transform {plan.transform.name}: {what} depends on the order of rows: "
            f"{cause.expression} {cause.why}; maintenance, or another number of cores, would have "
            "it fail its audit",
            cause.remedy,
            transform=plan.transform.name,
            columns=[name for name in refused if name],
            expression=cause.expression,
        )


def close_of(spark: SparkSession, plan: Plan) -> FloatTolerance:
    """The columns of a replay's output that are compared within its transform's tolerance."""
    return (
        FloatTolerance()
        if plan.transform is None
        else ordered(plan, played_rows(spark, plan)).close
    )


def ordered(plan: Plan, rows: DataFrame) -> Ordered:
    """What of a replay's output depends on the order of the records; of a pipeline's nothing does.

    Args:
        plan: The replay.
        rows: The output; nothing of it is computed.
    """
    if plan.transform is None:
        return Ordered(FloatTolerance(), {})
    found, tolerance = examine(plan_of(rows)), plan.transform.tolerance
    told_apart = {plan.transform.time, plan.transform.worker, *plan.keys}
    close: list[str] = []
    refused = {"": found.rows[0]} if found.rows else {}
    for name, cause in found.columns.items():
        if cause.grade is not Grade.CLOSE:
            refused[name] = cause
        elif name in told_apart:
            refused[name] = cause.used("rows are told apart by it")
        elif rows.schema[name].dataType.simpleString() != "double":
            refused[name] = cause.used("it is compared only as a DOUBLE column of its own")
        elif not tolerance:
            refused[name] = cause.used("the declared tolerance is 0")
        else:
            close.append(name)
    return Ordered(FloatTolerance(tuple(close), tolerance if close else 0.0), refused)


def plan_of(rows: DataFrame) -> Node:
    """The analysed plan of a frame, as values."""
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    rules = jvm.org.apache.spark.sql.catalyst.optimizer
    return _Reader(rules.ReplaceExpressions).node(rows._jdf.queryExecution().analyzed())


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads trees of the JVM; functions that stand for others are read as these."""

    replace: Any

    def node(self, plan: Any) -> Node:
        return self._node(self.replace.apply(plan))

    def _node(self, plan: Any) -> Node:
        kind = plan.getClass().getSimpleName()
        return Node(
            kind,
            tuple(map(self._expression, _listed(plan.expressions()))),
            tuple(map(self._node, _listed(plan.children()))),
            tuple(map(self._expression, _listed(plan.output()))),
            plan.groupingExpressions().size() if kind == "Aggregate" else 0,
            _shared(kind, plan),
        )

    def _expression(self, one: Any) -> Expression:
        kind = one.getClass().getSimpleName()
        number, name, inner = None, "", None
        if kind in ("AttributeReference", "Alias"):
            number, name = one.exprId().id(), one.name()
        elif kind in ("CommonExpressionDef", "CommonExpressionRef"):
            number = one.id().id()
        elif kind in ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"):
            inner = self.node(one.plan())
        typed = kind not in ("SortOrder", "WindowSpecDefinition", "SpecifiedWindowFrame")
        sql = "" if kind in _PLAIN else _QUALIFIER.sub("", one.sql())
        return Expression(
            kind,
            one.dataType().simpleString() if typed else "",
            tuple(map(self._expression, _listed(one.children()))),
            number,
            name,
            sql if len(sql) <= _LONGEST else f"{sql[:_LONGEST]}...",
            one.deterministic(),
            inner,
        )


def _shared(kind: str, plan: Any) -> int | None:
    """The number of the common table expression that a step defines or reads."""
    if kind == "CTERelationDef":
        return int(plan.id())
    return int(plan.cteId()) if kind == "CTERelationRef" else None


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
