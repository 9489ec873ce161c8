"""Trigger forms of DAGs: sections, fields and choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Param

from capstan.airflow.lake_files import labels_by_stream
from capstan.airflow.settings import Settings
from capstan.core.config import Mode
from capstan.core.config.help import Field, fields_of
from capstan.core.config.request_fields import GivenFields
from capstan.core.config.stream_names import STREAMS_PATTERN
from capstan.replay.planning.request import CHANGES, HOW, INPUT, OUTPUT, Request

_FIELDS = {field.name: field for field in fields_of(Request)}


# For runs that wait for no person of Airflow: by API alone.
NOT_IN_FORM = frozenset({"hold"})
# What most requests have: Airflow opens this part of the form, and folds the sections.
_USUAL = ("stream", "replay", "into", "since", "until", "workers")
# Fields with texts of several names, each with what belongs to it.
_LISTS = ("workers_of",)
DIFFERENCES = "Show in the plan which rows the replay would add, remove and change. Starts Spark."


def replay_form(settings: Settings) -> dict[str, Param]:
    """The form of `capstan_replay`; its fields have the names of a replay request's fields."""
    choices = {**_input_choices(settings), **_output_choices(settings)}
    form = {name: _param(_FIELDS[name], None, choices.get(name, {})) for name in _USUAL}
    for section in (INPUT, OUTPUT, CHANGES, HOW):
        if section == HOW:
            form |= _task_fields()
        for name, field in _FIELDS.items():
            asked = name not in NOT_IN_FORM and name not in form
            if asked and (field.help.section or HOW) == section:
                form[name] = _param(field, section, choices.get(name, {}))
    return form


def filled(params: GivenFields) -> dict[str, object]:
    """The fields of a form that are filled in: a blank one is not given."""
    return {
        name: value
        for name, value in params.items()
        if value not in (None, "", [], ()) and not (isinstance(value, str) and not value.strip())
    }


def workers_field(labels: Mapping[str, Iterable[str]], section: str | None = None) -> Param:
    """The field that chooses workers of one or several streams."""
    return _param(_FIELDS["workers"], section, _labels(labels))


def _labels(labels: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    streams: dict[str, list[str]] = {}
    for stream, names in labels.items():
        for label in names:
            streams.setdefault(label, []).append(stream)
    several = len(labels) > 1
    shown = {label: f"{label} ({', '.join(names)})" if several else label
             for label, names in streams.items()}  # fmt: skip
    return {"examples": list(streams), "values_display": shown}


def switch(title: str, description: str, section: str | None = HOW) -> Param:
    """A switch, off by default."""
    # Airflow marks a field that cannot be null as one that has to be filled in.
    kind = ["boolean", "null"]
    return Param(False, type=kind, title=title, description_md=description, section=section)


def peers_field() -> Param:
    """The field for the number of replay workers."""
    return _param(_FIELDS["peers"], None, {"minimum": 1})


def _param(field: Field, section: str | None, choices: Mapping[str, Any]) -> Param:
    """The field of a form for a field of a request; `choices` has names of JSON Schema."""
    kind, value = field.kind, field.default
    if kind is bool:
        return switch(field.title, field.form, section)
    if kind is int:
        return number_field(field.title, field.form, section, **choices)
    if kind is tuple or field.name in _LISTS:
        return list_field(field.title, field.form, section, **choices)
    schema: dict[str, Any] = {"type": "string"}
    if field.optional or kind is Mapping:
        schema, value = {"type": ["string", "null"]}, None
    schema |= choices
    value = schema.pop("value", value)
    if not {"enum", "pattern"} & schema.keys():
        schema["minLength"] = 1
    given = () if value is dataclasses.MISSING else (value,)
    return Param(*given, title=field.title, description_md=field.form, section=section, **schema)


def _input_choices(settings: Settings) -> dict[str, dict[str, Any]]:
    """What the fields of the input offer, by field."""
    streams, replays = settings.declarations.streams, settings.declarations.replays
    return {
        "stream": {
            **_choice(
                "that of the declared replay", {n: s.description for n, s in streams.items()}
            ),
            "type": ["string", "null"],
            "value": next(iter(streams)) if len(streams) == 1 else None,
        },
        "streams": {"pattern": STREAMS_PATTERN},
        "replay": _choice("none", {n: each.description for n, each in replays.items()}),
        "workers": _labels(labels_by_stream(settings)),
    }


def _output_choices(settings: Settings) -> dict[str, dict[str, Any]]:
    """What the fields of the output offer, by field."""
    declared, registry = settings.declarations, settings.declarations.registry
    targets = dict.fromkeys([*declared.targets, *(r.target for r in declared.replays.values())])
    transforms = {name: registry.get(name).description for name in registry.names}
    return {
        "into": {"examples": list(targets), "type": ["string", "null"], "value": None},
        "transform": _choice("none: copy the records", transforms),
        "pipeline": _choice("none", declared.pipelines),
        "mode": {
            "type": ["string", "null"],
            "value": None,
            "enum": [None, *map(str, Mode)],
            "values_display": {
                "None": "as declared, or replace",
                "replace": "replace the replayed workers and times",
                "append": "append",
                "merge": "merge on keys",
            },
        },
        "peers": {"minimum": 1},
    }


def _choice(none: str, described: Mapping[str, str]) -> dict[str, Any]:
    return {"enum": [None, *described], "values_display": {"None": none, **_shown(described)}}


def _shown(described: Mapping[str, str]) -> dict[str, str]:
    return {name: f"{name}: {about}".rstrip(": ") for name, about in described.items()}


def _task_fields() -> dict[str, Param]:
    """The fields that control the task itself."""
    return {
        "dry_run": switch(
            "Dry run", "Stop after the plan, which shows what would be read and written."
        ),
        "diff": switch("Differences", DIFFERENCES),
        "wait": switch("Wait", "Wait until the range is complete."),
    }


def number_field(title: str, description: str, section: str | None, minimum: int = 0) -> Param:
    """A field for an integer, which may be empty."""
    return Param(
        None,
        type=["integer", "null"],
        minimum=minimum,
        title=title,
        description_md=description,
        section=section,
    )


def list_field(title: str, description: str, section: str | None, **choices: Any) -> Param:
    """A field for a list of strings, which may be empty."""
    return Param(
        None,
        type=["array", "null"],
        minItems=1,
        items={"type": "string"},
        title=title,
        description_md=description,
        section=section,
        **choices,
    )
