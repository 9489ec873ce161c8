"""The pages of the documentation: sections, tables and code blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# All pages for users and contributors, by path; decisions have separate tests.
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
}


def page(name: str) -> str:
    """The text of a page of `docs`, by its name without `.md`."""
    return PAGES[f"docs/{name}.md"]


def section(text: str, title: str) -> str:
    """The text under a heading, up to the next one of its kind."""
    level, actual = next(
        (marks, text.split(f"\n{marks} {title}\n", 1)[1])
        for marks in ("##", "###")
        if f"\n{marks} {title}\n" in text
    )
    return re.split(rf"^#{{2,{len(level)}}} ", actual, maxsplit=1, flags=re.MULTILINE)[0]


def table(text: str, head: str) -> list[list[str]]:
    """The rows of the table whose first heading is `head`."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r" \|(?= )", line.strip("|"))])
    return rows


def blocks(text: str, language: str) -> list[str]:
    """The code blocks in a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The `capstan` commands in a text, in their order, without the program's name."""
    return re.findall(r"(?:^    |`)(?:[A-Z_]+=\S+ )?capstan ([a-z][^`\n]*)", text, re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors of a page that a link may name."""
    return {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
