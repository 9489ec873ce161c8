"""Parsers of text in SQL: `from_json`, `from_csv` and `from_xml`, and the text they cannot parse.

Spark gives null for such text, and for a field of another type. It tells which text that was only
in a field of the result, which is requested here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn

from capstan.capture.source.text import json_text, line_checks

if TYPE_CHECKING:
    from pyspark.sql import Column

_FUNCTIONS = {"JsonToStructs": F.from_json, "CsvToStructs": F.from_csv, "XmlToStructs": F.from_xml}
_CORRUPT = "_corrupt_record"
_CORRUPT_OPTION = "columnnameofcorruptrecord"


@dataclass(frozen=True, slots=True)
class TextParser:
    """A parser in an analysed plan, for which text that does not parse is null."""

    node: Any
    options: dict[str, str]

    @classmethod
    def of(cls, node: Any) -> TextParser | None:
        """The parser; None for another expression."""
        if kind_of(node) not in _FUNCTIONS:
            return None
        pairs, options = node.options().iterator(), {}
        while pairs.hasNext():
            pair = pairs.next()
            options[str(pair._1()).lower()] = str(pair._2())
        return cls(node, options)

    @property
    def tells(self) -> bool:
        """Whether it says itself what it cannot parse: by failing, or in a field of its schema."""
        fails = self.options.get("mode", "").upper() == "FAILFAST"
        return fails or self._corrupt in self._names

    @property
    def sql(self) -> str:
        """Its SQL text."""
        return str(self.node.sql())

    @property
    def text_sql(self) -> str:
        """The SQL text of what it parses."""
        return str(self.node.child().sql())

    def reads(self, plan: Any) -> bool:
        """Whether its text is computed from the columns of a plan alone."""
        return is_computed_from(plan, self.node.child())

    def value(self) -> Column:
        """Its result; a struct has the text that does not parse as a field besides."""
        if not self._names or self.tells:
            return column_of(self.node)
        schema = f"{self.node.schema().toDDL()}, `{self._corrupt}` STRING"
        # With any option, Spark parses all fields, also when only some of them are needed.
        options = {**self.options, "mode": "PERMISSIVE", _CORRUPT_OPTION: self._corrupt}
        return _FUNCTIONS[kind_of(self.node)](self._text, schema, options)

    def unparsed(self, value: Column | None = None) -> Column:
        """The text if it cannot be parsed, or a field of it, or has more than is parsed; else null.

        `value` is a column with the result of the function `value`; by default it is computed.
        """
        rest = self._has_rest()
        if self.tells and self._corrupt in self._names:
            # Its own field has a text that does not parse, but not what follows a value.
            rest &= column_of(self.node).getField(self._corrupt).isNull()
        rest = F.when(rest, self._text)
        if self.tells:
            return rest
        result = self.value() if value is None else value
        # Of text without anything to parse, Spark makes no struct.
        nothing = F.when(result.isNull(), self._text)
        corrupt = [result.getField(self._corrupt)] if self._names else []
        return F.coalesce(*corrupt, nothing, rest)

    def _has_rest(self) -> Column:
        if kind_of(self.node) == "JsonToStructs":
            return json_text.has_rest(self._text, self.options)
        if kind_of(self.node) == "CsvToStructs":
            return line_checks.has_second_record(self._text, self.options)
        return F.lit(False)

    @property
    def _text(self) -> Column:
        return column_of(self.node.child()).cast("string")

    @property
    def _names(self) -> list[str]:
        """The fields of its result; none of a result that is no struct."""
        schema = self.node.schema()
        return list(schema.fieldNames()) if kind_of(schema) == "StructType" else []

    @property
    def _corrupt(self) -> str:
        return self.options.get(_CORRUPT_OPTION, _CORRUPT)


def kind_of(node: Any) -> str:
    """The class of a node of Spark's trees."""
    return str(node.getClass().getSimpleName())


def listed(nodes: Any) -> list[Any]:
    """A sequence of Scala as a list."""
    return [nodes.apply(i) for i in range(nodes.size())]


def is_computed_from(plan: Any, expression: Any) -> bool:
    """Whether an expression is computed from the columns of a plan alone."""
    parts = list(parts_of(expression))
    variables = {_identity(part) for part in parts if kind_of(part) == "NamedLambdaVariable"}
    functions = [part for part in parts if kind_of(part) == "LambdaFunction"]
    own = {_identity(each) for function in functions for each in listed(function.arguments())}
    return variables <= own and bool(expression.references().subsetOf(plan.outputSet()))


def parts_of(expression: Any) -> Iterator[Any]:
    """An expression and all its descendants."""
    yield expression
    for child in listed(expression.children()):
        yield from parts_of(child)


def _identity(variable: Any) -> str:
    return str(variable.exprId())


def column_of(expression: Any) -> Column:
    """An analysed expression as a column."""
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    assert jvm is not None
    return ClassicColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))
