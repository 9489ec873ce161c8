"""An analysed plan as values: the part of Spark's trees that says what depends on an order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

FLOATS = ("double", "float")


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression of a plan.

    Attributes:
        kind: Spark's name of its class: `Sum`, `AttributeReference`.
        type: Its data type as Spark writes it; empty where it has none.
        children: What it is made of.
        id: Of a column and of what gives one its name: the number of the column. Of a common
            expression, and of what stands for it, the number of that.
        name: The name of that column.
        sql: What it looks like; empty for columns. It is no part of what makes two equal.
        deterministic: Whether Spark takes it for that.
        plan: The query inside, of a subquery.
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
        """It and all that it is made of."""
        yield self
        for child in self.children:
            yield from child.walk()
        if self.plan is not None:
            yield from self.plan.walk()

    @property
    def columns(self) -> frozenset[int]:
        """The numbers of the columns that it takes values from."""
        found = (each.id for each in self.walk() if each.kind == "AttributeReference")
        return frozenset(number for number in found if number is not None)


@dataclass(frozen=True, slots=True)
class Node:
    """A step of a plan.

    Attributes:
        kind: Spark's name of its class: `Aggregate`, `Filter`.
        expressions: All that it has, in the order of Spark's `expressions`.
        children: The steps whose rows it takes.
        output: Its columns.
        groups: Of an aggregation, how many of the expressions are those that it groups by.
        ref: The number of a common table expression: of its definition, and where it is used.
    """

    kind: str
    expressions: tuple[Expression, ...] = ()
    children: tuple[Node, ...] = ()
    output: tuple[Expression, ...] = ()
    groups: int = 0
    ref: int | None = None

    def walk(self) -> Iterator[Expression]:
        """All its expressions, and those of the steps below."""
        for each in self.expressions:
            yield from each.walk()
        for child in self.children:
            yield from child.walk()

    @property
    def ids(self) -> tuple[int, ...]:
        """The numbers of its columns."""
        return tuple(column.id for column in self.output if column.id is not None)
