"""Arguments and options of several commands, their parsers, and those of a replay's request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from capstan.core.config import Mode, ProjectConfig, joined_streams, parse_streams
from capstan.core.config.help import Field, fields_of
from capstan.core.config.names import split_names
from capstan.core.config.stream_names import parse_pairs
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request

if TYPE_CHECKING:
    from capstan.pipeline import Pipeline

# Several values in one text, or text of which a command makes the field.
_AS_TEXT = (tuple, Mapping)
_TEXTS = {"as_of": str, "workers_of": list[str]}
_NAMES = {"lookups": "--lookup"}
_FIELDS = {field.name: field for field in fields_of(Request)}


def _option(name: str) -> Any:
    """The option of a field of a request."""
    field = _FIELDS[name]
    metavar = field.help.metavar or ("LIST" if field.kind in _AS_TEXT else None)
    if name == "stream":
        return typer.Argument(help=field.cli, metavar=metavar)
    return typer.Option(_NAMES.get(name, field.option), help=field.cli, metavar=metavar)


Stream = Annotated[str, typer.Argument(help="The stream's name.", metavar="STREAM")]
Run = Annotated[str, typer.Argument(help="The run's name, from `capstan runs`.", metavar="RUN")]
Workers = Annotated[str | None, _option("workers")]
Since = Annotated[str | None, _option("since")]
Until = Annotated[str | None, _option("until")]
AsOf = Annotated[
    int | None,
    typer.Option(help="The cut: a commit of the tape; default: the newest.", metavar="CUT"),
]

# Given by other options, or for schedules and forms alone.
NO_OPTIONS = frozenset({"streams", "cuts", "approve", "replay"})


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
    fields = [_parameter(field) for field in _FIELDS.values() if field.name not in NO_OPTIONS]
    command.__signature__ = inspect.Signature([parameters[0], *fields, *parameters[1:]])  # type: ignore[attr-defined]
    return command


def _parameter(field: Field) -> inspect.Parameter:
    kind: Any = _TEXTS.get(field.name) or (str if field.kind in _AS_TEXT else field.kind)
    default: Any = field.default
    if field.name == "stream":
        default = inspect.Parameter.empty
    elif field.kind in _AS_TEXT or default is inspect.Parameter.empty or field.name == "into":
        default, kind = None, kind | None
    elif field.optional:
        kind = kind | None
    annotation = Annotated[kind, _option(field.name)]
    return inspect.Parameter(
        field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation
    )


def request_of(context: typer.Context, config: ProjectConfig, **other: str | None) -> Request:
    """The request of a command with these options; `other` replaces the command's parameters."""
    params = context.params
    given = {**params, **streams(params["stream"]), **cuts(params["as_of"]), **other}
    fields: dict[str, Any] = {}
    for field in _FIELDS.values():
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


def every_sink(given: Mapping[str, Any], config: ProjectConfig) -> list[dict[str, str | None]]:
    """The request fields `sink` and `into` for each sink of a pipeline, into its own target."""
    for name in ("into", "sink"):
        if given[name] is not None:
            raise InvalidRequestError(
                "CAP-USAGE",
                f"--{name} cannot be combined with --all-sinks",
                "each sink of the pipeline names its own table",
            )
    if given["pipeline"] is None:
        raise InvalidRequestError(
            "CAP-USAGE", "--all-sinks requires --pipeline", "name the pipeline"
        )
    pipeline = _pipeline(given["pipeline"], config)
    untargeted = [sink.node for sink in pipeline.sinks if sink.target is None]
    if untargeted:
        raise InvalidRequestError(
            "CAP-PIPELINE",
            f"pipeline {pipeline.name} names no target for {', '.join(untargeted)}",
            "name a target in each Sink of the pipeline, or use --sink and --into",
        )
    return [{"sink": sink.node, "into": sink.target} for sink in pipeline.sinks]


def usual_target(context: typer.Context, config: ProjectConfig) -> str:
    """The default target of a pipeline's sink, for a command without `--into`."""
    given = context.params
    if given["pipeline"] is not None:
        from capstan.replay.planning.requested import find_sink

        target = find_sink(_pipeline(given["pipeline"], config), given["sink"]).target
        if target is not None:
            return target
    alternative = " or --into-stream STREAM" if "into_stream" in given else ""
    raise InvalidRequestError(
        "CAP-USAGE",
        f"a replay needs --into TABLE{alternative}",
        f"see `capstan {context.info_name} --help`",
    )


def _pipeline(name: object, config: ProjectConfig) -> Pipeline:
    from capstan.pipeline import pipelines

    return pipelines(references=config.pipelines).get(str(name))
