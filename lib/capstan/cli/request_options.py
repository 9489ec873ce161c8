"""The options of `capstan plan` and `replay`, made from the fields of a replay's request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

import typer

from capstan.cli.options import cuts, lookup_versions, names, streams, workers_by_source
from capstan.cli.pipeline_targets import usual_target
from capstan.core.config import Mode, ProjectConfig
from capstan.core.config.help import Field, fields_of
from capstan.replay.planning.request import Request

# Given by other options, or for schedules and forms alone.
NO_OPTIONS = frozenset({"streams", "cuts", "approve", "replay"})
# Several values in one text, or text of which a command makes the field.
_AS_TEXT = (tuple, Mapping)
_TEXTS = {"as_of": str, "workers_of": list[str]}
_NAMES = {"lookups": "--lookup"}


def with_request_options(command: Callable[..., int]) -> Callable[..., int]:
    """A command with an option for each field of a request, before those of its own."""
    own = inspect.signature(command).parameters
    kinds = get_type_hints(command, include_extras=True)
    parameters = [
        inspect.Parameter(name, one.kind, default=one.default, annotation=kinds[name])
        for name, one in own.items()
        if one.kind is not one.VAR_KEYWORD
    ]
    fields = [_parameter(field) for field in fields_of(Request) if field.name not in NO_OPTIONS]
    command.__signature__ = inspect.Signature([parameters[0], *fields, *parameters[1:]])  # type: ignore[attr-defined]
    return command


def _parameter(field: Field) -> inspect.Parameter:
    kind: Any = _TEXTS.get(field.name) or (str if field.kind in _AS_TEXT else field.kind)
    listed = field.kind in _AS_TEXT
    metavar = field.help.metavar or ("LIST" if listed else None)
    default: Any = field.default
    if field.name == "stream":
        default, info = inspect.Parameter.empty, typer.Argument(help=field.cli, metavar=metavar)
    else:
        info = typer.Option(_NAMES.get(field.name, field.option), help=field.cli, metavar=metavar)
        if listed or default is inspect.Parameter.empty or field.name == "into":
            default, kind = None, kind | None
        elif field.optional:
            kind = kind | None
    return inspect.Parameter(
        field.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=default,
        annotation=Annotated[kind, info],
    )


def request_of(
    context: typer.Context, config: ProjectConfig, other: Mapping[str, object]
) -> Request:
    """The request of a command with these options; `other` replaces the command's parameters."""
    params = context.params
    given = {**params, **streams(params["stream"]), **cuts(params["as_of"]), **other}
    fields: dict[str, Any] = {}
    for field in fields_of(Request):
        if field.name not in given:
            continue
        value = given[field.name]
        if field.kind is tuple:
            value = names(value, field.option) or field.default
        fields[field.name] = value
    if fields["into"] is None:
        fields["into"] = usual_target(context, config)
    fields["mode"] = Mode(fields["mode"])
    fields["lookups"] = lookup_versions(fields["lookups"])
    fields["workers_of"] = workers_by_source(fields["workers_of"])
    return Request(**fields)
