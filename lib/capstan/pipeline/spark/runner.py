"""Runs a pipeline on Spark: a stage after the other, a `DagExecutor` in each of their tasks.

A stage is one `mapInArrow`; between stages lies a shuffle by the hash of the next one's key. All of
it is one Spark job where no stage has several readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql.types import StructField, StructType

from capstan.core.times import TimeType
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.stage_planner import Plan
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark import row_transport
from capstan.pipeline.spark.stage_frames import CarriedState, Keep, PipelineRun, StageBuilder
from capstan.pipeline.spark.task_errors import on_driver
from capstan.storage.tape.schema import time_struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def sink_columns(pipeline: Pipeline, node: str, reach: Reach) -> StructType:
    """The columns of a sink's rows as `Played.sinks` has them; nothing runs.

    Raises:
        InvalidRequestError: As `play`.
    """
    schema = pipeline.plan([node]).dag.node(node).schema
    own = row_transport.spark_type(pipeline, node, schema)
    fields = [field for field in own.fields if field.name != TIME]
    if pipeline.sink(node).time == TIME:
        declared = TimeType((reach.time_type.coordinates[reach.coordinate],))
        fields.insert(0, StructField(TIME, time_struct(declared)))
    return StructType(fields)


def require_fit(records: DataFrame, pipeline: Pipeline, sink: str, reach: Reach) -> None:
    """Check that a stream has the columns that a pipeline reads; nothing runs.

    Args:
        records: As `play` has them.
        pipeline: What would run.
        sink: The sink that is wanted.
        reach: What would be read.

    Raises:
        InvalidRequestError: `CAP-PIPELINE`, naming the column.
    """
    plan = pipeline.plan([sink])
    for name, frame in _streams(pipeline, plan, records).items():
        row_transport.from_records(pipeline, name, plan.dag.node(name).schema, frame, reach)


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
    carried: CarriedState | None = None,
) -> PipelineRun:
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
        carried: The state to go on from, by as many `peers`, with the records that come after
            (`resuming`); and whether to hand on the state in the end.

    Raises:
        OperatorFailed: An operator raised; node, time and worker are in its fields.
        LateOutput: A row came out at a time that an earlier run has written already.
        StateError: The state is not all there, or does not fit.
        InvalidRequestError: `CAP-PIPELINE` when the stream's columns are not those that it reads;
            `CAP-DAG-...` when the graph cannot be meant.
    """
    if peers < 1:
        raise pipeline.refusal(f"needs at least one replay worker, not {peers}")
    plan = pipeline.plan(sinks)
    streams = _streams(pipeline, plan, records)
    run = StageBuilder(
        spark, pipeline, plan, reach, peers, keep, streams, carried or CarriedState()
    )
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
