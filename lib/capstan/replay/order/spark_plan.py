"""The analysed plan of a query in the JVM; no job runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

Columns = frozenset[int]
SUBQUERIES = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery")
_QUALIFIER = re.compile(r"\b(records|__auto_generated_subquery_name)\.")
_LONGEST = 120


class Tree:
    """A step of a plan, or an expression."""

    def __init__(self, jvm: Any, rules: tuple[Any, ...]) -> None:
        self.jvm, self._rules = jvm, rules
        self.kind: str = jvm.getClass().getSimpleName()

    @cached_property
    def children(self) -> list[Tree]:
        """The steps whose rows a step reads, or the operands of an expression."""
        return self.all("children")

    def all(self, name: str) -> list[Tree]:
        """The `expressions` of a step, or its columns: its `output`."""
        return self._trees(getattr(self.jvm, name)())

    @cached_property
    def keys(self) -> list[Columns]:
        """The sets of columns that Spark knows to identify the rows of a step."""
        keys = self._trees(self.jvm.distinctKeys().toSeq())
        return [columns_among(self._trees(key.jvm.toSeq())) for key in keys]

    @property
    def id(self) -> int:
        """The number of a column or its definition."""
        return int(self.jvm.exprId().id())

    @cached_property
    def type(self) -> str:
        """The type of an expression in Spark's notation."""
        return str(self.jvm.dataType().simpleString())

    @property
    def text(self) -> str:
        """The name of a column, or an expression as SQL."""
        if self.kind in ("AttributeReference", "Alias"):
            return str(self.jvm.name())
        text = _QUALIFIER.sub("", self.jvm.sql())
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

    def subquery(self) -> Tree:
        """The plan of a subquery."""
        return _simplified(self.jvm.plan(), self._rules)

    def _trees(self, sequence: Any) -> list[Tree]:
        return [Tree(sequence.apply(index), self._rules) for index in range(sequence.size())]


def columns_among(values: Iterable[Tree]) -> Columns:
    """The columns among expressions; -1 stands for others."""
    return frozenset(one.id if one.kind == "AttributeReference" else -1 for one in values)


def columns_read(values: list[Tree]) -> Columns:
    """The columns that expressions read."""
    return columns_among(values).union(*(columns_read(one.children) for one in values)) - {-1}


def plan_of(rows: DataFrame) -> Tree:
    """The analysed plan of a frame, in fewer kinds of steps and without unused columns."""
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    catalyst = jvm.org.apache.spark.sql.catalyst
    rules = (
        catalyst.analysis.EliminateSubqueryAliases,
        catalyst.analysis.EliminateView,
        catalyst.optimizer.ReplaceExpressions,
        catalyst.optimizer.RewriteWithExpression,
        catalyst.optimizer.InlineCTE(True, False),
        catalyst.optimizer.ReplaceIntersectWithSemiJoin,
        catalyst.optimizer.ReplaceExceptWithAntiJoin,
        catalyst.optimizer.ReplaceDistinctWithAggregate,
        catalyst.optimizer.ReplaceDeduplicateWithAggregate,
        *[catalyst.optimizer.ColumnPruning] * 3,
    )
    return _simplified(rows._jdf.queryExecution().analyzed(), rules)


def _simplified(plan: Any, rules: tuple[Any, ...]) -> Tree:
    for rule in rules:
        plan = rule.apply(plan)
    return Tree(plan, rules)
