"""Arguments and options of several commands, their parsers, and those of a replay's request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_type_hints

import typer

from capstan.cli.pipeline_targets import usual_target
from capstan.core.config import Mode, ProjectConfig, joined_streams, parse_pairs, parse_streams
from capstan.core.config.help import Field, fields_of
from capstan.core.config.names import split_names
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request

Stream = Annotated[str, typer.Argument(help="The stream's name.", metavar="STREAM")]
Run = Annotated[str, typer.Argument(help="The run's name, from `capstan runs`.", metavar="RUN")]
Workers = Annotated[
    str | None,
    typer.Option(
        help="Workers by label or number, comma-separated; put a label with a comma, or with "
        "blanks at its ends, in double quotes; default: all.",
        metavar="LIST",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(help="First time, such as 2013-03-01, 17 or epoch=3; default: the start."),
]
Until = Annotated[
    str | None, typer.Option(help="First time after the range; default: all complete times.")
]
AsOf = Annotated[
    int | None,
    typer.Option(help="The cut: a commit of the tape; default: the newest.", metavar="CUT"),
]

# Given by other options, or for schedules and forms alone.
NO_OPTIONS = frozenset({"streams", "cuts", "approve", "replay"})
# Several values in one text, or text of which a command makes the field.
_AS_TEXT = (tuple, Mapping)
_TEXTS = {"as_of": str, "workers_of": list[str]}
_NAMES = {"lookups": "--lookup"}


def streams(text: str) -> dict[str, object]:
    """The fields of a request that the argument of streams gives."""
    by_source = parse_streams(text)
    return {"stream": joined_streams(by_source) if by_source else text, "streams": by_source}


def cuts(text: str | None) -> dict[str, Any]:
    """The fields of a request that the option `--as-of` gives."""
    by_source = parse_pairs(text or "")
    numbers = {name: _number(cut) for name, cut in by_source.items()}
    return {"as_of": None if text is None or by_source else _number(text), "cuts": numbers}


def workers_by_source(texts: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    """The workers by source that options `--workers-of` give."""
    chosen: dict[str, tuple[str, ...]] = {}
    for text in texts or ():
        source, equals, listed = (part.strip() for part in text.partition("="))
        if not (source and equals) or source in chosen:
            raise InvalidRequestError(
                "CAP-LIST",
                f"--workers-of {text[:80]!r} does not name workers of another source",
                "give each source once, as in --workers-of orders=EWR,JFK --workers-of refunds=EWR",
                option="--workers-of",
            )
        chosen[source] = names(listed, "--workers-of") or ()
    return chosen


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRequestError(
            "CAP-USAGE",
            f"--as-of takes the number of a commit, not {text[:80]!r}",
            "see `capstan show` for the commits of a tape",
        ) from None


def lookup_versions(text: str | None) -> dict[str, int]:
    """The versions of lookup tables that the option `--lookup` gives, by the lookup's name."""
    versions: dict[str, int] = {}
    for part in () if text is None else text.split(","):
        name, _, version = (word.strip() for word in part.partition("="))
        if not (name and version.isascii() and version.isdecimal()) or name in versions:
            raise InvalidRequestError(
                "CAP-USAGE",
                f"--lookup takes NAME=VERSION,..., each name once, not {part.strip()[:80]!r}",
                "`capstan explain` lists the lookups of a pipeline",
            )
        versions[name] = int(version)
    return versions


def names(text: str | None, option: str) -> tuple[str, ...] | None:
    """The names in a comma-separated list; None when the option was not given."""
    if text is None:
        return None
    try:
        listed = tuple(dict.fromkeys(split_names(text)))
    except ValueError:
        raise InvalidRequestError(
            "CAP-LIST",
            f"{option} has quotes that do not enclose a whole name: {text[:80]!r}",
            "put a name with a comma, or with blanks at its ends, in double quotes, as in "
            "'EWR,\"a,b\"', and double each quote inside",
            option=option,
        ) from None
    if not listed:
        raise InvalidRequestError(
            "CAP-LIST",
            f"{option} is an empty list: {text[:80]!r}",
            "give comma-separated names, or omit the option",
            option=option,
        )
    return listed


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


def request_of(context: typer.Context, config: ProjectConfig, **other: str | None) -> Request:
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
