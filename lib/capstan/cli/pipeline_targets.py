"""Default targets of a pipeline's sinks, for commands that name none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    import typer

    from capstan.core.config import ProjectConfig
    from capstan.pipeline import Pipeline


def every_sink(given: dict[str, Any], config: ProjectConfig) -> list[dict[str, str | None]]:
    """The request fields `sink` and `into` for each sink of a pipeline."""
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
