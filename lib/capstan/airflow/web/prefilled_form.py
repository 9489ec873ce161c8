"""The form of `capstan_replay`, filled in: its own fields, with what a link brings as values.

Airflow's UI opens its form empty whatever the address says. So a page shows the same fields, and
sends what stands in them to Airflow's API as the user who presses the button.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow.sdk import Param

from capstan.airflow.dags.form import replay_form
from capstan.airflow.lake_queries import OWN_FIELDS, foresee, resolve
from capstan.airflow.settings import Settings

_LONGEST = 2_000
# Anything else stays text, which a request refuses.
_WHOLE = re.compile(r"-?[0-9]+")
_ANOTHER = "a run that you may not see"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the form.

    Attributes:
        name: The parameter's name.
        title: What people call it.
        about: What it means.
        kind: `switch`, `choice`, `list`, `whole` or `text`.
        value: What stands in it: text, of a switch whether it is on.
        options: Values that are offered, with their texts.
    """

    name: str
    title: str
    about: str
    kind: str
    value: str | bool
    options: tuple[tuple[str, str], ...]


def fields_of(setting: Settings, given: Mapping[str, Sequence[str]]) -> list[Field]:
    """The fields of the form, filled in with what a query gives; what it has no field for is left.

    Args:
        setting: Where the declarations are.
        given: Values by name, as texts.
    """
    return [_field(name, param, given.get(name)) for name, param in replay_form(setting).items()]


def foreseen(setting: Settings, fields: Sequence[Field]) -> dict[str, object]:
    """What the replay would do that stands in the form, as `capstan plan` has it.

    Raises:
        InvalidRequestError: The request cannot be meant.
    """
    asked = {field.name: _meant(field) for field in fields if field.name not in OWN_FIELDS}
    return foresee(setting, resolve(setting, asked)).to_json()


def disclosed(plan: Mapping[str, object], seen: Collection[str]) -> dict[str, object]:
    """A plan without the names of runs that are not among those `seen`."""
    covered, held = plan.get("covered"), plan.get("held_by")
    shown = [
        each if each["run"] in seen else {"run": _ANOTHER, "stale": each.get("stale")}
        for each in (covered if isinstance(covered, list) else [])
    ]
    held = held if isinstance(held, list) else []
    holding = [each if each in seen else _ANOTHER for each in held]
    return {**plan, "covered": shown, "held_by": holding}


def _field(name: str, param: Param, given: Sequence[str] | None) -> Field:
    schema = param.schema
    kind = _kind(schema)
    value = param.value if given is None else _read(kind, [text[:_LONGEST] for text in given])
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    named = schema.get("values_display") or {}
    offered = schema.get("enum") or schema.get("examples") or ()
    options = tuple(
        ("" if each is None else str(each), str(named.get(str(each), each))) for each in offered
    )
    return Field(
        name,
        str(schema.get("title") or name),
        str(schema.get("description_md") or param.description or ""),
        kind,
        value if isinstance(value, bool) else "" if value is None else str(value),
        options,
    )


def _kind(schema: Mapping[str, object]) -> str:
    kinds = schema.get("type")
    named = kinds if isinstance(kinds, list | tuple) else [kinds]
    if "boolean" in named:
        return "switch"
    if schema.get("enum"):
        return "choice"
    return "list" if "array" in named else "whole" if "integer" in named else "text"


def _read(kind: str, given: Sequence[str]) -> object:
    if kind == "switch":
        return given[-1:] == ["true"]
    return list(given) if kind == "list" else given[-1] if given else None


def _meant(field: Field) -> object:
    """The value of a field as a request has it."""
    if isinstance(field.value, bool) or not field.value:
        return field.value or None
    if field.kind == "list":
        return [part.strip() for part in field.value.split(",") if part.strip()]
    if field.kind == "whole" and _WHOLE.fullmatch(field.value):
        return int(field.value)
    return field.value
