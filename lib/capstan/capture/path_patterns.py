"""Patterns of paths as Hadoop takes them, in `source.path` and in `pathGlobFilter`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_MARKS = re.compile(r"[*?\[{]")


def is_glob(path: str) -> bool:
    """Whether a path stands for several."""
    return _MARKS.search(path) is not None


def fixed_part(path: str) -> str:
    """The folder that all lie in that a pattern stands for."""
    fixed = path[: found.start()] if (found := _MARKS.search(path)) else path
    return fixed.rpartition("/")[0] or "/"


@lru_cache(maxsize=64)
def rule_of(pattern: str) -> re.Pattern[str]:
    """A pattern as a rule for whole paths of files: `below` is what lies below what it stands for.

    No `*`, `?` or `[...]` of it stands for a `/`.
    """
    return re.compile(f"(?:{''.join(_parts(pattern))})(?P<below>/.*)?", re.DOTALL)


def _parts(pattern: str) -> Iterator[str]:
    at, deep = 0, 0
    while at < len(pattern):
        mark = pattern[at]
        end = pattern.find("]", at + 2) if mark == "[" else -1
        if mark == "\\" and at + 1 < len(pattern):
            at += 1
            yield re.escape(pattern[at])
        elif mark in "*?":
            yield "[^/]" + mark.replace("?", "")
        elif end > 0:
            inside = pattern[at + 1 : end]
            negated = inside[0] in "^!"
            chosen = inside[1:] if negated else inside
            escaped = re.sub(r"[\\\[\]^&~|]", r"\\\g<0>", chosen)
            yield f"[{'^' if negated else ''}{escaped}]"
            at = end
        elif mark == "{":
            deep += 1
            yield "(?:"
        elif mark == "}" and deep:
            deep -= 1
            yield ")"
        elif mark == "," and deep:
            yield "|"
        else:
            yield re.escape(mark)
        at += 1
