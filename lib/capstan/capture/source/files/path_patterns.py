"""Hadoop path patterns, as used in `source.path` and in `pathGlobFilter`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_MARKS = re.compile(r"[*?\[{]")


def is_glob(path: str) -> bool:
    """Whether a path contains wildcards."""
    return _MARKS.search(path) is not None


def fixed_part(path: str) -> str:
    """The deepest folder that contains all matches of a pattern."""
    fixed = path[: match.start()] if (match := _MARKS.search(path)) else path
    return fixed.rpartition("/")[0] or "/"


@lru_cache(maxsize=64)
def rule_of(pattern: str) -> re.Pattern[str]:
    """Translate a pattern to a regular expression; its group `below` is the path below the match.

    `*`, `?` and `[...]` never match a `/`.
    """
    return re.compile(f"(?:{''.join(_parts(pattern))})(?P<below>/.*)?", re.DOTALL)


def _parts(pattern: str) -> Iterator[str]:
    position, depth = 0, 0
    while position < len(pattern):
        mark = pattern[position]
        end = pattern.find("]", position + 2) if mark == "[" else -1
        if mark == "\\" and position + 1 < len(pattern):
            position += 1
            yield re.escape(pattern[position])
        elif mark in "*?":
            yield "[^/]" + mark.replace("?", "")
        elif end > 0:
            inside = pattern[position + 1 : end]
            negated = inside[0] in "^!"
            members = inside[1:] if negated else inside
            escaped = re.sub(r"[\\\[\]^&~|]", r"\\\g<0>", members)
            yield f"[{'^' if negated else ''}{escaped}]"
            position = end
        elif mark == "{":
            depth += 1
            yield "(?:"
        elif mark == "}" and depth:
            depth -= 1
            yield ")"
        elif mark == "," and depth:
            yield "|"
        else:
            yield re.escape(mark)
        position += 1
