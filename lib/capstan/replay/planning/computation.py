"""The computation of a replay: a copy, a transform, or a sink of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar, Self

from capstan.core.config import ProjectConfig, Target, Transform, source_of, transforms
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.pipeline import Pipeline, Reach, Sink, pipelines, reach_of
from capstan.pipeline.graph.signature import require_unchanged
from capstan.pipeline.input_range import coordinate_of, resuming
from capstan.pipeline.operators.time_buffer import units
from capstan.replay.planning.lookup_input import LookupInput, Pin
from capstan.replay.planning.request import Request
from capstan.replay.snapshots.ledger import Snapshot
from capstan.storage.tape.grains import grain_text, require_multiples

# A century: longer durations stand for "without end".
_FOR_EVER = 100 * 365 * 86_400_000_000
# Parameters of operators that are durations.
_DURATIONS = ("size", "slide", "offset", "gap", "within", "window", "lower", "upper", "every")


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """The facts of a computation that plans and ledgers need.

    Attributes:
        title: The name in messages: `transform by_day`, `pipeline late_carriers at days`.
        name: The name in the ledgers: `by_day`, `late_carriers.days`; empty for a copy.
        code: The hash of its code and settings; empty for a copy.
        time: The output column that stands for the time; None when it keeps none.
        worker: The column of the captured worker; None when rows mix several workers.
        grain: Ranges must be multiples of this many units of the coordinate; 1 allows any range.
        keys: The columns that identify a row within a time.
        worker_source: The source of the streams whose worker `worker` is; None for all.
        lookups: The lookup tables that a pipeline reads, at their pinned versions.
    """

    kind: ClassVar[str]

    title: str
    name: str
    code: str
    time: str | None
    worker: str | None
    grain: int = 1
    keys: tuple[str, ...] = ()
    worker_source: str | None = None
    lookups: tuple[LookupInput, ...] = ()

    @property
    def lookup_pins(self) -> Mapping[str, Pin]:
        """The pinned versions of lookup tables, by the lookup's name."""
        return {each.lookup.name: each.pin for each in self.lookups}

    def time_type(self, tape: TimeType) -> TimeType:
        """The times of the rows that it writes; `tape` are those of the stream."""
        return tape

    def project(self, box: Box) -> Box:
        """A range of the stream's times, in the coordinates of the rows that it writes."""
        return box

    def reads(self, region: Region) -> Region:
        """The times of the records that it reads to write the rows of a region."""
        return region

    def at(self, _region: Region) -> Computation:
        """The same computation, for the rows of a region."""
        return self

    def is_complete(self, box: Box, frontier: Antichain) -> bool:
        """Whether no further record under a frontier can change the rows of a range."""
        return box.is_complete(frontier)

    def coordinate(self, tape: TimeType) -> int:
        """The position of the coordinate that is the event time."""
        return len(tape.coordinates) - 1

    def written_until(self, tape: TimeType, frontier: Antichain) -> Antichain:
        """The end of the rows that can be written: whole grains under a frontier."""
        last = len(tape.coordinates) - 1
        if self.grain == 1 or tape.coordinates[last].kind is not Kind.TIMESTAMP:
            return frontier
        return Antichain.of(
            (*time[:last], time[last] - time[last] % self.grain) for time in frontier.elements
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyComputation(Computation):
    """A copy of the records.

    When a run is rolled back, this also stands for its transform, which may have changed since:
    `name` and `code` are then those that the run recorded.
    """

    kind: ClassVar[str] = "copy"

    @classmethod
    def into(cls, declared: Target | None) -> Self:
        """A copy into a target, whose declaration may name the columns of worker and time."""
        worker, time = (
            ("_worker", "_time") if declared is None else (declared.worker, declared.time)
        )
        return cls(title="a copy", name="", code="", time=time, worker=worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformComputation(Computation):
    """A registered transform.

    Attributes:
        transform: The transform.
    """

    kind: ClassVar[str] = "transform"

    transform: Transform

    @classmethod
    def of(cls, transform: Transform) -> Self:
        """The computation of a transform."""
        return cls(
            title=f"transform {transform.name}",
            name=transform.name,
            code=transform.code_hash,
            time=transform.time,
            worker=transform.worker,
            grain=1 if transform.grain is None else units(transform.grain),
            keys=transform.keys,
            transform=transform,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineComputation(Computation):
    """A sink of a pipeline, over a range.

    Attributes:
        pipeline: The pipeline.
        sink: The sink whose rows the target gets.
        reach: The times that are read, and the times of the rows that are kept.
        box: The requested range, in all coordinates of the stream's time.
        frontier: The common frontier of the chosen workers at the cut.
        resumed: The snapshot of an earlier run to resume from; None for none.
    """

    kind: ClassVar[str] = "pipeline"

    pipeline: Pipeline
    sink: Sink
    reach: Reach
    box: Box
    frontier: Antichain
    resumed: Snapshot | None = None

    @classmethod
    def over(
        cls,
        pipeline: Pipeline,
        sink: Sink,
        time_type: TimeType,
        box: Box,
        frontier: Antichain,
    ) -> Self:
        """A sink of a pipeline over a range."""
        suffix = f" at {sink.node}" if len(pipeline.sinks) > 1 else ""
        return cls(
            title=f"pipeline {pipeline.name}{suffix}",
            name=f"{pipeline.name}.{sink.node}",
            code=pipeline.code_hash,
            time=sink.time,
            worker=sink.worker,
            grain=1 if sink.grain is None else units(sink.grain),
            keys=sink.keys,
            worker_source=sink.worker_source,
            pipeline=pipeline,
            sink=sink,
            reach=reach_of(pipeline, time_type, box, frontier),
            box=box,
            frontier=frontier,
        )

    def resuming(self, snapshot: Snapshot | None) -> Self:
        """The same computation, resumed from a snapshot."""
        if snapshot is not None and snapshot.signatures is not None:
            signatures = self.pipeline.signatures(self.sink.node)
            require_unchanged(snapshot.signatures, signatures, whole=True)
        return replace(self, resumed=snapshot)

    def require_coarse(self, step: int) -> None:
        """Check that no operator distinguishes times within a step of the stream.

        A record has the time of its step. Within a step, windows are empty or full by chance,
        sessions never end, and joins match rows that lie apart. A duration of 1 is no duration: it
        groups rows of the same time.

        Args:
            step: The stream's step in microseconds; 1 when times are not truncated.
        """
        kind = self.reach.time_type.coordinates[self.reach.coordinate].kind
        if step == 1 or kind is not Kind.TIMESTAMP:
            return
        for node in self.pipeline.plan([self.sink.node]).dag.nodes:
            for name in _DURATIONS:
                duration = getattr(node.operator, name, None)
                if not isinstance(duration, int | timedelta):
                    continue
                span = abs(units(duration))
                if 1 < span <= _FOR_EVER and span % step:
                    multiple = grain_text(Kind.TIMESTAMP, step)
                    raise InvalidRequestError(
                        "CAP-GRAIN",
                        f"pipeline {self.pipeline.name}: {name} of {node.name} is "
                        f"{grain_text(Kind.TIMESTAMP, span)}, and the stream's times "
                        f"are whole multiples of {multiple}",
                        f"choose a multiple of {multiple}, or capture the stream with a finer "
                        "`every`",
                        pipeline=self.pipeline.name,
                        node=node.name,
                    )

    def time_type(self, tape: TimeType) -> TimeType:
        """The one coordinate of the stream's time that its rows have."""
        return TimeType((tape.coordinates[self.reach.coordinate],))

    def project(self, box: Box) -> Box:
        """A range in that coordinate alone."""
        at = self.reach.coordinate
        return Box((box.since[at],), (box.until[at],))

    @property
    def input_region(self) -> Region:
        """The times of the records that it reads, including those around the rows that it keeps."""
        above = None if self.resumed is None else self.resumed.frontier
        return Region(self.reach.reads, below=self.frontier, above=above)

    def reads(self, _region: Region) -> Region:
        """The times of the records that it reads; they include the region's own range."""
        return self.input_region

    def is_complete(self, box: Box, frontier: Antichain) -> bool:
        """Whether no further record under a frontier can change the rows of a range."""
        return reach_of(self.pipeline, self.reach.time_type, box, frontier).complete

    def coordinate(self, tape: TimeType) -> int:
        """The position of the coordinate that its operators take as the time."""
        return coordinate_of(self.pipeline, tape)

    def written_until(self, tape: TimeType, _frontier: Antichain) -> Antichain:
        """The end of the rows that can be written: whole grains that are complete."""
        end = self.reach.until
        if end is None:
            return Antichain()
        least = self.time_type(tape).minimum[0]
        return Antichain.of([Time((max(least, end - end % self.grain),))])

    def at(self, region: Region) -> Self:
        """The same computation, keeping only the rows of a region of its one coordinate."""
        kept, at = region.simplified().box, self.reach.coordinate

        def with_bound(bounds: tuple[int | None, ...], bound: int | None) -> tuple[int | None, ...]:
            return (*bounds[:at], bound, *bounds[at + 1 :])

        since, until = kept.since[0], kept.until[0]
        box = Box(with_bound(self.box.since, since), with_bound(self.box.until, until))
        reach = reach_of(self.pipeline, self.reach.time_type, box, self.frontier)
        if self.resumed is not None:
            reach = resuming(reach, self.resumed.last)
        return replace(self, reach=reach)


def computation_of(
    declarations: ProjectConfig,
    request: Request,
    time_type: TimeType,
    box: Box,
    frontier: Antichain,
    declared: Target | None,
) -> Computation:
    """Resolve and check the computation of a request, without a JVM."""
    if request.transform is not None:
        declarations.require_sound("transforms", request.transform)
        transform = transforms(declarations.transforms).get(request.transform)
        return TransformComputation.of(transform)
    if request.pipeline is None:
        return CopyComputation.into(declared)
    pipeline, sink = _requested(declarations, request.pipeline, request.sink)
    _require_streams(pipeline, sink, request)
    return PipelineComputation.over(pipeline, sink, time_type, box, frontier)


def kept_source(declarations: ProjectConfig, request: Request) -> str | None:
    """The source to which the `workers` of a request of several streams belong; None for all."""
    if request.workers is None or not request.streams or request.pipeline is None:
        return None
    return _requested(declarations, request.pipeline, request.sink)[1].worker_source


def _requested(declarations: ProjectConfig, name: str, node: str | None) -> tuple[Pipeline, Sink]:
    declarations.require_sound("pipelines", name)
    pipeline = pipelines(references=declarations.pipelines).get(name)
    return pipeline, find_sink(pipeline, node)


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


def check_workers(computation: Computation, *, everyone: bool) -> None:
    """Check that all workers are chosen when the output mixes them."""
    if computation.worker is None and not everyone:
        raise InvalidRequestError(
            "CAP-WORKERS",
            f"{computation.title} mixes workers: its output has no column of the worker",
            "replay all workers, or have it keep the worker and declare the column",
        )


def check_grain(computation: Computation, time_type: TimeType, box: Box) -> None:
    """Check that a range consists of whole grains."""
    at = computation.coordinate(time_type)
    bounds = (box.since[at], box.until[at])
    subject = f"{computation.title} works"
    require_multiples(subject, time_type.coordinates[at], bounds, computation.grain)


def _require_streams(pipeline: Pipeline, sink: Sink, request: Request) -> None:
    """Check that a request names streams for each source of a sink that is no table.

    The source of an only stream has no need of its name.
    """
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
