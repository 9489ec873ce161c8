"""What a request asks for, resolved: the range of times, and the computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from capstan.core.config import ProjectConfig, Replay, Target, source_of
from capstan.core.config.loading.registry import transforms
from capstan.core.times import Box, TimeType
from capstan.errors import InvalidRequestError
from capstan.pipeline import Pipeline, Sink, pipelines
from capstan.replay.planning.computation import Computation, CopyComputation, TransformComputation
from capstan.replay.planning.lookup_input import Pin, at_pins, lookups_of, pin_lookups
from capstan.replay.planning.pipeline_computation import PipelineComputation
from capstan.replay.planning.request import Request
from capstan.replay.planning.stream_input import Inputs, workers_for
from capstan.replay.snapshots import Snapshot
from capstan.storage.lake import Lake
from capstan.storage.tape.grains import require_whole_steps
from capstan.storage.tape.worker_choice import WorkerChoice

_INTERVAL = (
    "; if an Airflow template gave both, the run has no data interval: schedule its DAG with a "
    "CronDataIntervalTimetable (a cron text has none in Airflow 3), or replay by hand with params"
)


def requested_box(inputs: Inputs, request: Request) -> Box:
    """The times of a request: its bounds, restricted to those known at an epoch."""
    time_type = inputs.time_type
    since = Box.bound_of_text(time_type, request.since)
    until = Box.bound_of_text(time_type, request.until)
    for stream in inputs:
        require_whole_steps(stream.tape, since, until)
    box = Box(since, until, time_type.order)
    if request.known_at is not None:
        box = box.intersect(_known(inputs.tape.name, time_type, request.known_at))
    if box.is_empty_from(time_type.minimum):
        raise InvalidRequestError(
            "CAP-RANGE",
            f"the range from {request.since} to {request.until} is empty or reversed",
            "give its first time, and the first time after it"
            + _INTERVAL * (box.since == box.until),
        )
    return box


def require_declared_part(inputs: Inputs, box: Box, request: Request, declared: Replay) -> None:
    """Check that a run of a declared replay has no other workers and times than that has."""
    for stream in inputs:
        names = workers_for(stream.source, declared, inputs.worker_source)
        choice = WorkerChoice.among(stream.labels)
        known = set(map(choice.worker, names or ()))
        others = [label for number, label in stream.workers.items() if number not in known]
        if names is not None and others:
            raise declared.otherwise("workers", tuple(names), tuple(others))
    bounds = requested_box(inputs, replace(request, **declared.bounds))
    for key, own in declared.bounds.items():
        part = replace(box, **{key: getattr(bounds, key)})
        if bounds.intersect(box) != box and bounds.intersect(part) == part:
            raise declared.otherwise(key, own, getattr(request, key))
    if bounds.intersect(box) != box:
        given = f"{request.since} to {request.until}"
        raise declared.otherwise("times", " to ".join(map(str, declared.bounds.values())), given)


def _known(stream: str, time_type: TimeType, epoch: int) -> Box:
    """The times up to an epoch."""
    names = time_type.names
    if "epoch" not in names:
        raise InvalidRequestError(
            "CAP-KNOWN-AT",
            f"times of stream {stream} have no epoch: {', '.join(names)}",
            "leave out --known-at, or name a commit of the tape with --as-of",
            stream=stream,
        )
    past = time_type.coordinates[names.index("epoch")].parse(epoch) + 1
    until = tuple(past if name == "epoch" else None for name in names)
    return Box((None,) * len(names), until)


def requested_sink(config: ProjectConfig, request: Request) -> tuple[Pipeline, Sink] | None:
    """The pipeline of a request and its sink; None for a copy or a transform."""
    if request.pipeline is None:
        return None
    config.require_sound("pipelines", request.pipeline)
    pipeline = pipelines(references=config.pipelines).get(request.pipeline)
    sink = find_sink(pipeline, request.sink)
    _require_streams(pipeline, sink, request)
    return pipeline, sink


def find_sink(pipeline: Pipeline, node: str | None) -> Sink:
    """The requested sink, or the only one when none is named."""
    if node is not None:
        return pipeline.sink(node)
    if len(pipeline.sinks) == 1:
        return pipeline.sinks[0]
    raise InvalidRequestError(
        "CAP-PIPELINE",
        f"pipeline {pipeline.name} has several sinks, and none is chosen: "
        + ", ".join(sink.node for sink in pipeline.sinks),
        "choose one with --sink; each target table needs a run of its own",
        pipeline=pipeline.name,
    )


def record_computation(
    config: ProjectConfig, request: Request, declared: Target | None
) -> Computation:
    """The copy or the transform of a request."""
    if request.transform is None:
        return CopyComputation.into(declared)
    config.require_sound("transforms", request.transform)
    return TransformComputation.of(transforms(config.transforms).get(request.transform))


def sink_computation(
    lake: Lake,
    request: Request,
    chosen: tuple[Pipeline, Sink],
    inputs: Inputs,
    box: Box,
    resumed: Snapshot | None,
    pins: Mapping[str, Pin] | None,
) -> Computation:
    """A sink of a pipeline over a range, resumed from a snapshot, at versions of its lookups."""
    computation = PipelineComputation.of(*chosen, inputs, box).resuming(resumed)
    for stream in inputs:
        computation.require_coarse(stream.tape.step)
    if pins is None:
        return replace(computation, lookups=pin_lookups(lake, *chosen, request.lookups))
    return replace(computation, lookups=at_pins(lake, lookups_of(*chosen), pins))


def _require_streams(pipeline: Pipeline, sink: Sink, request: Request) -> None:
    """Check that there are streams for each source of a sink; an only stream needs no source."""
    dag = pipeline.plan([sink.node]).dag
    tables = {table.source for table in pipeline.tables}
    sources = [dag.nodes[number].name for number in dag.sources]
    streams = {name for name in sources if name not in tables}
    if not streams:
        raise pipeline.refusal("reads tables alone; a replay reads a stream")
    named = set(map(source_of, request.streams))
    if streams == named or (len(streams) == 1 and not named):
        return
    given = f"streams for {', '.join(sorted(named))}" if named else "one stream"
    each = ",".join(f"{source}=STREAM" for source in sorted(streams))
    raise InvalidRequestError(
        "CAP-STREAMS",
        f"sink {sink.node} of pipeline {pipeline.name} reads {', '.join(sorted(streams))}, and the "
        f"replay names {given}",
        f"name a stream for each source, as {each}" if len(streams) > 1 else "name one stream",
        pipeline=pipeline.name,
        sources=sorted(streams),
    )
