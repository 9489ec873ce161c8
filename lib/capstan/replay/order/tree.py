"""An analysed plan as values: the part of Spark's trees that determines dependence on order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

FLOATS = ("double", "float")


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression of a plan.

    Attributes:
        kind: Spark's class name: `Sum`, `AttributeReference`.
        type: Its data type in Spark's notation; empty without one.
        children: Its operands.
        id: The number of the column, for a column or its definition; the number of the common
            expression, for such an expression or a reference to it.
        name: The name of that column.
        sql: Its SQL text; empty for columns. It is ignored in comparisons.
        deterministic: Whether Spark considers it deterministic.
        plan: The plan of a subquery.
    """

    kind: str
    type: str = ""
    children: tuple[Expression, ...] = ()
    id: int | None = None
    name: str = field(default="", compare=False)
    sql: str = field(default="", compare=False)
    deterministic: bool = True
    plan: Node | None = None

    def walk(self) -> Iterator[Expression]:
        """The expression and all its descendants."""
        yield self
        for child in self.children:
            yield from child.walk()
        if self.plan is not None:
            yield from self.plan.walk()

    @property
    def columns(self) -> frozenset[int]:
        """The numbers of the columns it reads."""
        numbers = (part.id for part in self.walk() if part.kind == "AttributeReference")
        return frozenset(number for number in numbers if number is not None)


@dataclass(frozen=True, slots=True)
class Node:
    """A step of a plan.

    Attributes:
        kind: Spark's class name: `Aggregate`, `Filter`.
        expressions: Its expressions, in the order of Spark's `expressions`.
        children: The steps whose rows it reads.
        output: Its columns.
        groups: The number of grouping expressions, which come first, of an aggregation.
        ref: The number of a common table expression, for its definition and its uses.
    """

    kind: str
    expressions: tuple[Expression, ...] = ()
    children: tuple[Node, ...] = ()
    output: tuple[Expression, ...] = ()
    groups: int = 0
    ref: int | None = None

    def walk(self) -> Iterator[Expression]:
        """All expressions of this step and the steps below."""
        for expression in self.expressions:
            yield from expression.walk()
        for child in self.children:
            yield from child.walk()

    @property
    def ids(self) -> tuple[int, ...]:
        """The numbers of its columns."""
        return tuple(column.id for column in self.output if column.id is not None)
