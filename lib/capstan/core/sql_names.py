"""Names and texts as SQL writes them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A column name as a quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """A text as a SQL literal, with everything escaped."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
