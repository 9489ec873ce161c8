"""What computes the rows of a replay, and what of the records' place they keep."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import timedelta

from capstan.core.config import ProjectConfig, Transform, transforms
from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.pipeline import Pipeline, Reach, Sink, pipelines, reach_of
from capstan.pipeline.graph.signature import require_unchanged
from capstan.pipeline.input_range import coordinate_of, resuming
from capstan.pipeline.operators.time_buffer import units
from capstan.replay.planning.request import Request
from capstan.replay.planning.snapshot_ledger import Snapshot
from capstan.storage.tape.grains import grain_text, require_multiples

# A century: longer ones are meant to have no end.
_FOR_EVER = 100 * 365 * 86_400_000_000
# What operators call lengths of time.
_LENGTHS = ("size", "slide", "offset", "gap", "within", "window", "lower", "upper", "every")


@dataclass(frozen=True, slots=True)
class Computation:
    """A transform, or a sink of a pipeline, as far as plans and ledgers need to know it.

    Attributes:
        title: What people call it: `transform by_day`, `pipeline late_carriers at days`.
        name: What the ledgers call it: `by_day`, `late_carriers.days`.
        code: The hash of its code and settings.
        time: The column of its output that stands for the time; None where it keeps none.
        worker: The column of the captured worker; None where rows of several workers meet.
        grain: Ranges must be multiples of this many units of the coordinate; 1 leaves them free.
        keys: Columns that identify a row within a time.
    """

    title: str
    name: str
    code: str
    time: str | None
    worker: str | None
    grain: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PipelineComputation:
    """A pipeline as a replay plays it into one target.

    Attributes:
        pipeline: The pipeline.
        sink: The sink whose rows the target gets.
        reach: What is read, and the times of the rows that are kept.
        box: The range that was asked for, in all coordinates of the stream's time.
        frontier: Of the chosen workers together, at the cut.
        resumed: The snapshot of an earlier run that it goes on from, if there is one.
    """

    pipeline: Pipeline
    sink: Sink
    reach: Reach
    box: Box
    frontier: Antichain
    resumed: Snapshot | None = None

    @classmethod
    def over(
        cls,
        named: tuple[Pipeline, Sink],
        time_type: TimeType,
        box: Box,
        frontier: Antichain,
        resumed: Snapshot | None = None,
    ) -> PipelineComputation:
        """A sink of a pipeline over a range.

        Args:
            named: The pipeline and the sink.
            time_type: The coordinates of the stream's time.
            box: The range.
            frontier: Of the chosen workers together.
            resumed: The snapshot that it goes on from.
        """
        return cls(*named, reach_of(named[0], time_type, box, frontier), box, frontier, resumed)

    def require_unchanged(self) -> None:
        """Check that the state that it goes on from is that of the same operators.

        Raises:
            StateChanged: `CAP-DAG-STATE-CHANGED`, naming one that is not the same.
        """
        kept = None if self.resumed is None else self.resumed.signatures
        if kept is not None:
            require_unchanged(kept, self.pipeline.signatures(self.sink.node), whole=True)

    def require_coarse(self, step: int) -> None:
        """Check that its operators tell no times apart that the stream's records do not.

        A record has the time of the step that it falls into, so that within a step windows are
        empty or full by chance, sessions never end, and rows are joined that lie apart. A length
        of 1 is no length of time: it puts together what has the same time.

        Args:
            step: The stream's, in microseconds; 1 where times are as they come.

        Raises:
            InvalidRequestError: `CAP-GRAIN`, naming the operator and its length.
        """
        if step == 1 or self.time_type.coordinates[0].kind is not Kind.TIMESTAMP:
            return
        for node in self.pipeline.plan([self.sink.node]).dag.nodes:
            for name in _LENGTHS:
                length = getattr(node.operator, name, None)
                if not isinstance(length, int | timedelta):
                    continue
                span = abs(units(length))
                if 1 < span <= _FOR_EVER and span % step:
                    told = grain_text(Kind.TIMESTAMP, step)
                    raise InvalidRequestError(
                        "CAP-GRAIN",
                        f"pipeline {self.pipeline.name}: {name} of {node.name} is "
                        f"{grain_text(Kind.TIMESTAMP, span)}, and the stream's times "
                        f"are whole multiples of {told}",
                        f"choose a multiple of {told}; or capture the stream with a finer `every`",
                        pipeline=self.pipeline.name,
                        node=node.name,
                    )

    @property
    def time_type(self) -> TimeType:
        """The one coordinate that its rows have of the stream's time."""
        return TimeType((self.reach.time_type.coordinates[self.reach.coordinate],))

    @property
    def asked(self) -> Box:
        """The range that was asked for, in that coordinate alone."""
        at = self.reach.coordinate
        return Box((self.box.since[at],), (self.box.until[at],))

    @property
    def reads(self) -> Region:
        """The times whose records it reads."""
        above = None if self.resumed is None else self.resumed.frontier
        return Region(self.reach.reads, below=self.frontier, above=above)

    def complete(self, frontier: Antichain) -> bool:
        """Whether nothing can change its rows in the range any more, under a frontier."""
        return reach_of(self.pipeline, self.reach.time_type, self.box, frontier).complete

    def at(self, region: Region) -> PipelineComputation:
        """The same, of which the rows at these times are kept: those of its one coordinate."""
        kept, at = region.simplified().box, self.reach.coordinate

        def bound(one: tuple[int | None, ...], own: int | None) -> tuple[int | None, ...]:
            return (*one[:at], own, *one[at + 1 :])

        box = Box(bound(self.box.since, kept.since[0]), bound(self.box.until, kept.until[0]))
        reach = reach_of(self.pipeline, self.reach.time_type, box, self.frontier)
        if self.resumed is not None:
            reach = resuming(reach, self.resumed.last)
        return replace(self, reach=reach)


def computation_of(
    declarations: ProjectConfig, request: Request
) -> tuple[Transform | None, tuple[Pipeline, Sink] | None, Computation | None]:
    """The transform or the pipeline that a request names, found and checked; no JVM is needed.

    Raises:
        InvalidRequestError: `CAP-TRANSFORM` or `CAP-PIPELINE` when there is none of that name, or
            it cannot be used; `CAP-DAG-...` when its graph cannot be meant.
    """
    if request.transform is not None:
        declarations.require_sound("transforms", request.transform)
        found = transforms(declarations.transforms).get(request.transform)
        return found, None, _of_transform(found)
    if request.pipeline is None:
        return None, None, None
    declarations.require_sound("pipelines", request.pipeline)
    pipeline = pipelines(references=declarations.pipelines).get(request.pipeline)
    sink = find_sink(pipeline, request.sink)
    _require_one_stream(pipeline, sink)
    return None, (pipeline, sink), _of_sink(pipeline, sink)


def find_sink(pipeline: Pipeline, node: str | None) -> Sink:
    """The sink that a request names; the only one where it names none.

    Raises:
        InvalidRequestError: `CAP-PIPELINE` when there is no such sink, or there are several to
            choose from.
    """
    if node is not None:
        return pipeline.sink(node)
    if len(pipeline.sinks) == 1:
        return pipeline.sinks[0]
    raise InvalidRequestError(
        "CAP-PIPELINE",
        f"pipeline {pipeline.name} has the sinks "
        + ", ".join(sink.node for sink in pipeline.sinks)
        + ", and none is chosen",
        "choose one with --sink: what goes into one table is a run of its own",
        pipeline=pipeline.name,
    )


def time_of(piped: tuple[Pipeline, Sink] | None, time_type: TimeType) -> int:
    """The position of the coordinate in which ranges of output are told: the event time."""
    if piped is None:
        return len(time_type.coordinates) - 1
    return coordinate_of(piped[0], time_type)


def check_workers(computation: Computation, *, everyone: bool) -> None:
    """Check that all workers are chosen where rows of several of them meet.

    Raises:
        InvalidRequestError: `CAP-WORKERS`.
    """
    if computation.worker is None and not everyone:
        raise InvalidRequestError(
            "CAP-WORKERS",
            f"{computation.title} mixes workers: its output does not say whose a row is",
            "replay all workers, or have it keep the worker and declare the column",
        )


def check_grain(computation: Computation, time_type: TimeType, at: int, box: Box) -> None:
    """Check that a range consists of whole grains.

    Raises:
        InvalidRequestError: `CAP-GRAIN`, with the nearest bounds that do.
    """
    bounds = (box.since[at], box.until[at])
    what = f"{computation.title} works"
    require_multiples(what, time_type.coordinates[at], bounds, computation.grain)


def _of_transform(found: Transform) -> Computation:
    grain = 1 if found.grain is None else units(found.grain)
    return Computation(
        f"transform {found.name}",
        found.name,
        found.code_hash,
        found.time,
        found.worker,
        grain,
        found.keys,
    )


def _of_sink(pipeline: Pipeline, sink: Sink) -> Computation:
    several = len(pipeline.sinks) > 1
    return Computation(
        f"pipeline {pipeline.name}" + (f" at {sink.node}" if several else ""),
        f"{pipeline.name}.{sink.node}",
        pipeline.code_hash,
        sink.time,
        sink.worker,
        1 if sink.grain is None else units(sink.grain),
        sink.keys,
    )


def _require_one_stream(pipeline: Pipeline, sink: Sink) -> None:
    """Check that what a sink depends on reads one stream; its tables may be any number."""
    dag = pipeline.plan([sink.node]).dag
    tables = {table.source for table in pipeline.tables}
    streams = [dag.nodes[number].name for number in dag.sources]
    _require_one(pipeline, [name for name in streams if name not in tables])


def _require_one(pipeline: Pipeline, streams: Collection[str]) -> None:
    if len(streams) != 1:
        raise pipeline.refusal(
            f"reads {', '.join(sorted(streams)) or 'tables alone'}, and a replay plays one stream"
        )
