"""What the fields of a request are: one text each, for options, forms and Python."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

_OTHER_FIELD = re.compile(r"`([a-z]+(?:_[a-z]+)*)`")


@dataclasses.dataclass(frozen=True, slots=True)
class Help:
    """What a field of a request is; other fields of the request are in backticks."""

    text: str  # without a stop
    absent: str | None = None  # what holds without it
    cli: str | None = None  # of its option, where that differs
    form: str | None = None  # of its field in a form, where that differs
    title: str | None = None  # in a form; by default its name
    section: str | None = None  # of the form; by default the last one
    metavar: str | None = None  # for its value in `--help`


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of a request with its help."""

    name: str
    kind: Any  # `bool`, `int`, `str`, `tuple`, `Mapping`, or an enumeration
    optional: bool  # None stands for *not given*
    default: Any
    help: Help

    @property
    def title(self) -> str:
        """Its title in a form."""
        return self.help.title or self.name.replace("_", " ").capitalize()

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def cli(self) -> str:
        """The help of its option."""
        text = _OTHER_FIELD.sub(lambda m: f"--{m[1].replace('_', '-')}", self.help.text)
        return _sentence(self.help.cli or text, "; default: ", self.help.absent)

    @property
    def form(self) -> str:
        """The description of its field in a form; one that has a default is never empty."""
        absent = self.help.absent if self.default is None or self.kind is tuple else None
        return _sentence(self.help.form or self.help.text, ". Empty: ", absent)

    @property
    def python(self) -> str:
        """The entry of its docstring."""
        return f"{self.name}: {_sentence(self.help.text, '; by default ', self.help.absent)}"


@cache
def fields_of(request: type) -> tuple[Field, ...]:
    """The fields of a request whose types have help, in their order."""
    kinds, noted = get_type_hints(request), get_type_hints(request, include_extras=True)
    found = []
    for field in dataclasses.fields(request):
        text = next(each for each in get_args(noted[field.name]) if isinstance(each, Help))
        kind = kinds[field.name]
        given = [each for each in get_args(kind) if each is not NoneType]
        optional = NoneType in get_args(kind)
        kind = given[0] if optional else kind
        found.append(Field(field.name, get_origin(kind) or kind, optional, _default(field), text))
    return tuple(found)


def documented(request: type) -> str:
    """The docstring of a request with an entry for each field."""
    entries = "\n".join(f"        {field.python}" for field in fields_of(request))
    return f"{(request.__doc__ or '').rstrip()}\n\n    Attributes:\n{entries}\n    "


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _sentence(text: str, before: str, absent: str | None) -> str:
    whole = text if absent is None else f"{text}{before}{absent}"
    return whole if whole.endswith(".") else f"{whole}."
