"""The form of `capstan_replay`, prefilled with values from a link.

Airflow's UI always opens its form empty. This page shows the same fields, and sends their values to
Airflow's API as the user who presses the button.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow.sdk import Param

from capstan.airflow.dags.form import filled, replay_form
from capstan.airflow.lake_queries import OWN_FIELDS, preview_request, resolve, streams_of
from capstan.airflow.settings import Settings
from capstan.core.config import Replay, join_names
from capstan.core.config.names import split_names
from capstan.core.json_object import Json
from capstan.errors import CapstanError, IncompleteError, RangeLockedError
from capstan.reporting.formatting import short_bound

_LONGEST = 2_000
_HIDDEN = "a run that you may not see"


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of the form; its kind is `switch`, `choice`, `list`, `whole` or `text`.

    For a switch, `value` says whether it is on. The options have texts. One without a section is
    always open.
    """

    name: str
    title: str
    about: str
    kind: str
    value: str | bool
    options: tuple[tuple[str, str], ...]
    section: str = ""


@dataclass(frozen=True, slots=True)
class FormPlan:
    """The plan of the replay in the form, and the error that a run of it would end with at once."""

    plan: dict[str, object]
    refusal: CapstanError | None


def fields_of(settings: Settings, given: Mapping[str, Sequence[str]]) -> list[FormField]:
    """The fields of the form, filled in from a query, and else from the declared replay it names.

    Unknown names in the query are ignored.
    """
    form = replay_form(settings)
    replay = settings.declarations.replays.get("".join(given.get("replay", ())[-1:]))
    usual = {} if replay is None else _declared(replay)
    given = {**usual, **{name: texts for name, texts in given.items() if any(texts)}}
    return [_field(name, param, given.get(name)) for name, param in form.items()]


def _declared(replay: Replay) -> dict[str, list[str]]:
    """What a declared replay says of the fields of the form, as a query has it."""
    fields = {**replay.request_fields, "stream": replay.inputs[0]}
    for name, text in replay.bounds.items():
        fields[name] = text and short_bound(text.replace("+00:00", "Z"))
    fields["approve"] = "true" if replay.approve else None
    return {
        name: list(map(str, value)) if isinstance(value, tuple) else [str(value)]
        for name, value in fields.items()
        if value and not isinstance(value, Mapping | bool)
    }


def streams_in(fields: Sequence[FormField]) -> tuple[str, ...]:
    """The streams that the replay in the form reads, if no declared replay says others."""
    values = {field.name: field.value for field in fields}
    several = streams_of(values) or {"": str(values["stream"])}
    return tuple(name for name in dict.fromkeys(several.values()) if name)


def plan_of(settings: Settings, fields: Sequence[FormField], visible: Collection[str]) -> FormPlan:
    """The plan of the replay in the form, without the names of runs that are not `visible`."""
    values = {field.name: _request_value(field) for field in fields}
    asked = {name: value for name, value in values.items() if name not in OWN_FIELDS}
    previewed = preview_request(settings, resolve(settings, filled(asked), bound=True))
    plan = _hide_runs(previewed.to_json(), visible)
    if values["dry_run"]:
        return FormPlan(plan, None)
    if previewed.held_by:
        held = f"other runs have claimed part of that range: {', '.join(map(str, plan['held_by']))}"  # type: ignore[call-overload]
        hint = "wait for them to end, then plan again; unlock one that is dead on its page"
        return FormPlan(plan, RangeLockedError("CAP-HELD", held, hint))
    try:
        if not values["wait"]:
            previewed.plan.require_complete()
    except IncompleteError as error:
        return FormPlan(plan, error)
    return FormPlan(plan, None)


def _hide_runs(plan: Json, visible: Collection[str]) -> dict[str, object]:
    shown = [
        run if run["run"] in visible else {"run": _HIDDEN, "stale": run.get("stale")}
        for run in plan["covered"]
    ]
    holders = [name if name in visible else _HIDDEN for name in plan["held_by"]]
    stands = plan["stands"] if plan["stands"] in {None, *visible} else _HIDDEN
    return {**plan, "covered": shown, "held_by": holders, "stands": stands}


def _field(name: str, param: Param, given: Sequence[str] | None) -> FormField:
    schema = param.schema
    kind = _kind(schema)
    if given is not None:
        value = _read(kind, [text[:_LONGEST] for text in given])
    else:
        # A required field has no value until one is given.
        value = param.value if param.has_value else None
    if isinstance(value, list | tuple):
        value = join_names(map(str, value))
    texts = schema.get("values_display") or {}
    offered = schema.get("enum") or schema.get("examples") or ()
    options = tuple(
        ("" if choice is None else str(choice), str(texts.get(str(choice), choice)))
        for choice in offered
    )
    return FormField(
        name,
        str(schema.get("title") or name),
        str(schema.get("description_md") or param.description or ""),
        kind,
        value if isinstance(value, bool) else "" if value is None else str(value),
        options,
        str(schema.get("section") or ""),
    )


def _kind(schema: Json) -> str:
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list | tuple) else [kinds]
    if "boolean" in listed:
        return "switch"
    if schema.get("enum"):
        return "choice"
    return "list" if "array" in listed else "whole" if "integer" in listed else "text"


def _read(kind: str, given: Sequence[str]) -> object:
    if kind == "switch":
        return given[-1:] == ["true"]
    return list(given) if kind == "list" else given[-1] if given else None


def _request_value(field: FormField) -> object:
    if isinstance(field.value, bool) or not field.value:
        return field.value or None
    if field.kind == "list":
        return split_names(field.value)
    return field.value
