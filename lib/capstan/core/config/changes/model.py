"""What a source of changes sends: the preset `changes`, and the columns of its rows."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from capstan.core.config.fields import CONFIG, Column, Columns, Declared, Text, without_problem
from capstan.core.sql_names import quoted, text_literal

Database = Literal["postgresql", "mysql", "mariadb", "sqlserver", "mongodb"]
"""Databases of Debezium's connectors whose positions are known."""

_FIELD = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[A-Za-z_]\w*))\s*(?:\s|:)\s*(?P<type>\S.*?)\s*",
    re.DOTALL,
)
_OPENING, _CLOSING = "<(", ">)"


class RowColumn(NamedTuple):
    """A column of the rows that change."""

    name: str
    kind: str

    @property
    def quoted(self) -> str:
        """Its name as SQL refers to it."""
        return quoted(self.name)


def columns_of(ddl: str) -> tuple[RowColumn, ...]:
    """The columns of `a BIGINT, b STRUCT<c: STRING>`."""
    found = [_FIELD.fullmatch(part) for part in _parts(ddl)]
    columns = [
        RowColumn((each["quoted"] or "").replace("``", "`") or each["plain"], each["type"])
        for each in found
        if each is not None
    ]
    if len(columns) != len(found):
        raise ValueError(f"{ddl!r} are no columns; write them as 'id BIGINT, name STRING'")
    names = [column.name.lower() for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"has column {twice!r} twice")
    return tuple(columns)


def _parts(ddl: str) -> list[str]:
    """What stands between the commas outside of brackets and backquotes."""
    parts, depth, within = [""], 0, False
    for sign in ddl:
        within ^= sign == "`"
        depth += 0 if within else (sign in _OPENING) - (sign in _CLOSING)
        if sign == "," and depth == 0 and not within:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def struct_type(columns: tuple[RowColumn, ...]) -> str:
    """The type of a struct with these columns."""
    return "STRUCT<" + ", ".join(f"{each.quoted}: {each.kind}" for each in columns) + ">"


def parsed(text: str, kind: str) -> str:
    """The SQL that reads JSON as a struct of this type."""
    return f"from_json({text}, {text_literal(kind)})"


def _problem_with_ddl(ddl: str) -> str | None:
    try:
        columns_of(ddl)
    except ValueError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True, kw_only=True, config=CONFIG)
class Changes(Declared):
    """What a source of changes sends, in place of `select` and `where`.

    Attributes:
        format: `debezium` for envelopes of Debezium as JSON, `delta` for the change feed of a
            Delta table, `kafka` for a compacted topic of Kafka, whose messages without a value
            delete.
        keys: The columns that identify a row.
        database: The database that Debezium reads, whose position orders the changes.
        columns: The columns of the rows as DDL; of a change feed, those of its table.
        unchanged: The text that stands for a value that Debezium did not get: the column keeps the
            value that the key had before.
        value: The column of the source with the message.
        key: The column with the key of the message; by default `key`, if the source is Kafka.
        offset: The column that orders messages which have the same position; by default `offset`,
            if the source is Kafka.
        timestamp: A column with the time of the message, which the stream gets as `__timestamp`; by
            default `timestamp`, if the source is Kafka.
    """

    format: Literal["debezium", "delta", "kafka"]
    keys: Columns
    database: Database | None = None
    columns: Annotated[Text, without_problem(_problem_with_ddl)] | None = None
    unchanged: Text | None = None
    value: Column = "value"
    key: Column | None = None
    offset: Column | None = None
    timestamp: Column | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Changes:
        debezium, delta = self.format == "debezium", self.format == "delta"
        if debezium and self.database is None:
            raise ValueError(f"needs a database, one of: {', '.join(get_args(Database))}")
        if not debezium and (self.database or self.unchanged):
            raise ValueError("has a database or unchanged, which only format debezium has")
        message = (self.columns, self.key, self.offset, self.timestamp)
        if delta and (any(message) or self.value != "value"):
            raise ValueError("has columns of a message, but a change feed has those of its table")
        if not delta and self.columns is None:
            raise ValueError("needs the columns of its rows, such as 'id BIGINT, name STRING'")
        self._check_columns()
        return self

    def _check_columns(self) -> None:
        names = [column.name for column in self.rows]
        missing = [name for name in self.keys if names and name not in names]
        if missing:
            raise ValueError(f"has key {missing[0]!r}, which is none of its columns")
        own = next((name for name in names if name.startswith("__")), None)
        if own is not None:
            raise ValueError(
                f"has a column {own!r}, but names that begin with __ are those of the envelope"
            )

    @property
    def rows(self) -> tuple[RowColumn, ...]:
        """The columns of the rows; none of a change feed."""
        return () if self.columns is None else columns_of(self.columns)
