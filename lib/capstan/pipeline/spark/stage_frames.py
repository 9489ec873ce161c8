"""The stages of a pipeline as frames of Spark: a `mapInArrow` each, with a shuffle between them."""

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
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.stage_planner import Plan, Stage
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark import row_transport
from capstan.pipeline.spark.row_transport import Notes, Reader, Rows
from capstan.pipeline.spark.side_tables import side_rows
from capstan.pipeline.spark.stage_task import StageWork
from capstan.pipeline.spark.task_errors import in_task
from capstan.pipeline.spark.wire_format import AT, KIND, NOTE, NodeMetrics, NoteKind, part
from capstan.storage.tape.region_sql import quoted
from capstan.storage.tape.time_columns import coordinate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Keep = Callable[["DataFrame"], "DataFrame"]
"""Stores what a stage has put out, and gives it back: it is read several times."""

_ASIDE = "node STRING, output STRING, name STRING, worker INT, time BIGINT, row STRING"
_METRICS = (
    "stage INT, worker INT, node STRING, events_in BIGINT, events_out BIGINT, invocations BIGINT, "
    "total_time_ns BIGINT, rows_in BIGINT, rows_out BIGINT, late_rows BIGINT, side_rows BIGINT, "
    "timers_fired BIGINT"
)


@dataclass(frozen=True, slots=True)
class CarriedState:
    """The state that one run of a pipeline hands on to the next.

    Attributes:
        state: What an earlier run on as many replay workers has handed on: rows of
            `keeping.COLUMNS`. None begins without.
        keeps: Whether this one hands on its own.
    """

    state: DataFrame | None = None
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """What came of a pipeline's run.

    Attributes:
        sinks: The rows of each chosen sink: its time, then its own columns.
        aside: What operators put aside: `node`, `output` (`late`, `side` or `change`), `name` (of
            a side output), `worker`, `time` (an integer), and the `row` as JSON.
        metrics: The counters of every node on every replay worker, for people and the ledger.
        nodes: The same as values.
        trimmed: For each sink how many of its rows were left out, as their times lie outside the
            range.
        put_aside: How many rows were put aside, by node and output.
        state: Where that was asked for, what the replay workers know in the end, and what has come
            out for a later run to write: rows of `keeping.COLUMNS`.
    """

    sinks: Mapping[str, DataFrame]
    aside: DataFrame
    metrics: DataFrame
    nodes: tuple[NodeMetrics, ...]
    trimmed: Mapping[str, int]
    put_aside: Mapping[tuple[str, str], int]
    state: DataFrame | None = None
    _kept: tuple[DataFrame, ...] = field(default=(), repr=False)

    def release(self) -> None:
        """Let go of what was kept; the frames are of no more use."""
        for frame in self._kept:
            frame.unpersist()


class StageBuilder:
    """The stages that have been laid out so far, and what comes out of them."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        plan: Plan,
        reach: Reach,
        peers: int,
        keep: Keep,
        streams: Mapping[str, DataFrame],
        carried: CarriedState,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._plan = plan
        self._reach = reach
        self._peers = peers
        self._keep = keep
        self._streams = streams
        self._carried = carried
        self._frames: dict[int, DataFrame] = {}
        self._works: dict[int, StageWork] = {}
        self._sinks: dict[str, DataFrame] = {}
        self._kept: list[DataFrame] = []
        self._readers: dict[int, list[int]] = {stage.number: [] for stage in plan.stages}
        for stage in plan.stages:
            for number in {plan.stage_of(entry.producer).number for entry in stage.inputs}:
                self._readers[number].append(stage.number)

    def add(self, stage: Stage) -> None:
        """Lay out a stage whose inputs are there."""
        if _passes_on(stage):
            (name,) = stage.nodes
            self._frames[stage.number] = self._source(name)
            return
        work = self._works[stage.number] = self._work(stage)
        for name in work.outputs:
            row_transport.spark_type(self._pipeline, name, stage.dag.node(name).schema)
        known = None
        if self._carried.state is not None and _has_state(stage):
            known = self._carried.state.where(F.col("stage") == stage.number)
        frame = row_transport.incoming(self._inputs(stage, work), work.incoming, self._peers, known)
        frame = frame.mapInArrow(_body(work), from_arrow_schema(work.outgoing))
        several = len(self._readers[stage.number]) > 1
        if several or stage.sinks or (self._carried.keeps and _has_state(stage)):
            frame = self._keep(frame)
            self._kept.append(frame)
        self._frames[stage.number] = frame
        for name in stage.sinks:
            self._sinks[name] = self._shaped(name, frame, part(work.part_of(name)))

    def release(self) -> None:
        """Let go of what was kept."""
        for frame in self._kept:
            frame.unpersist()

    def played(self) -> PipelineRun:
        """Run all of it; what came out."""
        ends = [stage.number for stage in self._plan.stages if stage.sinks]
        notes = [row_transport.notes_of(self._frames[number]) for number in ends]
        said = reduce(lambda one, other: one.unionByName(other), notes)
        # This reads every frame that was kept to its end, and so runs the tasks, once.
        told = said.where(
            F.col(KIND).isin(NoteKind.METRICS.value, NoteKind.TRIMMED.value)
        ).collect()
        nodes = [
            NodeMetrics.from_json(json.loads(row[NOTE]))
            for row in told
            if row[KIND] == NoteKind.METRICS.value
        ]
        trimmed = Counter(dict.fromkeys(self._sinks, 0))
        for row in told:
            if row[KIND] == NoteKind.TRIMMED.value:
                note = json.loads(row[NOTE])
                trimmed[note["node"]] += note["rows"]
        nodes.sort(key=lambda each: (each.stage, each.node, each.worker))
        put = said.where(F.col(KIND) == NoteKind.ASIDE.value)
        aside = put.select(F.from_json(NOTE, _ASIDE).alias("note")).select("note.*")
        metrics = self._spark.createDataFrame(
            [tuple(each.to_json().values()) for each in nodes], _METRICS
        )
        late = Counter[tuple[str, str]]()
        for each in nodes:
            late[each.node, "late"] += each.counters.late_rows
            late[each.node, "side"] += each.counters.side_rows
        put_aside = {place: rows for place, rows in late.items() if rows}
        return PipelineRun(
            self._sinks,
            aside,
            metrics,
            tuple(nodes),
            dict(trimmed),
            put_aside,
            self._known() if self._carried.keeps else None,
            tuple(self._kept),
        )

    def _known(self) -> DataFrame:
        """The rows of state of all stages that have any."""
        numbers = [stage.number for stage in self._plan.stages if _has_state(stage)]
        kept = [row_transport.state_of(self._frames[number]) for number in numbers]
        return reduce(lambda one, other: one.unionByName(other), kept)

    def _work(self, stage: Stage) -> StageWork:
        carried = self._carried
        return StageWork.of(
            self._plan.dag,
            stage,
            self._reach,
            self._peers,
            resumes=carried.state is not None,
            keeps=carried.keeps,
        )

    def _inputs(self, stage: Stage, work: StageWork) -> list[Rows]:
        """What a stage reads: its own sources, and each earlier stage once."""
        found = []
        by_stage: dict[int, list[Reader]] = {}
        for number, source in enumerate(work.inputs):
            entry = next((each for each in stage.inputs if each.source == source), None)
            if entry is None:
                found.append(Rows(self._source(source), (Reader(number, part(0), None),)))
                continue
            made = self._plan.stage_of(entry.producer).number
            earlier = self._works.get(made)
            column = part(0 if earlier is None else earlier.part_of(entry.producer))
            by_stage.setdefault(made, []).append(Reader(number, column, entry.columns))
        for made, readers in by_stage.items():
            notes = self._notes(made, stage.number)
            found.append(Rows(self._frames[made], tuple(readers), notes))
        return found

    def _notes(self, made: int, reader: int) -> Notes:
        """What a stage passes on of the notes of an earlier one: all of them once, marks always."""
        if made not in self._works:
            return Notes.NONE
        # Those of a stage with sinks are read there.
        first = not self._plan.stages[made].sinks and self._readers[made][0] == reader
        return Notes.ALL if first else Notes.MARKS

    def _source(self, name: str) -> DataFrame:
        schema = self._plan.dag.node(name).schema
        if name in self._streams:
            records = self._streams[name]
            return row_transport.from_records(self._pipeline, name, schema, records, self._reach)
        table = next(each for each in self._pipeline.tables if each.source == name)
        row_transport.spark_type(self._pipeline, name, schema)
        rows = side_rows(self._pipeline, table, schema, self._reach)
        return self._spark.createDataFrame(rows)

    def _shaped(self, node: str, frame: DataFrame, column: str) -> DataFrame:
        """The rows of a sink as its target has them."""
        sink = self._pipeline.sink(node)
        own = [f.name for f in self._plan.dag.node(node).schema if f.name != TIME]
        rows = frame.where(F.col(column).isNotNull())
        columns = [F.col(f"{column}.{quoted(name)}") for name in own]
        if sink.time != TIME:
            return rows.select(*columns)
        declared = self._reach.time_type.coordinates[self._reach.coordinate]
        time = F.struct(coordinate(F.col(AT), declared)).alias(TIME)
        return rows.select(time, *columns)


def _passes_on(stage: Stage) -> bool:
    """Whether a stage is a source alone: its rows go straight to who reads them."""
    return len(stage.nodes) == 1 and not stage.inputs and not stage.sinks


def _has_state(stage: Stage) -> bool:
    """Whether its tasks know anything at the end, or have put out rows that wait."""
    return stage.key is not None or bool(stage.sinks)


def _body(work: StageWork) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # Of Arrow's types that hold the same, Spark reads one: no large strings, no milliseconds.
    wanted = to_arrow_schema(from_arrow_schema(work.outgoing), timezone="UTC")
    fits = wanted.equals(work.outgoing)

    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        worker = 0 if context is None else context.partitionId()
        with in_task():
            for made in work.run(batches, worker):
                yield made if fits else made.cast(wanted)

    return body
