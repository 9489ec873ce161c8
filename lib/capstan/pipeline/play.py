"""Runs a pipeline on Spark: a stage after the other, a `DagExecutor` in each of their tasks.

A stage is one `mapInArrow`; between stages lies a shuffle by the hash of the next one's key. All of
it is one Spark job where no stage has several readers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel, TaskContext
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from capstan.audit.shape import quoted
from capstan.dag import TIME, Plan, Stage
from capstan.pipeline import frames
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.failing import in_task, on_driver
from capstan.pipeline.frames import Notes, Reader, Rows
from capstan.pipeline.layout import AT, KIND, NOTE, NodeMetrics, NoteKind, part
from capstan.pipeline.reach import Reach
from capstan.pipeline.tables import side_rows
from capstan.pipeline.task import Work
from capstan.tape.columns import coordinate
from capstan.tape.schema import time_struct
from capstan.times import TimeType

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
class Played:
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
    """

    sinks: Mapping[str, DataFrame]
    aside: DataFrame
    metrics: DataFrame
    nodes: tuple[NodeMetrics, ...]
    trimmed: Mapping[str, int]
    put_aside: Mapping[tuple[str, str], int]
    _kept: tuple[DataFrame, ...] = field(default=(), repr=False)

    def release(self) -> None:
        """Let go of what was kept; the frames are of no more use."""
        for frame in self._kept:
            frame.unpersist()


def sink_columns(pipeline: Pipeline, node: str, reach: Reach) -> StructType:
    """The columns of a sink's rows as `Played.sinks` has them; nothing runs.

    Raises:
        BadRequest: As `play`.
    """
    schema = pipeline.plan([node]).dag.node(node).schema
    own = frames.spark_type(pipeline, node, schema)
    fields = [field for field in own.fields if field.name != TIME]
    if pipeline.sink(node).time == TIME:
        declared = TimeType((reach.time_type.coordinates[reach.coordinate],))
        fields.insert(0, StructField(TIME, time_struct(declared)))
    return StructType(fields)


def persisted(frame: DataFrame) -> DataFrame:
    """Keep what a stage has put out in memory, and what does not fit on the executors' disks."""
    return frame.persist(StorageLevel.MEMORY_AND_DISK)


def play(
    spark: SparkSession,
    records: DataFrame | Mapping[str, DataFrame],
    pipeline: Pipeline,
    reach: Reach,
    *,
    sinks: Iterable[str] | None = None,
    peers: int = 2,
    keep: Keep = persisted,
) -> Played:
    """Run a pipeline over records, to the end.

    The multiset of rows that comes out does not depend on `peers`, nor on how the records are
    partitioned.

    Args:
        spark: The session.
        records: What `played_records` gives: `_worker`, `_time`, perhaps `_label`, `_batch` and
            `_pos`, then the stream's own columns. Of several streams by the names of their sources.
        pipeline: What runs; it has to be registered.
        reach: What is read and written, as `reach_of` gives it. Records at other times than
            `reach.reads`, or at times that are not complete, must not be there.
        sinks: The sinks that are wanted; only what they depend on runs. None for all.
        peers: How many replay workers a stage with a key has.
        keep: Stores what is read several times. It must read what it is given to its end only
            once, or the pipeline runs again.

    Raises:
        OperatorFailed: An operator raised; node, time and worker are in its fields.
        BadRequest: `CAP-PIPELINE` when the stream's columns are not those that it reads;
            `CAP-DAG-...` when the graph cannot be meant.
    """
    if peers < 1:
        raise pipeline.refusal(f"needs at least one replay worker, not {peers}")
    plan = pipeline.plan(sinks)
    run = _Run(spark, pipeline, plan, reach, peers, keep, _streams(pipeline, plan, records))
    try:
        with on_driver():
            for stage in plan.stages:
                run.add(stage)
            return run.played()
    except BaseException:
        run.release()
        raise


def _streams(
    pipeline: Pipeline, plan: Plan, records: DataFrame | Mapping[str, DataFrame]
) -> dict[str, DataFrame]:
    tables = {table.source for table in pipeline.tables}
    names = [plan.dag.nodes[number].name for number in plan.dag.sources]
    wanted = [name for name in names if name not in tables]
    given = records if isinstance(records, Mapping) else dict.fromkeys(wanted, records)
    if len(wanted) > 1 and not isinstance(records, Mapping):
        raise pipeline.refusal(f"reads several streams: {', '.join(wanted)}")
    missing = [name for name in wanted if name not in given]
    if missing:
        raise pipeline.refusal(f"reads {missing[0]}, which is not there")
    return {name: given[name] for name in wanted}


class _Run:
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
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._plan = plan
        self._reach = reach
        self._peers = peers
        self._keep = keep
        self._streams = streams
        self._frames: dict[int, DataFrame] = {}
        self._works: dict[int, Work] = {}
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
            frames.spark_type(self._pipeline, name, stage.dag.node(name).schema)
        frame = frames.incoming(self._inputs(stage, work), work.incoming, self._peers)
        frame = frame.mapInArrow(_body(work), from_arrow_schema(work.outgoing))
        if stage.sinks or len(self._readers[stage.number]) > 1:
            frame = self._keep(frame)
            self._kept.append(frame)
        self._frames[stage.number] = frame
        for name in stage.sinks:
            self._sinks[name] = self._shaped(name, frame, part(work.part_of(name)))

    def release(self) -> None:
        """Let go of what was kept."""
        for frame in self._kept:
            frame.unpersist()

    def played(self) -> Played:
        """Run all of it; what came out."""
        ends = [stage.number for stage in self._plan.stages if stage.sinks]
        notes = [frames.notes_of(self._frames[number]) for number in ends]
        said = reduce(lambda one, other: one.unionByName(other), notes)
        # This reads every frame that was kept to its end, and so runs the tasks, once.
        told = said.where(F.col(KIND) != NoteKind.ASIDE.value).collect()
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
            [tuple(each.as_json().values()) for each in nodes], _METRICS
        )
        late = Counter[tuple[str, str]]()
        for each in nodes:
            late[each.node, "late"] += each.counters.late_rows
            late[each.node, "side"] += each.counters.side_rows
        put_aside = {place: rows for place, rows in late.items() if rows}
        return Played(
            self._sinks, aside, metrics, tuple(nodes), dict(trimmed), put_aside, tuple(self._kept)
        )

    def _work(self, stage: Stage) -> Work:
        own = [name for name in stage.nodes if not self._plan.dag.inputs(name)]
        inputs = (*own, *(entry.source for entry in stage.inputs))
        ordered = stage.key is not None
        reach = self._reach
        return Work(stage, inputs, ordered, reach.last, reach.since, reach.until)

    def _inputs(self, stage: Stage, work: Work) -> list[Rows]:
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
            return frames.from_records(self._pipeline, name, schema, records, self._reach)
        table = next(each for each in self._pipeline.tables if each.source == name)
        frames.spark_type(self._pipeline, name, schema)
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


def _body(work: Work) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
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
