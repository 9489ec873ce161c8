"""Types of declared fields, and the common base of all declared models.

Values come from YAML as text. Each type parses the text, or accepts the value itself when a model
is built in Python. A validator raises ValueError with a message that states what is allowed.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, WithJsonSchema, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs, PydanticCustomError

from capstan.core.config.durations import parse_duration, parse_instant
from capstan.core.config.names import (
    check_column,
    check_declared_target,
    check_name,
    did_you_mean,
    one_of,
)
from capstan.core.config.request_fields import names_in
from capstan.core.config.sequences import KINDS, SequenceColumn, sequence_text
from capstan.errors import InvalidRequestError

CONFIG = ConfigDict(extra="forbid")

_INTEGER = re.compile(r"-?\d{1,19}")
_SCHEDULE = re.compile(r"@[a-z]{3,20}|[0-9A-Za-z*/,#?-]+( [0-9A-Za-z*/,#?-]+){4}")
_LIMIT = 2**63
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"


@dataclass(frozen=True, slots=True, config=CONFIG)
class Declared:
    """A model of the declaration file: frozen, without unknown keys."""

    # Whether the key of a model is its name, so that it has no key `name` itself.
    NAMED_BY_KEY: ClassVar[bool] = True

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: object) -> object:
        given = values.kwargs if isinstance(values, ArgsKwargs) else values
        known = [field.name for field in dataclasses.fields(cls)]
        allowed = [name for name in known if name != "name" or not cls.NAMED_BY_KEY]
        for key in map(str, given if isinstance(given, dict) else ()):
            if key not in known:
                # Its place is the mapping that contains it.
                raise PydanticCustomError(
                    "unknown_key",
                    "unknown key{guess}; allowed here: {known}",
                    {"key": key, "guess": did_you_mean(key, allowed), "known": one_of(allowed)},
                )
        return values


def _checked(check: Callable[[str], str]) -> Callable[[str], str]:
    def validate(text: str) -> str:
        try:
            return check(text)
        except InvalidRequestError as error:
            raise ValueError(f"{error.message}; {error.hint}") from None

    return validate


def _matching(pattern: str, problem: str) -> Callable[[str], str]:
    def validate(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} {problem}")
        return text

    return validate


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text.strip()


def without_problem(problem_with: Callable[[str], str | None]) -> AfterValidator:
    """A validator that refuses text with a problem, as `sql_rules` states it."""

    def validate(text: str) -> str:
        problem = problem_with(text)
        if problem:
            raise ValueError(problem)
        return text

    return AfterValidator(validate)


def _from_text(parse: Callable[[str], object]) -> BeforeValidator:
    """A validator that parses text, and leaves any other value as it is."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _not_negative(length: timedelta) -> timedelta:
    if length < timedelta():
        raise ValueError("must not be negative")
    return length


def _positive(length: timedelta) -> timedelta:
    if length <= timedelta():
        raise ValueError("must be more than zero, such as '1 hour'")
    return length


def _field(path: str) -> str:
    for name in path.split("."):
        check_column(name)
    return path


def _aware(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError("must have a time zone")
    return instant


def _parse_bound(text: str) -> datetime | int:
    if not _INTEGER.fullmatch(text.strip()):
        return parse_instant(text)
    number = int(text)
    if not -_LIMIT <= number < _LIMIT:
        raise ValueError("does not fit a BIGINT, -2^63 to 2^63 - 1")
    return number


def _schedule(text: str) -> str:
    words = " ".join(text.split())
    if not _SCHEDULE.fullmatch(words):
        raise ValueError(f"{text!r} is not a schedule; give '@daily' or a cron of five fields")
    return words


def _once(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"has {value!r} twice")
    return values


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("is empty; name at least one")
    return _once(values)


reference = _matching(
    rf"{_DOTTED}:{_DOTTED}", "names nothing in Python; write package.module:function"
)
"""Return a text when it names something in Python: `package.module:name`."""


def imported(text: str) -> object:
    """What a reference names; this imports its module."""
    module, _, name = text.partition(":")
    return attrgetter(name)(importlib.import_module(module))


def name_of(kind: str) -> AfterValidator:
    """A validator that holds text to the rule for names of `kind`."""
    return AfterValidator(_checked(lambda text: check_name(kind, text)))


def _listed(given: object) -> object:
    """A list of names, of one mapping, or of text with commas."""
    return (given,) if isinstance(given, Mapping) else names_in(given)


_ONE_OR_MORE = _from_text(lambda text: (text,))
_NAMES = BeforeValidator(names_in)
Text = Annotated[str, AfterValidator(_text)]
Column = Annotated[str, AfterValidator(_checked(check_column))]
Columns = Annotated[tuple[Column, ...], _NAMES, AfterValidator(_distinct)]
_SEQUENCE: list[dict[str, object]] = [
    {"type": "string"},
    {
        "type": "object",
        "properties": {"column": {"type": "string"}, "as": {"enum": list(KINDS)}},
        "required": ["column"],
        "additionalProperties": False,
    },
]
# Columns that order changes, each perhaps with its kind: `version as number`; perhaps none.
SequencesOrNone = Annotated[
    tuple[
        Annotated[
            str,
            BeforeValidator(sequence_text),
            AfterValidator(_checked(lambda text: str(SequenceColumn.of(text)))),
        ],
        ...,
    ],
    BeforeValidator(_listed),
]
Sequences = Annotated[
    SequencesOrNone,
    AfterValidator(_distinct),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"anyOf": _SEQUENCE}}, *_SEQUENCE]}),
]
# Columns, or fields inside of them, such as `_time.event`.
Fields = Annotated[
    tuple[Annotated[str, AfterValidator(_checked(_field))], ...],
    _ONE_OR_MORE,
    AfterValidator(_distinct),
]
Labels = Annotated[tuple[str, ...], _NAMES, AfterValidator(_distinct)]
# What Python has under a name: `package.module:name`.
Reference = Annotated[str, AfterValidator(reference)]
References = Annotated[tuple[Reference, ...], _ONE_OR_MORE, AfterValidator(_once)]
# The streams of a replay by the name of the source in the pipeline, one or a list for each.
StreamsBySource = dict[str, Annotated[tuple[Text, ...], _ONE_OR_MORE, AfterValidator(_distinct)]]
# Workers by the source that reads their stream; of one that reads several, by source/stream.
LabelsBySource = dict[str, Labels]
_SPARK_SETTING = _matching(
    r"spark(\.[A-Za-z0-9_-]+)+", "is no Spark setting; names begin with 'spark.'"
)
SparkSettings = dict[Annotated[str, AfterValidator(_SPARK_SETTING)], str]
_URI = _matching(
    r"[A-Za-z][A-Za-z0-9+.-]*://[!-~]+", "is not a URI in ASCII, such as 's3://bucket/orders'"
)
Uri = Annotated[str, AfterValidator(_URI)]
TableOrPath = Annotated[str, AfterValidator(_checked(check_declared_target))]
Schedule = Annotated[str, AfterValidator(_schedule)]
Length = Annotated[timedelta, _from_text(parse_duration), AfterValidator(_not_negative)]
PositiveLength = Annotated[timedelta, _from_text(parse_duration), AfterValidator(_positive)]
Instant = Annotated[datetime, _from_text(parse_instant), AfterValidator(_aware)]
# A bound of a range: an instant for event times, a number for epochs.
Bound = Annotated[datetime | int, _from_text(_parse_bound)]
