"""Transforms whose output depends on the order of rows, found in Spark's plan without a job.

Compacted files, another layout and another number of cores give Spark the same rows in another
order. Output that depends on it would fail a later audit although nothing has changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capstan.audit import FloatTolerance
from capstan.errors import InvalidRequestError
from capstan.replay.order import Cause, Expression, Grade, Node, examine
from capstan.replay.output.rows import played_rows
from capstan.replay.planning.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUALIFIER = re.compile(r"\b(records|__auto_generated_subquery_name)\.")
_PLAIN = frozenset({"AttributeReference", "Alias", "OuterReference", "LambdaFunction"})
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Ordered:
    """The parts of a transform's output that depend on the order of the records.

    Attributes:
        close: Columns whose last digits depend on it; they are compared within a tolerance.
        refused: The cause by column that cannot be compared; the empty name stands for the set of
            rows itself.
    """

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
    """The parts of a replay's output that depend on the order of the records.

    Copies and pipelines do not depend on it. The output is not computed.
    """
    transform = plan.computation.transform
    if transform is None:
        return Ordered(FloatTolerance(), {})
    causes, tolerance = examine(plan_of(rows)), transform.tolerance
    rule = plan.change_rule
    ordering = () if rule is None else (each.column for each in rule.sequence)
    identifying = {transform.time, transform.worker, *plan.keys, *ordering}
    close: list[str] = []
    refused = {"": causes.rows[0]} if causes.rows else {}
    for name, cause in causes.columns.items():
        if cause.grade is not Grade.CLOSE:
            refused[name] = cause
        elif name in identifying:
            refused[name] = cause.used("it identifies rows")
        elif rows.schema[name].dataType.simpleString() != "double":
            refused[name] = cause.used("a tolerance applies only to a DOUBLE column of its own")
        elif not tolerance:
            refused[name] = cause.used("the declared tolerance is 0")
        else:
            close.append(name)
    return Ordered(FloatTolerance(tuple(close), tolerance if close else 0.0), refused)


def plan_of(rows: DataFrame) -> Node:
    """The analysed plan of a frame, as Python values."""
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    rules = jvm.org.apache.spark.sql.catalyst.optimizer
    return _Reader(rules.ReplaceExpressions).node(rows._jdf.queryExecution().analyzed())


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reader of the JVM's trees; functions that stand for others are replaced by these."""

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
    """The id of the common table expression that a node defines or reads."""
    if kind == "CTERelationDef":
        return int(plan.id())
    return int(plan.cteId()) if kind == "CTERelationRef" else None


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
