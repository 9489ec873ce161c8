"""Selection: the stream's columns, made of the source's by `source.select` and `source.where`.

A fix is one as well: it makes columns of the rows of `late`.

Expressions see one record at a time, and must be repeatable. Text that `from_json`, `from_csv` or
`from_xml` cannot parse is never a silent null: the record goes to `late`, with the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from capstan.capture.source.text import raw_text
from capstan.capture.source.text.text_parsers import (
    TextParser,
    column_of,
    is_computed_from,
    kind_of,
    listed,
    parts_of,
)
from capstan.core.config.sql_rules import without_stars
from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError, translation
from capstan.spark.clock_literals import clock_literal
from capstan.spark.project_home import set_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from capstan.core.config import Source

HIDDEN = "capstan's {}"
"""The form of names that no column of a tape can have."""

# Steps of a plan that take one row at a time.
_ROW_BY_ROW = frozenset({"Project", "Generate", "Filter"})
_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "InSubquery", "ListQuery", "LateralSubquery"})
# Generators that make no row of an empty value, and those that make a row of nulls instead.
_OUTER = {"Explode": F.explode_outer, "PosExplode": F.posexplode_outer, "Inline": F.inline_outer}
_OPENED = re.compile(r"(?P<value>.*\S)\s*\.\s*\*", re.DOTALL)
_PART = r"(?:\w+|`[^`]*`)"
_NAME = re.compile(rf"{_PART}(?:\s*\.\s*{_PART})*")
# Errors of data have the class 22 in SQL's standard; P0001 is that of `raise_error`. The condition
# is the last one before it: others are of the query that the error has ended.
_DATA_ERROR = re.compile(
    r"\[(?P<name>[A-Z][A-Z0-9_.]{5,})\]\s*(?P<text>(?:(?!\[[A-Z][A-Z0-9_.]{5,}\]).)*?)\s*"
    r"SQLSTATE: (?:22\w{3}|P0001)",
    re.DOTALL,
)
# The error of `from_avro` has no condition.
_NOT_AVRO = "Malformed records are detected in record parsing. Current parse Mode: "
_LONGEST = 200
_DECLARED, _FIX = "source.select or where", "the fix"
_OWN_FUNCTIONS = "use Spark's own functions; others can make a stream's columns in source.select"


def selected(
    frame: DataFrame, stream: str, source: Source, carried: Mapping[str, Column]
) -> DataFrame:
    """The records of a source, as its declaration selects them.

    They have the selected columns, the `carried` ones (their names are `HIDDEN`), and
    `raw_text.COLUMN` if records can be malformed, `raw_text.NO_ROW` if they can make no row.
    """
    if source.selection is None:
        further = [column.alias(name) for name, column in carried.items()]
        return frame.select("*", *further) if further else frame
    select, hidden = source.select or ("*",), dict(carried)
    return _Selection(frame, stream, select, source.where, hidden).computed()


def fixed(
    frame: DataFrame, stream: str, select: Sequence[str], carried: Mapping[str, Column]
) -> DataFrame:
    """Rows of `late` with the columns that a fix makes of them, and as `selected` says.

    The functions of a fix are Spark's own: it comes with a request, which can bring no code.
    """
    return _Selection(frame, stream, select, None, dict(carried), _FIX).computed()


def selection_failed(stream: str, source: Source, error: Exception) -> InvalidRequestError | None:
    """The error for a record on which a declared expression failed; None for any other error."""
    return None if source.selection is None else _failed(stream, _DECLARED, error)


def fix_failed(stream: str, error: Exception) -> InvalidRequestError | None:
    """The error for a record on which a fix failed; None for any other error."""
    return _failed(stream, _FIX, error)


def _failed(stream: str, what: str, error: Exception) -> InvalidRequestError | None:
    text = str(error)
    if _NOT_AVRO in text:
        return _refused(
            stream,
            what,
            "fails for a record: from_avro cannot decode its value",
            "give from_avro the schema that the values were written with, and nothing that stands "
            "before them; or add map('mode', 'PERMISSIVE'), by which such a value is null",
        )
    found = _DATA_ERROR.search(text)
    if found is None:
        return None
    return _refused(
        stream,
        what,
        f"fails for a record: {found['name']}: {' '.join(found['text'].split())[:_LONGEST]}",
        "write it so that it is null for such a record, as try_cast and try_divide are; then run "
        "again",
    )


@dataclass(slots=True)
class _Selection:
    """The expressions of a source over its rows."""

    frame: DataFrame
    stream: str
    select: Sequence[str]
    where: str | None
    # Columns beside those of the source: carried ones, structs that an expression opens with `.*`,
    # and what a generator takes, so that each is computed once.
    hidden: dict[str, Column]
    what: str = _DECLARED
    # Each parsed text if it cannot be parsed; else null.
    raw: list[Column] = field(default_factory=list)
    no_row: list[Column] = field(default_factory=list)  # whether a record makes no row
    generates: bool = False
    # The parsers whose text is in `raw`, and their texts, as SQL.
    kept: set[str] = field(default_factory=set)

    def computed(self) -> DataFrame:
        """The rows, or the error of an expression that Spark refuses."""
        try:
            if self.what == _FIX:
                self._require_own_functions()
            return self._rows()
        except PySparkException as error:
            problem = f"cannot be computed: {translation.root_message(error)}"
            if "AVRO_NOT_LOADED" in str(error):
                self._refuse(problem, f"run {set_up('avro')} first", error)
            whose = "the source" if self.what == _DECLARED else "the table `late`"
            columns = ", ".join(self._visible.columns)
            self._refuse(problem, f"use SQL over the columns of {whose}: {columns}", error)

    def _rows(self) -> DataFrame:
        carried = tuple(self.hidden)
        if raw_text.COLUMN in self.frame.columns:
            self.raw.append(F.col(quoted(raw_text.COLUMN)))
        if raw_text.NO_ROW in self.frame.columns:
            self.no_row.append(F.col(quoted(raw_text.NO_ROW)))
        columns: list[Column] = []
        for item in self.select:
            columns += self._columns(item, columns)
        probe = self._filtered(self._staged.select(*columns))
        self._require_repeatable(probe)
        parts = list(self._expressions(probe))
        if self.what == _FIX and self.generates:
            self._refuse("makes several records of one", "leave out generators such as explode")
        self._keep_avro(parts)
        parsers = {p.sql: p for p in map(TextParser.of, parts) if p is not None}
        for parser in parsers.values():
            if self._checked(parser):
                self._keep(parser)
        columns += [F.col(quoted(name)) for name in carried]
        # Such a record is not left out: its values would decide about it, and it has none.
        stay: list[Column] = []
        if self.raw:
            columns.append(F.coalesce(*self.raw).alias(raw_text.COLUMN))
            stay.append(F.col(quoted(raw_text.COLUMN)).isNotNull())
        if self.no_row:
            columns.append(reduce(Column.__or__, self.no_row).alias(raw_text.NO_ROW))
            stay.append(F.col(quoted(raw_text.NO_ROW)))
        return self._filtered(self._staged.select(*columns), stay)

    @property
    def _visible(self) -> DataFrame:
        return self.frame.drop(raw_text.COLUMN, raw_text.NO_ROW)

    @property
    def _staged(self) -> DataFrame:
        return self.frame.select("*", *(c.alias(name) for name, c in self.hidden.items()))

    def _sql(self, text: str) -> Column:
        """An expression; `*` in it stands for the columns of the source."""
        return F.expr(self._starless(text))

    def _starless(self, text: str) -> str:
        return without_stars(text, ", ".join(map(quoted, self._visible.columns)))

    def _filtered(self, rows: DataFrame, stay: Sequence[Column] = ()) -> DataFrame:
        if self.where is None:
            return rows
        return rows.where(reduce(Column.__or__, [*stay, self._sql(self.where)]))

    def _made(self, item: str, before: Sequence[Column]) -> list[Column]:
        """The columns of an expression, which may name those `before` it."""
        # Of a generator, also for a record that makes no row.
        value = self._sql(item)
        if self.generates:  # Spark takes one generator.
            return [value]
        known = self._staged.drop(raw_text.COLUMN, raw_text.NO_ROW)
        made = known.select(*before, value)
        plan = _analyzed(made)
        step = plan if kind_of(plan) == "Generate" else plan.children().apply(0)
        self.generates = kind_of(step) == "Generate"
        if not self.generates or step.outer():
            return [value]
        again = _OUTER.get(kind_of(step.generator()))
        if again is None:
            return [value]
        node = step.generator().child()
        parser, several = TextParser.of(node), self._hide("several", column_of(node))
        if parser is not None and self._checked(parser):
            self._keep(parser, several)
            # Of a text that is malformed, the whole is kept, and no part is a record.
            several = F.when(parser.unparsed(several).isNull(), several)
        self.no_row.append(~F.coalesce(F.size(several) > 0, F.lit(False)))
        names = made.columns[len(known.select(*before).columns) :]
        return [again(several).alias(*names)]

    def _hide(self, what: str, value: Column) -> Column:
        """A value that is computed once, beside the columns of the source."""
        name = HIDDEN.format(f"{what} {len(self.hidden)}")
        self.hidden[name] = value
        return F.col(quoted(name))

    def _keep(self, parser: TextParser, value: Column | None = None) -> None:
        """Keep the text of a parser where it cannot be parsed, once."""
        if parser.sql in self.kept or (parser.tells and parser.text_sql in self.kept):
            return
        self.raw.append(parser.unparsed(value))
        self.kept |= {parser.sql, parser.text_sql}

    def _keep_avro(self, parts: Sequence[Any]) -> None:
        """Keep values of Avro of which something is not decoded."""
        plan = _analyzed(self.frame)
        values = {str(part.sql()): part for part in parts if is_avro(part)}
        self.raw += [with_rest(v) for v in values.values() if is_computed_from(plan, v.first())]

    def _columns(self, item: str, before: Sequence[Column]) -> list[Column]:
        """The columns that an expression makes, behind others."""
        if item.startswith("*"):
            return [F.col(quoted(n)) for n in self._visible.select(F.expr(item)).columns]
        opened = _OPENED.fullmatch(item)
        if opened is None or _NAME.fullmatch(opened["value"]):
            return self._made(item, before)
        value = self._sql(opened["value"])
        alone = self._visible.select(value.alias("value"))
        kind = alone.schema["value"].dataType
        if not isinstance(kind, StructType):
            self._refuse(
                f"opens with .* what is {kind.simpleString()}: {opened['value']}",
                "open a STRUCT, or leave out the .*",
            )
        parser = TextParser.of(_analyzed(alone).expressions().apply(0).child())
        keeps = parser is not None and self._checked(parser)
        struct = self._hide("struct", parser.value() if parser is not None and keeps else value)
        if parser is not None and keeps:
            self._keep(parser, struct)
        return [struct.getField(each).alias(each) for each in kind.names]

    def _require_repeatable(self, probe: DataFrame) -> None:
        for text in (*self.select, self.where or ""):
            moment = clock_literal(text, probe)
            if moment is not None:
                self._refuse(f"takes the moment {moment} from the clock", "use values of records")
        for step in self._steps(probe):
            if kind_of(step) not in _ROW_BY_ROW:
                self._refuse(
                    f"takes more than one record at a time, by {kind_of(step)}",
                    "leave aggregates and windows to a transform or a pipeline",
                )
            for expression in listed(step.expressions()):
                if not expression.deterministic():
                    self._refuse(
                        f"differs whenever it is computed: {expression.sql()}",
                        "use functions that depend on nothing but the record",
                    )
        if any(kind_of(part) in _SUBQUERIES for part in self._expressions(probe)):
            self._refuse("has a subquery, whose table changes", "use the columns of the record")

    def _require_own_functions(self) -> None:
        """Check that all functions are Spark's own, before any other is looked for."""
        catalyst = self.frame.sparkSession._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
        parser = self.frame._jdf.sparkSession().sessionState().sqlParser()
        registry = getattr(catalyst.analysis, "FunctionRegistry$")
        known = getattr(registry, "MODULE$").builtin()
        for item in self.select:
            opened = _OPENED.fullmatch(item)
            text = self._starless(item if opened is None else opened["value"])
            for part in parts_of(parser.parseExpression(text)):
                if kind_of(part) == "ExpressionWithUnresolvedIdentifier":
                    self._refuse("calls a function that IDENTIFIER names", _OWN_FUNCTIONS)
                if kind_of(part) != "UnresolvedFunction":
                    continue
                name = ".".join(listed(part.nameParts()))
                if not known.functionExists(catalyst.FunctionIdentifier(name)):
                    self._refuse(f"calls {name}, which is no function of Spark", _OWN_FUNCTIONS)

    def _steps(self, probe: DataFrame) -> Iterator[Any]:
        """The steps of a plan above the rows of the source."""
        plan = _analyzed(probe)
        for _ in range(_height(plan) - _height(_analyzed(self.frame))):
            yield plan
            plan = plan.children().apply(0)

    def _expressions(self, probe: DataFrame) -> Iterator[Any]:
        for step in self._steps(probe):
            for expression in listed(step.expressions()):
                yield from parts_of(expression)

    def _checked(self, parser: TextParser) -> bool:
        """Whether a parser's text is a value of the source's record, so that it can be kept."""
        reads = parser.reads(_analyzed(self.frame))
        if not reads and not parser.tells:
            self._refuse(
                f"parses a text that is no value of the source's record: {parser.sql}",
                "apply from_json to columns of the source; or add map('mode', 'FAILFAST'), by "
                "which text that does not parse ends the capture",
            )
        return reads

    def _refuse(self, problem: str, hint: str, error: Exception | None = None) -> NoReturn:
        raise _refused(self.stream, self.what, problem, hint) from error


def _refused(stream: str, what: str, problem: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-SELECT", f"stream {stream}: {what} {problem}", hint, stream=stream
    )


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _height(plan: Any) -> int:
    """The number of steps from a plan down to its first source."""
    steps = 1
    while plan.children().size():
        plan, steps = plan.children().apply(0), steps + 1
    return steps


_LENGTH = 16
_REST = {"name": "rest", "type": {"type": "fixed", "name": "capstan_rest", "size": _LENGTH}}


def is_avro(node: Any) -> bool:
    """Whether a node of an analysed plan decodes Avro by a schema that is known beforehand."""
    return kind_of(node) == "FromAvro" and kind_of(node.second()) == "Literal"


def with_rest(node: Any) -> Column:
    """The value, in hexadecimal, if bytes follow what `from_avro` decodes of it; else null."""
    # A hash of the value is put behind it, and decoded after it: if anything stands between them,
    # that is decoded in its place.
    value = column_of(node.first())
    behind = F.unhex(F.md5(value))
    written, read = (
        json.dumps({"type": "record", "name": "capstan_whole", "fields": fields})
        for fields in (
            [{"name": "value", "type": json.loads(str(node.second().value()))}, _REST],
            [_REST],
        )
    )
    options = {"avroSchema": read, "mode": "PERMISSIVE"}
    rest = from_avro(F.concat(value, behind), written, options).getField("rest")
    return F.when(rest != behind, F.hex(value))
