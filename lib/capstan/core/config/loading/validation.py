"""Validation of plain data into models, with errors that state the place and the allowed values."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from capstan.core.config.loading.yaml_document import Document, Place
from capstan.core.config.names import did_you_mean, one_of
from capstan.core.config.request_fields import GivenFields, problem_with_text
from capstan.errors import InvalidRequestError

Model = TypeVar("Model")

_TYPE_NAMES = {dict: "a mapping", list: "a list", type(None): "nothing"}
_REQUIREMENTS = {
    "missing": "is missing, and has no default",
    "dataclass_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of keys to values",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
_MAX_LENGTH = 80


def read_model(model: type[Model], fields: GivenFields, code: str) -> Model:
    """Build `model` from `fields` given in Python."""
    try:
        return TypeAdapter(model).validate_python(dict(fields))
    except ValidationError as error:
        place, problem = _explain(error.errors(include_url=False)[0])
        key = ".".join(str(part) for part in place)
        subject = f"{model.__name__.lower()} {fields.get('name', '')}".strip()
        raise _incorrect(f"{subject}: {key + ': ' if key else ''}{problem}", code) from None


def read_request(model: type[Model], fields: GivenFields) -> Model:
    """Build the request `model` from `fields`, which may be no others than its own."""
    # Former fields are among these: they are taken, and not named.
    of_model: dict[str, dataclasses.Field[Any]] = model.__dataclass_fields__  # type: ignore[attr-defined]
    known = [field.name for field in dataclasses.fields(model)]  # type: ignore[arg-type]
    for key in fields:
        if key not in of_model:
            unknown = f"the request has an unknown key {key[:80]!r}{did_you_mean(key, known)}"
            hint = f"keys are {one_of(known)}"
            raise InvalidRequestError("CAP-REQUEST", unknown, hint, key=key)
    for key, value in fields.items():
        free = of_model[key].default == "" or of_model[key].metadata.get("checked_later")
        problem = None if free else problem_with_text(value)
        if problem is not None:
            raise _incorrect(f"{model.__name__.lower()}: {key} {problem}", key=key)
    return read_model(model, fields, "CAP-REQUEST")


def read_fields(model: type[Any], fields: GivenFields) -> dict[str, Any]:
    """The fields of a request that are given, checked and as JSON has them; None is not given."""
    given = {key: value for key, value in fields.items() if value is not None}
    request = read_request(model, given)
    return {**fields, **{key: getattr(request, key) for key in given}}


def reread(request: Model) -> Model:
    """A request that was made by its class, which does not check its fields, read again."""
    fields = dataclasses.fields(request)  # type: ignore[arg-type]
    given = {field.name: getattr(request, field.name) for field in fields}
    for bound in ("since", "until"):
        problem = problem_with_text(given.get(bound))
        if problem is not None:
            hint = "give a time, or leave it out"
            raise InvalidRequestError("CAP-TIME", f"{bound} {problem}", hint, key=bound)
    return read_request(type(request), given)


def read_field(name: str, kind: Any, value: object) -> Any:
    """The value of one field of a request, of an annotated type such as `Names`."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        _, problem = _explain(error.errors(include_url=False)[0])
        raise _incorrect(f"{name} {problem}", key=name) from None


def _incorrect(message: str, code: str = "CAP-REQUEST", **fields: str) -> InvalidRequestError:
    return InvalidRequestError(code, message, "correct the value as stated", **fields)


def read_declared(model: type[Model], document: Document, place: Place, data: object) -> Model:
    """Build `model` from `data`, which is at `place` in `document`."""
    try:
        return TypeAdapter(model).validate_python(data)
    except ValidationError as error:
        problems = [_explain(details) for details in error.errors(include_url=False)]
        problems.sort(key=lambda entry: document.line((*place, *entry[0])))
        inside, problem = problems[0]
        hint = "the head of the file describes the allowed values"
        if len(problems) > 1:
            hint = f"{len(problems) - 1} more errors below it; {hint}"
        raise document.error((*place, *inside), problem, hint) from None


def _explain(details: ErrorDetails) -> tuple[Place, str]:
    """The place of an error inside the model, and the problem in one line."""
    context = details.get("ctx", {})
    # Tags of unions are in brackets, and so is what tells a key from its value.
    place = tuple(
        p for p in details["loc"] if not (isinstance(p, str) and p.startswith(("<", "[key]")))
    )
    if details["type"] in ("unknown_key", "choice"):
        place = (*place, str(context["key"]))
    return place, _problem(details, context)


def _problem(details: ErrorDetails, context: dict[str, Any]) -> str:
    value, kind, message = details["input"], details["type"], str(details["msg"])
    if kind == "unknown_key":
        return message
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return _REQUIREMENTS[kind]
    if kind == "choice":
        value = value.get(str(context["key"])) if isinstance(value, dict) else None
    elif kind in ("enum", "literal_error"):
        expected = str(context["expected"]).replace("'", "")
        words = expected.replace(" or ", ", ").split(", ")
        return f"{_shown(value)} is none of: {expected}{did_you_mean(str(value), words)}"
    elif kind in _REQUIREMENTS:
        message = _REQUIREMENTS[kind]
    return f"{message[:1].lower()}{message[1:]}, found {_shown(value)}"


def _shown(value: object) -> str:
    return _TYPE_NAMES.get(type(value)) or repr(value)[:_MAX_LENGTH]
