"""Which tables the sinks of a pipeline go into, where a command does not say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    import typer

    from capstan.core.config import ProjectConfig
    from capstan.pipeline import Pipeline


def every_sink(
    given: Mapping[str, object], declarations: ProjectConfig
) -> list[Mapping[str, object]]:
    """The fields `sink` and `into` of a request for each sink of a pipeline, as it declares them.

    Args:
        given: The command's parameters.
        declarations: What is declared.

    Raises:
        InvalidRequestError: `CAP-USAGE` with another choice of what is played or where it goes;
            `CAP-PIPELINE` when a sink names no table.
    """
    for name in ("into", "sink"):
        if given[name] is not None:
            raise InvalidRequestError(
                "CAP-USAGE",
                f"--{name} does not go with --all-sinks",
                "each sink of the pipeline goes into the table that it names",
            )
    if given["pipeline"] is None:
        raise InvalidRequestError(
            "CAP-USAGE", "--all-sinks goes with --pipeline", "name the pipeline"
        )
    found = _pipeline(given["pipeline"], declarations)
    nowhere = [sink.node for sink in found.sinks if sink.target is None]
    if nowhere:
        raise InvalidRequestError(
            "CAP-PIPELINE",
            f"pipeline {found.name} does not say which table {', '.join(nowhere)} goes into",
            "name a target in each Sink of the pipeline, or replay it by --sink and --into",
        )
    return [{"sink": sink.node, "into": sink.target} for sink in found.sinks]


def usual_target(context: typer.Context, declarations: ProjectConfig) -> str:
    """The table that a pipeline's sink goes into, where a command names none.

    Raises:
        InvalidRequestError: `CAP-USAGE` when it has no usual one.
    """
    given = context.params
    if given["pipeline"] is not None:
        from capstan.replay.planning.computation import find_sink

        target = find_sink(_pipeline(given["pipeline"], declarations), given["sink"]).target
        if target is not None:
            return target
    other = " or --into-stream STREAM" if "into_stream" in given else ""
    raise InvalidRequestError(
        "CAP-USAGE",
        f"a replay needs --into TABLE{other}",
        f"see `capstan {context.info_name} --help`",
    )


def _pipeline(name: object, declarations: ProjectConfig) -> Pipeline:
    from capstan.pipeline import pipelines

    return pipelines(references=declarations.pipelines).get(str(name))
