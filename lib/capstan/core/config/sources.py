"""Models of sources in the declaration file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from capstan.core.config.changes import Changes, Preset, preset_of
from capstan.core.config.fields import CONFIG, Declared, Reference, Text, without_problem
from capstan.core.config.sql_rules import normalised, problem_with_columns, select_list

FILE_FORMATS = ("parquet", "csv", "json", "orc", "text", "avro", "delta")
"""Formats whose records lie in files, below a path."""

QUERY = "query"
"""The format of a stream that a streaming query of the user's records by `capture_into`."""

# Formats whose columns are those of the files, so that the tape's tell nothing of theirs once
# expressions have made others of them.
_OWN_COLUMNS = frozenset({"parquet", "csv", "json", "orc", "avro", "xml"})


def _expressions(value: object) -> object:
    """A list of expressions, also given as one text."""
    return tuple(select_list(value)) if isinstance(value, str) else value


def _some(expressions: tuple[str, ...]) -> tuple[str, ...]:
    if not expressions:
        raise ValueError("is empty; give at least one expression")
    return expressions


Expression = Annotated[Text, without_problem(problem_with_columns)]
"""SQL over the columns of one row."""
Expressions = Annotated[
    tuple[Expression, ...], BeforeValidator(_expressions), AfterValidator(_some)
]


_PART = r"(?:\w+|`[^`]+`)"
TableName = Annotated[str, Field(pattern=rf"^{_PART}(?:\.{_PART}){{0,3}}$")]
"""The name of a table in a catalog."""


@dataclass(frozen=True, slots=True, config=CONFIG)
class Source(Declared):
    """The source of a stream, in terms of Structured Streaming.

    Attributes:
        format: Spark's name of the source: `parquet`, `delta`, `kafka`; or `query` for a stream
            that a streaming query of yours records by `capstan.capture_into`. Empty for a
            function, and for a table by name.
        path: Folder, table or URI; None for formats without one. `{lake}` stands for the lake.
        options: Spark's options for the source, as text; or the arguments of the function.
        schema: Columns as DDL (`a BIGINT, b STRING`); None to let Spark infer them.
        select: SQL expressions that make the stream's columns of those of the source, as a list or
            as one text; None to take the source's columns.
        where: An SQL condition over both; rows for which it is not true are left out.
        function: `package.module:function`, which returns a streaming DataFrame; None for a source
            with a format.
        table: The name of a table in a catalog, such as `main.shop.orders`; None for a source with
            a format.
        changes: What a source of changes sends, instead of `select` and `where`, which are then
            those of the preset.
    """

    format: Annotated[str, Field(pattern=r"^([A-Za-z][A-Za-z0-9_.-]{0,127})?$")] = ""
    path: Text | None = None
    options: dict[str, str] = field(default_factory=dict)
    schema: Text | None = None
    select: Expressions | None = None
    where: Expression | None = None
    function: Reference | None = None
    table: TableName | None = None
    changes: Changes | None = None

    @property
    def options_by_name(self) -> dict[str, str]:
        """The options with their names in lower case: Spark's have any."""
        return {name.lower(): value for name, value in self.options.items()}

    @model_validator(mode="after")
    def _expanded(self) -> Source:
        preset = self.preset
        if preset is None:
            return self
        if (self.select, self.where) not in ((None, None), (preset.select, preset.where)):
            raise ValueError("has changes and a select or where of its own; remove one of them")
        options = dict(self.options)
        given = {name.lower(): value.lower() for name, value in options.items()}
        for name, value in preset.options:
            if given.get(name.lower(), value) != value:
                raise ValueError(f"has changes, which need the option {name}: {value}")
            if name.lower() not in given:
                options[name] = value
        own = {"select": preset.select, "where": preset.where, "options": options}
        for name, setting in own.items():
            object.__setattr__(self, name, setting)
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Source:
        if bool(self.format) + (self.function is not None) + (self.table is not None) != 1:
            raise ValueError("needs a format, a function or a table, and only one of them")
        if not self.format and (self.path or self.schema):
            raise ValueError(f"has a path or a schema, but is read from {self.kind}, without them")
        if self.format in FILE_FORMATS and self.path is None:
            raise ValueError(f"needs a path, because format {self.format} is read from one")
        more = (self.path, self.options, self.schema, self.selection)
        if self.format == QUERY and any(more):
            raise ValueError("has format query, so only the query knows what it reads")
        if self.selection and self.schema is None and self.format.lower() in _OWN_COLUMNS:
            raise ValueError(
                "needs a schema, because it has select or where: the columns of its files are "
                "compared with it"
            )
        return self

    @property
    def preset(self) -> Preset | None:
        """What `changes` stands for; None without it."""
        kafka = self.format == "kafka"
        return None if self.changes is None else preset_of(self.changes, kafka=kafka)

    @property
    def kind(self) -> str:
        """What its records come from, in words."""
        return self.format or ("a table by name" if self.function is None else "a function")

    @property
    def selection(self) -> str | None:
        """A hash of `select` and `where`, without comments and layout; None without both."""
        if self.select is None and self.where is None:
            return None
        select = None if self.select is None else list(map(normalised, self.select))
        where = None if self.where is None else normalised(self.where)
        return hashlib.sha256(json.dumps([select, where]).encode()).hexdigest()[:16]
