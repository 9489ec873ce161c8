"""The computation of a replay that is a sink of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar, Self

from capstan.core.protocol.events import STAMP
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.pipeline import Pipeline, Reach, Sink, reach_of
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.graph import Dag
from capstan.pipeline.graph.signature import require_unchanged
from capstan.pipeline.input_range import coordinate_of, resuming
from capstan.pipeline.operators.time_buffer import units
from capstan.pipeline.spark.key_draw import KeyDraw
from capstan.pipeline.spark.plans.choice import Choice, choose, span_of
from capstan.replay.planning.computation import Computation
from capstan.replay.planning.stream_input import Inputs
from capstan.replay.snapshots import Snapshot
from capstan.storage.ledger.region_json import region_text, render_bounds
from capstan.storage.tape.grains import grain_text

# A century: longer durations stand for "without end".
_FOR_EVER = 100 * 365 * 86_400_000_000
# Parameters of operators that are durations.
_DURATIONS = ("size", "slide", "offset", "gap", "within", "window", "lower", "upper", "every")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineComputation(Computation):
    """A sink of a pipeline, over a range."""

    kind: ClassVar[str] = "pipeline"

    pipeline: Pipeline
    sink: Sink
    reach: Reach  # The times that are read, and the times of the rows that are kept.
    box: Box  # The requested range, in all coordinates of the stream's time.
    frontier: Antichain  # The common frontier of the chosen workers at the cut.
    stamped: bool = False  # Whether a stream has messages under several times, or under none.
    drawn: KeyDraw | None = None  # The keys whose rows are computed; None for all.

    @classmethod
    def of(cls, pipeline: Pipeline, sink: Sink, inputs: Inputs, box: Box) -> Self:
        """A sink of a pipeline over a range of some streams."""
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
            state_name=pipeline.name,
            pipeline=pipeline,
            sink=sink,
            reach=reach_of(pipeline, inputs.time_type, box, inputs.frontier),
            box=box,
            frontier=inputs.frontier,
            stamped=any(stream.tape.stamped for stream in inputs),
        )

    def over(self, inputs: Inputs, box: Box) -> Self:
        """The same computation, over the streams at other cuts."""
        reach = reach_of(self.pipeline, inputs.time_type, box, inputs.frontier)
        # Opened anew, a tape may have stamps that it had not before.
        stamped = any(stream.tape.stamped for stream in inputs)
        return replace(self, reach=reach, box=box, frontier=inputs.frontier, stamped=stamped)

    def resuming(self, snapshot: Snapshot | None) -> Self:
        """The same computation, resumed from a snapshot."""
        if snapshot is not None and snapshot.signatures is not None:
            signatures = self.pipeline.signatures(self.sink.node)
            require_unchanged(snapshot.signatures, signatures, whole=True)
        return replace(self, resumed=snapshot)

    def require_coarse(self, step: int) -> None:
        """Check that no operator distinguishes times within a step of the stream, in microseconds.

        A record has the time of its step. Within a step, windows are empty or full by
        chance, sessions never end, and joins match rows that lie apart. A duration of 1 is
        no duration: it groups rows of the same time.
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

    def sources(self, box: Box, tape: TimeType) -> Box:
        """All times before the end of the range: its state is of all earlier records."""
        everything = Box.everything(tape)
        return Box(everything.since, (*everything.until[:-1], box.until[-1]))

    def step(self, _step: int) -> int:
        """1: its rows have times of their own, which are not truncated as the stream's are."""
        return 1

    @property
    def input_region(self) -> Region:
        """The times of the records that it reads, including those around the rows that it keeps."""
        above = None if self.resumed is None else self.resumed.frontier
        return Region(self.reach.reads, below=self.frontier, above=above)

    @property
    def reads_stamp(self) -> bool:
        """Whether a source declares the column `_stamp`."""
        dag = self.pipeline.plan([self.sink.node]).dag
        return any(STAMP in dag.nodes[number].schema.names for number in dag.sources)

    def reads(self, _region: Region) -> Region:
        """The times of the records that it reads; they include the region's own range."""
        region = self.input_region
        if not self.stamped or not region.is_everything:
            return region
        # What is under no time has no place in the order in which operators work.
        return replace(region, box=replace(region.box, since=self.reach.time_type.minimum))

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

    @property
    def engine_share(self) -> float:
        """As declared, if Spark computes some of it; 1 if each row may depend on any state."""
        if self.resumed is not None:
            return 1
        _, choice = self._chosen()
        computes = any(operator is not None for operator in choice.plans.values())
        return self.pipeline.engine_share if computes else 1

    @property
    def depends_on_near(self) -> bool:
        """Whether rows are known to depend on records of times around them alone."""
        # A lookback says on which times they depend, where the operators do not.
        known = units(self.pipeline.lookback) or span_of(*self._chosen()) is not None
        return bool(known) and not self.pipeline.unbounded

    def keys_of(self, salt: str) -> KeyDraw | None:
        """The keys by which its rows divide, none drawn yet; None where they do not."""
        return KeyDraw.of(self.pipeline, self.sink.node, salt)

    def part(self, region: Region) -> Self:
        """The computation of the rows of some of its times, from all records that it reads there.

        A replay of all records is right without a lookback; one of a part is not.
        """
        span = span_of(*self._chosen()) or 0
        # Rows whose time is a column may have one before their records.
        after = 0 if self.sink.time == TIME else span
        wide = replace(
            self.pipeline,
            lookback=max(units(self.pipeline.lookback), span),
            lookahead=max(units(self.pipeline.lookahead), after),
        )
        reach = replace(self, pipeline=wide).at(region).reach
        reads, last = reach.reads.intersect(self.reach.reads), min(reach.last, self.reach.last)
        return replace(self, reach=replace(reach, reads=reads, last=last))

    def _chosen(self) -> tuple[Dag, Choice]:
        """The graph of the sink, and who computes its nodes."""
        dag = self.pipeline.plan([self.sink.node]).dag
        return dag, choose(dag, self.reach.last)

    def identity_parts(self, _region: Region) -> dict[str, object]:
        """Its sink, and the times that it reads."""
        return {"pipeline": self.name, "reads": region_text(self.input_region.simplified())}

    def to_json(self, counters: Mapping[str, object] | None = None) -> dict[str, object]:
        """The pipeline as certificates and plans show it, with the range that it reads."""
        lookups = [each.to_json() for each in self.lookups]
        return {
            "name": self.pipeline.name,
            "sink": self.sink.node,
            "reads": render_bounds(self.reach.time_type, self.input_region),
            "resumed": None if self.resumed is None else self.resumed.name,
            **({"lookups": lookups} if lookups else {}),
            **(counters or {}),
        }


def as_pipeline(computation: Computation) -> PipelineComputation | None:
    """The computation, if it is a pipeline."""
    return computation if isinstance(computation, PipelineComputation) else None
