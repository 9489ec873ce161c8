"""Types of the fields of requests, whose values come from Python, JSON, forms and templates.

None is *not given*. What is given and empty, such as a template that renders to nothing, is
refused: it would stand for the whole range, or for all workers.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from pydantic import BeforeValidator

from capstan.core.config.durations import format_duration
from capstan.core.config.names import split_names

_EMPTY_TEXTS = frozenset({"", "None", "null", "NaN", "NaT", "[]", "{}", "()", '""', "''"})
_LISTED = "name them in a list, or as text separated by commas"


def is_empty(value: object) -> bool:
    """Whether a value is None, blank, or a list of such values, also as templates print them."""
    if isinstance(value, str):
        return value.strip() in _EMPTY_TEXTS
    if isinstance(value, Mapping):
        return all(map(is_empty, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_empty, value))
    return value is None


def problem_with_text(value: object) -> str | None:
    """The reason why a value given as text cannot be meant, or None."""
    if not isinstance(value, str):
        return None
    if is_empty(value):
        return f"is empty ({value[:80]!r}); give a value, or leave it out"
    if "{{" in value or "{%" in value:
        return f"is a template that was not rendered: {value[:80]!r}"
    return None


def _require_text(value: object) -> object:
    problem = problem_with_text(value)
    if problem is not None:
        raise ValueError(problem)
    return value


def _coordinate(value: object) -> object:
    """A coordinate of a time as JSON: text of a date, or of an instant, in UTC without a zone."""
    if isinstance(value, datetime):
        if value != value:  # noqa: PLR0124  # NaT of pandas equals nothing.
            raise ValueError("is empty (NaT); give a value, or leave it out")
        try:
            return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()
        except OverflowError as error:
            raise ValueError(str(error)) from None
    return value.isoformat() if isinstance(value, date) else value


def _time_text(value: object) -> object:
    """A bound as text: of a text, date, datetime or number, or a list of them by coordinate."""
    if isinstance(value, list | tuple):
        if is_empty(value):
            raise ValueError(f"is empty ({list(value)}); give a value, or leave it out")
        return json.dumps([_coordinate(each) for each in value])
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip().startswith("["):
        _require_some(value)
    return _coordinate(_require_text(value))


def _require_some(text: str) -> None:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return  # The stream's times say what is wrong with it.
    if is_empty(listed):
        raise ValueError(f"is empty ({text[:80]!r}); give a value, or leave it out")


def names_in(value: object) -> object:
    """The names in a list, or in a comma-separated text; any other value as it is."""
    if isinstance(value, str):
        _require_text(value)
        if _is_literal_list(value):
            raise ValueError(
                f"is the text of a list: {value[:80]!r}; {_LISTED}, such as {{{{ names | "
                "join(',') }} in a template"
            )
        try:
            names = split_names(value)
        except ValueError:
            problem = f"has quotes that do not enclose a whole name: {value[:80]!r}"
            raise ValueError(problem) from None
        if not names:
            raise ValueError(f"is empty ({value[:80]!r}); {_LISTED}")
        return tuple(dict.fromkeys(names))
    return sorted(value) if isinstance(value, set | frozenset) else value


def _is_literal_list(text: str) -> bool:
    if text.strip()[:1] not in ("[", "("):
        return False
    try:
        return isinstance(ast.literal_eval(text.strip()), list | tuple)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False


def _some_names(value: object) -> object:
    if isinstance(value, list | tuple | set | frozenset) and not value:
        raise ValueError("is an empty list; name some, or leave it out")
    return names_in(value)


def _by_name(value: object) -> object:
    """What belongs to each name in `orders=EWR,JFK`, or in a list of such texts; others as is."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return value
    found: dict[str, str] = {}
    for text in texts:
        if "=" not in text and found and text.strip():
            # A form takes a list apart at each comma: `orders=EWR, JFK` is of one name.
            last = next(reversed(found))
            found[last] += f", {text.strip()}"
            continue
        name, _, rest = (part.strip() for part in text.partition("="))
        if not (name and rest) or name in found:
            raise ValueError(f"has {text[:80]!r}, which is not NAME=..., each name once")
        found[name] = rest
    return found


def _numbers_by_name(value: object) -> object:
    return _by_name(value.split(",") if isinstance(value, str) else value)


def _length_text(value: object) -> object:
    if isinstance(value, timedelta):
        return format_duration(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


GivenFields = Mapping[str, object]
"""The fields of a request as they are given, by name: not checked yet."""

TimeText = Annotated[str, BeforeValidator(_time_text)]
"""A bound: text as on the command line, a `date`, a `datetime` (without zone: UTC), or a number."""

LengthText = Annotated[str, BeforeValidator(_length_text)]
"""A length: text as on the command line, a `timedelta`, or a number of epochs."""

Names = Annotated[tuple[str, ...], BeforeValidator(_some_names)]
"""Names, at least one: a list, or text separated by commas."""

NamesOrNone = Annotated[tuple[str, ...], BeforeValidator(names_in)]
"""Names, perhaps none: ledgers store an empty list where no keys were given."""

NamesBySource = Annotated[Mapping[str, Names], BeforeValidator(_by_name)]

NumbersByName = Annotated[Mapping[str, int], BeforeValidator(_numbers_by_name)]
"""Numbers by a name of each: a mapping, or text such as `orders=12, payments=7`."""
