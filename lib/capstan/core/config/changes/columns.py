"""Columns of a row as DDL, and as parts of the SQL that takes them out of an envelope."""

from __future__ import annotations

import re
from dataclasses import dataclass

from capstan.core.sql_names import quoted, text_literal

_FIELD = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[A-Za-z_]\w*))\s*(?:\s|:)\s*(?P<type>\S.*?)\s*",
    re.DOTALL,
)
_OPENING, _CLOSING = "<(", ">)"


@dataclass(frozen=True, slots=True)
class RowColumn:
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
