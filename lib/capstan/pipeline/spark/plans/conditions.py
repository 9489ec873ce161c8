"""Conditions of Arrow as conditions of Spark.

An expression of Arrow cannot be taken apart; it can be written as text and compared. So its text is
read, an expression is made of what was read, and only if Arrow finds both equal, it was understood.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from capstan.pipeline.graph.events import TIME
from capstan.pipeline.spark.plans.operator_plan import column, inexact

if TYPE_CHECKING:
    from pyspark.sql import Column

_OPERATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "and": operator.and_, "or": operator.or_, "==": operator.eq, "!=": operator.ne,
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_OPERATORS: Final = re.compile(r" (and|or|==|!=|<=|>=|<|>) ")
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_INTEGER: Final = re.compile(r"-?\d+")
_WORD: Final = re.compile(r"(true|false)\b")
_CALLS: Final = {"is_valid(": ")", "is_null(": ", {nan_is_null=false})", "invert(": ")"}


@dataclass(frozen=True, slots=True)
class Condition:
    """A part of a condition, in Arrow and, once a session is there, in Spark."""

    arrow: pc.Expression
    spark: Callable[[], Column]
    kind: str  # `integer`, `text`, `flag`, an Arrow type, or one that nothing else has


def read_condition(condition: object, schema: pa.Schema) -> Condition | None:
    """A condition over columns of a schema, if it was understood, and means the same in Spark."""
    if not isinstance(condition, pc.Expression):
        return None
    reader = _ConditionReader(str(condition), schema)
    try:
        result = reader.part()
    except _NotUnderstood:
        return None
    whole = reader.at == len(reader.text) and result.kind == "flag"
    return result if whole and result.arrow.equals(condition) else None


class _NotUnderstood(Exception):
    """Raised for a text that is not one of these conditions."""


class _ConditionReader:
    """Reads the text of an expression from left to right."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self.text, self.at = text, 0
        self._schema = schema
        self._names = sorted(schema.names, key=len, reverse=True)

    def part(self) -> Condition:
        """Read the part that begins here."""
        for name, end in _CALLS.items():
            if self._skip(name):
                return self._call(name, end)
        if self._skip("("):
            left, name = self.part(), self._match(_OPERATORS).strip()
            right = self.part()
            self._require(")")
            return _combined(left, name, right)
        return self._column() or self._literal()

    def _call(self, name: str, end: str) -> Condition:
        inner = self.part()
        self._require(end)
        arrow, spark = inner.arrow, inner.spark
        if name == "invert(":
            return Condition(~arrow, lambda: ~spark(), _same("flag", inner.kind))
        if name == "is_valid(":
            return Condition(arrow.is_valid(), lambda: spark().isNotNull(), "flag")
        return Condition(arrow.is_null(), lambda: spark().isNull(), "flag")

    def _column(self) -> Condition | None:
        for name in self._names:
            if self._skip(name):
                kind = "integer" if name == TIME else self._kind(name)
                return Condition(pc.field(name), partial(column, name), kind)
        return None

    def _kind(self, name: str) -> str:
        if inexact(self._schema, [name]) is not None:
            return f"at {self.at}"  # Not the kind of anything else, so it cannot be compared.
        kind = self._schema.field(name).type
        if pa.types.is_integer(kind):
            return "integer"
        if pa.types.is_boolean(kind):
            return "flag"
        return "text" if kind in (pa.string(), pa.large_string()) else str(kind)

    def _literal(self) -> Condition:
        kinds = ((_TEXT, "text"), (_WORD, "flag"), (_INTEGER, "integer"))
        for pattern, kind in kinds:
            found = pattern.match(self.text, self.at)
            if found is not None:
                self.at = found.end()
                value = json.loads(found[0])
                return Condition(pc.scalar(value), partial(F.lit, value), kind)
        raise _NotUnderstood

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise _NotUnderstood
        self.at = found.end()
        return found[0]

    def _skip(self, text: str) -> bool:
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def _require(self, text: str) -> None:
        if not self._skip(text):
            raise _NotUnderstood


def _combined(left: Condition, name: str, right: Condition) -> Condition:
    kind = _same(left.kind, right.kind)
    if name in ("and", "or"):
        _same("flag", kind)
    operation = _OPERATIONS[name]
    arrow = operation(left.arrow, right.arrow)
    return Condition(arrow, lambda: operation(left.spark(), right.spark()), "flag")


def _same(kind: str, other: str) -> str:
    if kind != other:
        raise _NotUnderstood
    return kind
