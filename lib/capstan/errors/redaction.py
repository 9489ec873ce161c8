"""The secret values of this process, and texts without them.

`capstan.core.config.loading.secret_references` adds a value when it resolves a reference. Errors,
log lines and tracebacks then show `***` instead of it.
"""

from __future__ import annotations

import json
import re
import sys
import traceback

MASK = "***"
_SHORTEST = 4
"""A shorter value would be masked inside words and numbers that have nothing to do with it."""

_hidden: dict[str, None] = {}


def conceal(value: str) -> None:
    """Mask this value from now on, also as it stands in JSON and in a Python literal."""
    for form in (value, json.dumps(value)[1:-1], repr(value)[1:-1]):
        # A value of several lines is often shown line by line.
        for part in (form, *form.splitlines()):
            if len(part.strip()) >= _SHORTEST:
                _hidden[part.strip()] = None


def concealed() -> list[str]:
    """The texts to mask, the longest first, because one may be a part of another."""
    return sorted(_hidden, key=len, reverse=True)


def masked(text: str) -> str:
    """The text without secret values."""
    if not _hidden:
        return text
    return re.sub("|".join(map(re.escape, concealed())), MASK, text)


def masked_value(value: object) -> object:
    """A value of JSON types without secret values in its texts; keys stay."""
    if not _hidden:
        return value
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {key: masked_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [masked_value(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def reveals(error: BaseException | None) -> bool:
    """Whether the text of an error, or of one that led to it, has a secret value."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = f"{error} {error.args!r}"
        if masked(text) != text:
            return True
        error = error.__cause__ or error.__context__
    return False


def print_exception(error: BaseException) -> None:
    """Print a traceback to standard error, without secret values."""
    print(masked("".join(traceback.format_exception(error))), end="", file=sys.stderr, flush=True)
