"""Registered SQL text: normalised for its hash, and held to one deterministic query."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Longest first: raw strings keep their backslashes, so they end at the first quote.
_TOKEN = re.compile(
    r"""
    (?P<text> \b[rR](?:'[^']*'|"[^"]*")
            | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` )
  | (?P<skip> --[^\n]* | /\*.*?\*/ | \s+ )
  | (?P<word> [A-Za-z_][A-Za-z0-9_]* )
  | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_QUERY_WORDS = ("select", "with", "from")
# A second computation must give the same rows, so nothing may draw on chance, clock or layout.
_UNSTABLE = frozenset((
    "current_date", "current_time", "current_timestamp", "curdate", "now", "localtimestamp",
    "getdate", "rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle",
    "monotonically_increasing_id", "spark_partition_id", "input_file_name",
    "input_file_block_start", "input_file_block_length",
))  # fmt: skip


def normalised(sql: str) -> str:
    """`sql` without comments, each run of blanks as one space; quoted text is kept as it is."""
    return "".join(text if kind != "skip" else " " for kind, text in _squeezed(sql)).strip()


def problem_with_query(sql: str) -> str | None:
    """What keeps `sql` from being a transform's query, or None when nothing does."""
    words = [text.lower() for kind, text in _squeezed(sql) if kind == "word"]
    if not words or words[0] not in _QUERY_WORDS:
        return "is not a query; begin with SELECT or WITH"
    if "records" not in words and "`records`" not in sql:
        return "does not read the view 'records', which holds what is played"
    return problem_with_expression(sql)


def problem_with_expression(sql: str) -> str | None:
    """What keeps `sql` from being one deterministic expression or query, or None."""
    tokens = [(kind, text) for kind, text in _squeezed(sql) if kind != "skip"]
    if not tokens:
        return "is empty"
    if any(kind == "sign" and text == ";" for kind, text in tokens):
        return "has a ';' in it; write one statement without it"
    unstable = _unstable_words(tokens)
    if unstable:
        return f"calls {unstable[0]}, which gives another answer each time; use what records hold"
    return None


def _unstable_words(tokens: list[tuple[str, str]]) -> list[str]:
    """Unstable functions that are called; a column may have the same name."""
    found = []
    for index, (kind, text) in enumerate(tokens):
        if kind != "word" or text.lower() not in _UNSTABLE:
            continue
        before = tokens[index - 1][1].lower() if index else ""
        called = tokens[index + 1 : index + 2] == [("sign", "(")]
        # These few may be called without brackets.
        bare = text.lower().startswith(("current_", "local"))
        if called or (bare and before not in (".", "as")):
            found.append(text)
    return found


def _squeezed(sql: str) -> Iterator[tuple[str, str]]:
    """Tokens as (kind, text); neighbouring blanks and comments are one `skip`."""
    last = ""
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup or ""
        if not (kind == last == "skip"):
            yield kind, match.group()
        last = kind
