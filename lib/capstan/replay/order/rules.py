"""Dependence of an expression on row order, given that of its columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from capstan.replay.order import functions as known
from capstan.replay.order.tree import FLOATS, Expression, Node

_DISTINCT = re.compile(r"\w+\(DISTINCT ")
_SKETCH = "is a sketch of the rows in the order they come"
_SORT = "sort_array(...) gives the elements an order"
_SUM = "adds up floats, and is rounded at each step"
_EXACT = "cast what is summed to DECIMAL, whose sums are exact, as in CAST({} AS DECIMAL(28, 6))"
_RATIO = "write sum({0}) / count({0}), each with the same DISTINCT, FILTER or OVER: both are exact"


class Grade(IntEnum):
    """The extent to which a value depends on row order."""

    CLOSE = 1
    """The last digits of a sum of floats."""
    SHUFFLED = 2
    """The order of an array's elements."""
    FREE = 3
    """The whole value."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The reason why a value depends on row order.

    Attributes:
        grade: The extent.
        expression: The expression that introduces it, as SQL.
        why: The effect of this expression.
        remedy: The replacement to write.
    """

    grade: Grade
    expression: str
    why: str
    remedy: str

    def used(self, what: str) -> Cause:
        """The cause after a use that can change the whole value."""
        if self.grade is Grade.FREE:
            return self
        return Cause(Grade.FREE, self.expression, f"{self.why}, and {what}", self.remedy)


def worst(causes: Iterable[Cause | None]) -> Cause | None:
    """The cause with the highest grade; None without causes."""
    existing = [cause for cause in causes if cause is not None]
    return max(existing, key=lambda cause: cause.grade, default=None)


@dataclass(slots=True)
class Rules:
    """The rules for expressions, over the columns analysed so far.

    Attributes:
        query: Analyses the plan of a subquery.
        columns: Causes of dependent columns by number.
        shared: Causes of common expressions by number.
    """

    query: Callable[[Node], Cause | None]
    columns: dict[int, Cause] = field(default_factory=dict)
    shared: dict[int, Cause | None] = field(default_factory=dict)

    def of(self, one: Expression) -> Cause | None:
        """The cause of an expression's dependence on row order; None without one."""
        special = _SPECIAL.get(one.kind)
        if special is not None:
            return special(self, one)
        if one.plan is not None:
            return worst((self.query(one.plan), *map(self.of, one.children)))
        own, below = _own(one), worst(map(self.of, one.children))
        if own is None or below is None:
            return own if below is None else _passed(one, below)
        if own.grade is below.grade is Grade.CLOSE:
            return own
        return below.used(f"{text_of(one)} is made of it")

    def _column(self, one: Expression) -> Cause | None:
        return None if one.id is None else self.columns.get(one.id)

    def _common(self, one: Expression) -> Cause | None:
        return None if one.id is None else self.shared.get(one.id)

    def _with(self, one: Expression) -> Cause | None:
        for each in one.children[1:]:
            if each.id is not None:
                self.shared[each.id] = self.of(each)
        return self.of(one.children[0])

    def _aggregate(self, one: Expression) -> Cause | None:
        """An aggregate function, with its filter condition if it has one."""
        chosen = worst(map(self.of, one.children[1:]))
        if chosen is not None:
            return chosen.used("rows are chosen by it")
        taken = worst(map(self.of, one.children[0].children))
        if taken is not None and _DISTINCT.match(one.sql):
            return taken.used("distinct values of it are taken")
        if one.children[0].kind == "Mode" and "WITHIN GROUP" in one.sql:
            return taken  # The least or the greatest of the most frequent values.
        return self.of(one.children[0])

    def _chosen(self, one: Expression) -> Cause | None:
        """A conditional value; a test whether a sum is zero is allowed, as in `nullif`."""
        choosing = one.children[:1] if one.kind == "If" else one.children[:-1:2]
        asked = (None if _is_zero_test(each) else self.of(each) for each in choosing)
        condition = worst(asked)
        if condition is not None:
            return condition.used("a value is chosen by it")
        return worst(self.of(each) for each in one.children if each not in choosing)

    def _extreme(self, one: Expression) -> Cause | None:
        value, by = one.children[:2]
        below = worst(map(self.of, one.children[1:]))
        if below is not None:
            return below.used(f"{text_of(one)} compares it")
        parts = _parts(by)
        if value not in parts and not columns_of(parts) >= value.columns:
            remedy = f"take it by struct({text_of(by)}, {text_of(value)})"
            why = f"takes any one of the rows that are equal in {text_of(by)}"
            return Cause(Grade.FREE, text_of(one), why, remedy)
        return self.of(value)

    def _listed(self, one: Expression) -> Cause | None:
        value = one.children[0]
        order = [each.children[0] for each in one.children if each.kind == "SortOrder"]
        below = worst(map(self.of, one.children))
        if below is not None:
            return below.used(f"{text_of(one)} makes text of it")
        if value in order or (order and columns_of(order) >= value.columns):
            return None
        remedy = f"write listagg(x) WITHIN GROUP (ORDER BY x), x being {text_of(value)}"
        return Cause(Grade.FREE, text_of(one), "lists values in the order they come", remedy)


_SPECIAL: Mapping[str, Callable[[Rules, Expression], Cause | None]] = {
    "AttributeReference": Rules._column,
    "CommonExpressionRef": Rules._common,
    "With": Rules._with,
    "AggregateExpression": Rules._aggregate,
    **dict.fromkeys(known.EXTREMES, Rules._extreme),
    "ListAgg": Rules._listed,
    "If": Rules._chosen,
    "CaseWhen": Rules._chosen,
}


def _own(one: Expression) -> Cause | None:
    """The cause that a function introduces itself."""
    text = text_of(one)
    if one.kind in known.FREE:
        return Cause(Grade.FREE, text, *known.FREE[one.kind])
    if known.SKETCH.fullmatch(one.kind) and one.kind not in known.SURE:
        return Cause(Grade.FREE, text, _SKETCH, "count exactly")
    if one.kind in known.SHUFFLED:
        return Cause(Grade.SHUFFLED, text, "lists values in the order they come", _SORT)
    if not one.deterministic and all(each.deterministic for each in one.children):
        return Cause(Grade.FREE, text, "is not deterministic", known.HELD)
    return _summed(one)


def _summed(one: Expression) -> Cause | None:
    """The cause of a function that adds up floats."""
    kinds = [each.type for each in one.children[:1]]
    if one.kind == "Average" and kinds == ["bigint"]:
        # Beyond 2^53, Spark's sum of BIGINT as DOUBLE is inexact; as BIGINT it is exact or fails.
        ratio = _RATIO.format(text_of(one.children[0]))
        return Cause(Grade.CLOSE, text_of(one), _SUM, ratio)
    of_floats = one.kind in known.SUMS and kinds and kinds[0] in FLOATS
    if (
        of_floats
        or one.kind in known.MOMENTS
        or (one.kind in known.OWN_CODE and one.type in FLOATS)
    ):
        summed = text_of(one.children[0]) if one.children else "x"
        return Cause(Grade.CLOSE, text_of(one), _SUM, _EXACT.format(summed))
    return None


def _passed(one: Expression, below: Cause) -> Cause | None:
    """The cause of a function over a dependent value."""
    if below.grade is Grade.CLOSE:
        if one.kind in known.BLIND:
            return None
        if one.kind in known.SMOOTH or (one.kind == "Cast" and one.type == "double"):
            return below
    if below.grade is Grade.SHUFFLED:
        if one.kind in known.SORTING or (one.kind == "ArraySort" and _is_natural(one)):
            return None
        if one.kind in known.PASSING and all(map(_takes_one, one.children)):
            return below
    return below.used(f"{text_of(one)} is made of it")


def _takes_one(one: Expression) -> bool:
    """Whether it is not a function of an array element and its index."""
    return one.kind != "LambdaFunction" or len(one.children) == 2


def _is_natural(one: Expression) -> bool:
    """Whether an array is sorted by its elements only, recognised by Spark's own comparison."""
    lambdas = [each for each in one.children if each.kind == "LambdaFunction"]
    return not lambdas or [e.kind for e in lambdas[0].walk()] == _NATURAL


_LEAVES = ["NamedLambdaVariable"] * 2
_NATURAL = [
    "LambdaFunction",
    *["If", "And", "IsNull", _LEAVES[0], "IsNull", _LEAVES[0], "Literal"],
    *["If", "IsNull", _LEAVES[0], "Literal"],
    *["If", "IsNull", _LEAVES[0], "Literal"],
    *["If", "LessThan", *_LEAVES, "Literal"],
    *["If", "GreaterThan", *_LEAVES, "Literal", "Literal"],
    *_LEAVES,
]


def _is_zero_test(one: Expression) -> bool:
    if one.kind not in ("EqualTo", "EqualNullSafe"):
        return False
    zeros = {"0", "0.0", "0.0D", "0D", "CAST(0 AS DOUBLE)", "CAST(0.0 AS DOUBLE)", "0.0BD"}
    return any(each.kind in ("Literal", "Cast") and each.sql in zeros for each in one.children)


def _parts(one: Expression) -> list[Expression]:
    """The values that rows are compared by: the fields of a struct, in order."""
    if one.kind in ("CreateNamedStruct", "Alias"):
        return [part for each in one.children for part in _parts(each)]
    return [one]


def columns_of(parts: Iterable[Expression]) -> frozenset[int]:
    """The columns that the values are equal to, alone or as the only field of a struct."""
    numbers: set[int] = set()
    for part in parts:
        inner = part
        while inner.kind == "GetStructField" and inner.children[0].type.count(":") == 1:
            inner = inner.children[0]
        if inner.kind == "AttributeReference" and inner.id is not None:
            numbers.add(inner.id)
    return frozenset(numbers)


def text_of(one: Expression) -> str:
    """An expression as readable text."""
    return one.sql or one.name or one.kind
