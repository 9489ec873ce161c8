"""The stages of a pipeline as Spark frames: a `mapInArrow` each, with shuffles between them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.stage_planner import Stage, StagePlan
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark import row_transport
from capstan.pipeline.spark.node_frames import sink_rows
from capstan.pipeline.spark.plans.spark_nodes import Keep, SparkNodes
from capstan.pipeline.spark.row_transport import Notes, Reader, Rows
from capstan.pipeline.spark.stage_task import StageWork
from capstan.pipeline.spark.task_errors import in_task
from capstan.pipeline.spark.wire_format import KIND, NOTE, NodeMetrics, NoteKind, part
from capstan.spark.versions_api import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ASIDE = "node STRING, output STRING, name STRING, worker INT, time BIGINT, row STRING"


@dataclass(frozen=True, slots=True)
class CarriedState:
    """State that one run of a pipeline passes to the next."""

    # `state_rows.COLUMNS` of an earlier run with as many replay workers; None starts without.
    state: DataFrame | None = None
    keeps: bool = False  # whether to return the final state


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """Result of a pipeline's run."""

    # Rows of each chosen sink: the time, then the sink's own columns.
    sinks: Mapping[str, DataFrame]
    # Diverted rows: `node`, `output` (`late`, `side`, `change`), `name` (of a side output),
    # `worker`, `time` (an integer), and the `row` as JSON.
    aside: DataFrame
    nodes: tuple[NodeMetrics, ...]  # counters of every node on every replay worker
    # Rows of each sink dropped because their times are outside the range.
    trimmed: Mapping[str, int]
    put_aside: Mapping[tuple[str, str], int]  # number of diverted rows, by node and output
    # If requested: `state_rows.COLUMNS`, with output for a later run to write.
    state: DataFrame | None = None
    _kept: tuple[DataFrame, ...] = field(default=(), repr=False)

    def release(self) -> None:
        """Release the stored frames; they are unusable afterwards."""
        for frame in self._kept:
            frame.unpersist()


@dataclass(slots=True)
class StageBuilder:
    """Builds the frames of the stages, one after another."""

    spark: SparkSession
    pipeline: Pipeline
    plan: StagePlan
    reach: Reach
    peers: int
    keep: Keep
    computed: SparkNodes  # The nodes before the stages: at least all sources.
    carried: CarriedState
    _frames: dict[int, DataFrame] = field(default_factory=dict)
    _works: dict[int, StageWork] = field(default_factory=dict)
    _sinks: dict[str, DataFrame] = field(default_factory=dict)
    _kept: list[DataFrame] = field(default_factory=list)

    def add(self, stage: Stage) -> None:
        """Build the frame of a stage after the stages that it reads."""
        if _is_source_only(stage):
            (name,) = stage.nodes
            self._frames[stage.number] = self.computed.rows(name)
            return
        resumes, keeps = self.carried.state is not None, self.carried.keeps
        work = self._works[stage.number] = StageWork.create(
            self.plan.dag, stage, self.reach, self.peers, resumes=resumes, keeps=keeps
        )
        for name in work.outputs:
            row_transport.spark_type(self.pipeline, name, stage.dag.node(name).schema)
        state = None
        if self.carried.state is not None and _has_state(stage):
            state = self.carried.state.where(F.col("stage") == stage.number)
        frame = row_transport.incoming(self._inputs(stage, work), work.incoming, self.peers, state)
        frame = frame.mapInArrow(_body(work), from_arrow_schema(work.outgoing))
        several = len(self._readers(stage.number)) > 1
        if several or stage.sinks or (keeps and _has_state(stage)):
            frame = self.keep(frame)
            self._kept.append(frame)
        self._frames[stage.number] = frame
        for name in stage.sinks:
            row, names = F.col(part(work.part_of(name))), stage.dag.node(name).schema.names
            rows = frame.where(row.isNotNull())
            self._sinks[name] = sink_rows(
                self.pipeline, name, names, rows, row.getField, self.reach
            )

    def release(self) -> None:
        """Release the stored frames."""
        for frame in (*self._kept, *self.computed.kept):
            frame.unpersist()

    def run(self) -> PipelineRun:
        """Run all stages and return the result."""
        ends = [stage.number for stage in self.plan.stages if stage.sinks]
        by_stage = [row_transport.notes_of(self._frames[number]) for number in ends]
        no_notes = self.spark.createDataFrame([], f"{KIND} STRING, {NOTE} STRING")
        notes = reduce(lambda one, other: one.unionByName(other), by_stage, no_notes)
        # This reads every stored frame to its end, and so runs the tasks exactly once.
        counts = notes.where(
            F.col(KIND).isin(NoteKind.METRICS.value, NoteKind.TRIMMED.value)
        ).collect()
        parsed = [(NoteKind(row[KIND]), json.loads(row[NOTE])) for row in counts]
        nodes = [NodeMetrics.from_json(note) for kind, note in parsed if kind is NoteKind.METRICS]
        nodes.sort(key=lambda node: (node.stage, node.node, node.worker))
        sinks = {**self._sinks, **self.computed.sinks}
        trimmed = Counter({**dict.fromkeys(sinks, 0), **self.computed.trimmed()})
        for kind, note in parsed:
            if kind is NoteKind.TRIMMED:
                trimmed[note["node"]] += note["rows"]
        diverted = notes.where(F.col(KIND) == NoteKind.ASIDE.value)
        aside = diverted.select(F.from_json(NOTE, _ASIDE).alias("note")).select("note.*")
        put_aside = Counter[tuple[str, str]]()
        for node in nodes:
            put_aside[node.node, "late"] += node.counters.late_rows
            put_aside[node.node, "side"] += node.counters.side_rows
        return PipelineRun(
            sinks,
            aside,
            tuple(nodes),
            dict(trimmed),
            {place: rows for place, rows in put_aside.items() if rows},
            self._state() if self.carried.keeps else None,
            (*self._kept, *self.computed.kept),
        )

    def _state(self) -> DataFrame:
        """Return the rows of state of all stages that have any."""
        numbers = [stage.number for stage in self.plan.stages if _has_state(stage)]
        states = [row_transport.state_of(self._frames[number]) for number in numbers]
        return reduce(lambda one, other: one.unionByName(other), states)

    def _inputs(self, stage: Stage, work: StageWork) -> list[Rows]:
        """Return the inputs of a stage: its own sources, and each earlier stage once."""
        inputs = []
        by_stage: dict[int, list[Reader]] = {}
        for number, source in enumerate(work.inputs):
            entry = next((entry for entry in stage.inputs if entry.source == source), None)
            if entry is None:
                inputs.append(Rows(self.computed.rows(source), (Reader(number, part(0), None),)))
                continue
            producer = self.plan.stage_of(entry.producer).number
            earlier = self._works.get(producer)
            column = part(0 if earlier is None else earlier.part_of(entry.producer))
            by_stage.setdefault(producer, []).append(Reader(number, column, entry.columns))
        for producer, readers in by_stage.items():
            notes = self._notes(producer, stage.number)
            inputs.append(Rows(self._frames[producer], tuple(readers), notes))
        return inputs

    def _readers(self, producer: int) -> list[int]:
        """Return the numbers of the stages that read a stage."""
        return [
            stage.number
            for stage in self.plan.stages
            if any(self.plan.stage_of(e.producer).number == producer for e in stage.inputs)
        ]

    def _notes(self, producer: int, reader: int) -> Notes:
        """Select the notes that one stage passes to another: marks always, all others only once."""
        if producer not in self._works:
            return Notes.NONE
        # The notes of a stage with sinks are read from its own frame.
        first = not self.plan.stages[producer].sinks and self._readers(producer)[0] == reader
        return Notes.ALL if first else Notes.MARKS


def _is_source_only(stage: Stage) -> bool:
    """Whether a stage is a source alone, whose rows go directly to its readers."""
    return len(stage.nodes) == 1 and not stage.inputs and not stage.sinks


def _has_state(stage: Stage) -> bool:
    """Whether the stage's tasks have final state, or output for a later run."""
    return stage.key is not None or bool(stage.sinks)


def _body(work: StageWork) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # Of equivalent Arrow types Spark reads only one: no large strings, no milliseconds.
    schema = arrow_schema(from_arrow_schema(work.outgoing))
    same = schema.equals(work.outgoing)

    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        worker = 0 if context is None else context.partitionId()
        with in_task():
            for batch in work.run(batches, worker):
                yield batch if same else batch.cast(schema)

    return body
