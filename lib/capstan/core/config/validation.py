"""From plain data to models, with errors that say where and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from capstan.core.config.names import did_you_mean
from capstan.core.config.yaml_document import Document, Place
from capstan.errors import InvalidRequestError

Model = TypeVar("Model")

_FOUND = {dict: "a mapping", list: "a list", type(None): "nothing"}
_MUST = {
    "missing": "is missing, and has no default",
    "dataclass_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of keys to values",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
_LONGEST = 80


def read_model(model: type[Model], fields: Mapping[str, object], code: str) -> Model:
    """Build `model` from `fields` given in Python.

    Raises:
        InvalidRequestError: `code`, naming the field and what is allowed.
    """
    try:
        return TypeAdapter(model).validate_python(dict(fields))
    except ValidationError as error:
        place, problem = _first(error)
        key = ".".join(str(part) for part in place)
        what = f"{model.__name__.lower()} {fields.get('name', '')}".strip()
        said = f"{what}: {key + ': ' if key else ''}{problem}"
        raise InvalidRequestError(code, said, "say it in the way that is named") from None


def read_declared(model: type[Model], document: Document, place: Place, data: object) -> Model:
    """Build `model` from `data`, which `document` has at `place`.

    Raises:
        InvalidRequestError: `CAP-DECLARE`, naming file, line and key path, and what is allowed. Of
            several errors the first in the file; the hint says how many more there are.
    """
    try:
        return TypeAdapter(model).validate_python(data)
    except ValidationError as error:
        found = [_explained(details) for details in error.errors(include_url=False)]
        found.sort(key=lambda each: document.line((*place, *each[0])))
        inside, problem = found[0]
        hint = "what may be written here is described at the head of the file"
        if len(found) > 1:
            hint = f"{len(found) - 1} more below it; {hint}"
        raise document.error((*place, *inside), problem, hint) from None


def _first(error: ValidationError) -> tuple[Place, str]:
    return _explained(error.errors(include_url=False)[0])


def _explained(details: ErrorDetails) -> tuple[Place, str]:
    """The place of an error inside the model, and the problem in one line."""
    context = details.get("ctx", {})
    # Tags of unions stand in brackets; the rest are keys of the file.
    place = tuple(p for p in details["loc"] if not (isinstance(p, str) and p.startswith("<")))
    if details["type"] in ("unknown_key", "choice"):
        place = (*place, str(context["key"]))
    return place, _problem(details, context)


def _problem(details: ErrorDetails, context: Mapping[str, object]) -> str:
    value, kind, said = details["input"], details["type"], str(details["msg"])
    if kind == "unknown_key":
        return said
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return _MUST[kind]
    if kind == "choice":
        value = value.get(str(context["key"])) if isinstance(value, dict) else None
    elif kind in ("enum", "literal_error"):
        expected = str(context["expected"]).replace("'", "")
        words = expected.replace(" or ", ", ").split(", ")
        return f"{_shown(value)} is none of: {expected}{did_you_mean(str(value), words)}"
    elif kind in _MUST:
        said = _MUST[kind]
    return f"{said[:1].lower()}{said[1:]}, found {_shown(value)}"


def _shown(value: object) -> str:
    return _FOUND.get(type(value)) or repr(value)[:_LONGEST]
