"""Runner of pipelines on Spark: one stage after another, a `DagExecutor` in each of their tasks.

A stage is one `mapInArrow`. Between stages lies a shuffle by the hash of the next stage's key. If
no stage has several readers, the whole pipeline is one Spark job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pyspark import StorageLevel
from pyspark.sql.types import StructField, StructType

from capstan.core.times import TimeType
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.stage_planner import StagePlan
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark import row_transport
from capstan.pipeline.spark.plans.choice import choose, rest_of
from capstan.pipeline.spark.plans.spark_nodes import Keep, SparkNodes
from capstan.pipeline.spark.stage_frames import CarriedState, PipelineRun, StageBuilder
from capstan.pipeline.spark.task_errors import on_driver
from capstan.storage.tape.schema import time_struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Records: TypeAlias = "DataFrame | Mapping[str, DataFrame | Sequence[DataFrame]]"
"""The records of a pipeline's streams: of an only one, or by source."""


def sink_columns(pipeline: Pipeline, node: str, reach: Reach) -> StructType:
    """Return the columns of a sink's rows in `PipelineRun.sinks`, without running anything."""
    schema = pipeline.plan([node]).dag.node(node).schema
    columns = row_transport.spark_type(pipeline, node, schema)
    fields = [field for field in columns.fields if field.name != TIME]
    if pipeline.sink(node).time == TIME:
        declared = TimeType((reach.time_type.coordinates[reach.coordinate],))
        fields.insert(0, StructField(TIME, time_struct(declared)))
    return StructType(fields)


def require_fit(records: Records, pipeline: Pipeline, sink: str, reach: Reach) -> None:
    """Check that streams have the columns that a pipeline reads, without running anything."""
    plan = pipeline.plan([sink])
    for name, frames in _streams(pipeline, plan, records).items():
        for frame in frames:
            row_transport.from_records(pipeline, name, plan.dag.node(name).schema, frame, reach)


def persisted(frame: DataFrame) -> DataFrame:
    """Keep a stage's output in memory, and on the executors' disks if it does not fit."""
    return frame.persist(StorageLevel.MEMORY_AND_DISK)


def play(
    spark: SparkSession,
    records: Records,
    pipeline: Pipeline,
    reach: Reach,
    *,
    sinks: Iterable[str] | None = None,
    peers: int = 2,
    keep: Keep = persisted,
    carried: CarriedState | None = None,
    engine: bool = False,
    counting: bool = True,
) -> PipelineRun:
    """Run a pipeline over records.

    Spark computes the operators that it has, up to the first ones that only the engine has. State
    is the engine's, so a run that passes it on is computed by the engine alone.

    The multiset of output rows depends neither on `peers` nor on the partitioning of the records.

    Args:
        records: Result of `played_records`: `_worker`, `_time`, optionally `_label`, `_batch` and
            `_pos`, then the stream's own columns. For several streams, by the names of their
            sources; a source may have several, whose records it reads as one stream.
        reach: Times to read and write, from `reach_of`. `records` must not have times outside of
            `reach.reads`, or incomplete times.
        sinks: Sinks to compute; only what they depend on runs. None for all.
        peers: Number of replay workers of a stage with a key.
        keep: Stores output that is read several times. It must read its input to the end exactly
            once, or the pipeline runs again.
        carried: State to continue from, of the same number of `peers`, with the records that follow
            (`resuming`); and whether to return the final state.
        engine: Whether the engine computes all operators.
        counting: Whether to count the rows of Spark's sinks outside of the range. They are stored
            then, if there can be any.
    """
    if peers < 1:
        raise pipeline.refusal(f"needs at least one replay worker, not {peers}")
    plan = pipeline.plan(sinks)
    streams = _streams(pipeline, plan, records)
    carried = carried or CarriedState()
    stateful = carried.keeps or carried.state is not None
    choice = choose(plan.dag, None if engine or stateful else reach.last)
    computed = SparkNodes(spark, pipeline, plan.dag, reach, keep, streams, counting)
    rest = rest_of(plan, choice)
    run = StageBuilder(spark, pipeline, rest, reach, peers, keep, computed, carried)
    try:
        with on_driver():
            for name, operator in choice.plans.items():
                computed.add(name, operator)
            for stage in rest.stages:
                run.add(stage)
            return run.run()
    except BaseException:
        run.release()
        raise


def _streams(
    pipeline: Pipeline, plan: StagePlan, records: Records
) -> dict[str, Sequence[DataFrame]]:
    tables = {table.source for table in pipeline.tables}
    names = [plan.dag.nodes[number].name for number in plan.dag.sources]
    required = [name for name in names if name not in tables]
    given = records if isinstance(records, Mapping) else dict.fromkeys(required, records)
    if len(required) > 1 and not isinstance(records, Mapping):
        raise pipeline.refusal(f"reads several streams: {', '.join(required)}")
    missing = [name for name in required if name not in given]
    if missing:
        raise pipeline.refusal(f"reads {missing[0]}, which is missing")
    frames = {name: given[name] for name in required}
    return {n: f if isinstance(f, Sequence) else [f] for n, f in frames.items()}
