"""Small HTML tables, by which notebooks show results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_MOST_ROWS = 50


def facts_html(title: str, facts: Mapping[str, object]) -> str:
    """A table of names and values; facts without a value are left out.

    Args:
        title: Its caption.
        facts: The values by name, in their order.
    """
    rows = [
        f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(_text(value))}</td></tr>"
        for name, value in facts.items()
        if value not in (None, "", [], (), {})
    ]
    return f"<table><caption>{escape(title)}</caption>{''.join(rows)}</table>"


def rows_html(title: str, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """A table of rows; of many, the first 50 and how many there are.

    Args:
        title: Its caption.
        columns: The columns shown, in their order.
        rows: The rows; a value that is missing is empty.
    """
    every = list(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(row.get(name)))}</td>" for name in columns) + "</tr>"
        for row in every[:_MOST_ROWS]
    )
    more = f"<p>The first {_MOST_ROWS} of {len(every):,}.</p>" if len(every) > _MOST_ROWS else ""
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text(inner)}" for key, inner in value.items())
    return str(value)
