"""Documents of headings, tables and lines: as markdown for pages that render it, else as text.

Airflow renders markdown where a person decides (*Required Actions*), and in the documentation of
DAGs. Its logs and *Rendered Templates* show text as it is, in letters of one width.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from capstan.reporting.formatting import cell_text

_LONGEST = 300
_MARKS = re.compile(r"[\\|`<\[\]]")


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a document, or of a part of it."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class DocumentTable:
    """A table; one of facts has names and values, and as text no head."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    of_facts: bool = False

    @classmethod
    def facts(cls, facts: Iterable[tuple[str, object]]) -> DocumentTable:
        """The facts that have a value."""
        return cls(("what", "value"), [fact for fact in facts if _line(fact[1])], of_facts=True)


@dataclass(frozen=True, slots=True)
class TextDocument:
    """Headings, tables and lines, in order."""

    parts: Sequence[Heading | DocumentTable | str]

    def __str__(self) -> str:
        """As text with aligned columns."""
        blocks: list[str] = []
        for part in self.parts:
            if isinstance(part, DocumentTable):
                blocks.append(_aligned(part))
            else:
                blocks.append(_line(part.text if isinstance(part, Heading) else part))
        return "\n\n".join(blocks)

    @property
    def markdown(self) -> str:
        """As markdown; what comes out of data is text and nothing else."""
        blocks: list[str] = []
        for part in self.parts:
            if isinstance(part, Heading):
                blocks.append(f"{'#' * part.level} {_escaped(part.text)}")
            elif isinstance(part, str):
                blocks.append(_escaped(part))
            else:
                head = [part.columns, ["---"] * len(part.columns)]
                lines = [*head, *(map(_escaped, row) for row in part.rows)]
                blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return "\n\n".join(blocks)


def _aligned(table: DocumentTable) -> str:
    rows = [[_line(value) for value in row] for row in table.rows]
    if not table.of_facts:
        rows = [list(table.columns), ["-" * len(name) for name in table.columns], *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _escaped(value: object) -> str:
    """A value as one line of markdown, with markup escaped."""
    # Unescaped data could end the cell, or be an image that a browser fetches.
    return _MARKS.sub(r"\\\g<0>", _line(value))


def _line(value: object) -> str:
    """A value as one line, shortened if it is very long, without control characters."""
    listed = isinstance(value, list | tuple | Mapping)
    text = cell_text(value) if listed else "" if value is None else str(value)
    text = " ".join(text.split())
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
