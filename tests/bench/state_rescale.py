"""Cost of snapshots of a million keys: taking, restoring, storing in Delta, rescaling."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.times import Antichain, Kind, TimeType
from capstan.pipeline import (
    TIME,
    DagBuilder,
    DagExecutor,
    Event,
    KeyedAggregate,
    Pipeline,
    Pipelines,
    Sink,
    Stage,
    StagePlan,
)
from capstan.pipeline.operators import count_rows, sum_of
from capstan.pipeline.spark.rescale import rescale
from capstan.pipeline.spark.runner import play
from capstan.pipeline.spark.stage_frames import CarriedState
from capstan.pipeline.spark.state_rows import StateRow, batch_of, final_state
from capstan.pipeline.state.chunks import assemble, split
from capstan.pipeline.state.key_hash import key_hashes, owners_of
from capstan.replay.snapshots import Snapshot, parts_of, read_parts, write_parts
from capstan.storage.lake import Lake
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import Bench
from tests.bench.measures import Line
from tests.support.local_runner import everything

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS: Final = 1_000_000
_BEFORE: Final = 4
_AFTER: Final = 6
_SCHEMA: Final = pa.schema([("key", pa.string()), ("number", pa.int64()), (TIME, pa.int64())])
_NAME: Final = "a_million_keys"
_TIMES: Final = TimeType.of(event=Kind.BIGINT)
_RECORDS: Final = "_worker INT, _time STRUCT<event: BIGINT>, key STRING, number BIGINT"
_LAST: Final = _KEYS
"""Watermark of a continued run: nothing has ended, so no sum is emitted."""


def rescales(bench: Bench) -> list[Line]:
    """CPU seconds for a million keys: in one process; from and into Delta; rescaled on Spark."""
    bench.say(f"{_KEYS:,} keys on {_BEFORE} replay workers")
    pipeline = _pipeline()
    plan = pipeline.plan()
    stage = plan.stages[-1]
    before = _resident()
    executors = _executors(stage)
    memory = (_resident() - before) / _KEYS
    detail = {**_sizes(stage, executors), "memory a key": round(memory, 1)}
    rows = _rows(
        bench.spark, [row for w in executors for row in final_state(stage, w, executors[w], {})]
    )
    rows = rows.persist()
    lake = Lake.at(bench.place("state"))
    snapshot = _snapshot("first", rows.count())
    write_parts(bench.spark, lake, snapshot, rows)
    try:
        costs = {
            "snapshot": _costs(bench, lambda: _take(stage, executors)),
            "snapshot and restore": _costs(bench, lambda: _restore(stage, executors)),
            "rescale on Spark": _costs(bench, lambda: _rescale(rows, plan)),
        }
    finally:
        rows.unpersist()
    lines = [_line(name, actual, detail) for name, actual in costs.items()]
    executors.clear()
    return [*lines, *_from_delta(bench, lake, pipeline, snapshot, detail)]


def _from_delta(
    bench: Bench, lake: Lake, pipeline: Pipeline, snapshot: Snapshot, detail: Mapping[str, object]
) -> list[Line]:
    """Cost of the state of a followed run: reading and restoring, and storing it for the next run.

    Raises:
        AssertionError: The number of rows differs afterwards.
    """
    bench.say(f"{_KEYS:,} keys from and into Delta")
    bench.clock.forget_peaks()
    read = _costs(bench, lambda: _continue_run(bench.spark, lake, pipeline, snapshot))
    peak = round(bench.clock.peak() / 2**20)
    names = (f"kept-{number}" for number in range(bench.options.rounds))
    kept = _costs(bench, lambda: _continue_run(bench.spark, lake, pipeline, snapshot, next(names)))
    assert set(parts_of(lake, _NAME).values()) == {snapshot.parts}
    return [
        _line("restore from Delta", read, {**detail, "peak MiB of a worker": peak}),
        _line("restore from Delta and snapshot into it", kept, detail),
    ]


def _continue_run(
    spark: SparkSession,
    lake: Lake,
    pipeline: Pipeline,
    snapshot: Snapshot,
    keeps: str | None = None,
) -> None:
    """Run a pipeline that continues from a snapshot, without records, and optionally keep it."""
    records = spark.createDataFrame([], _RECORDS)
    reach = replace(everything(_TIMES), last=_LAST)
    carried = CarriedState(read_parts(spark, lake, snapshot), keeps=keeps is not None)
    played = play(spark, records, pipeline, reach, peers=_BEFORE, carried=carried)
    try:
        if keeps is not None:
            assert played.state is not None
            write_parts(spark, lake, _snapshot(keeps, snapshot.parts), played.state)
    finally:
        played.release()


def _snapshot(name: str, parts: int) -> Snapshot:
    return Snapshot(name, _NAME, _BEFORE, Antichain(), _LAST, parts, rows=_KEYS, waiting=0, bytes=0)


def _line(name: str, costs: list[Cost], detail: Mapping[str, object]) -> Line:
    seconds = [cost.cpu for cost in costs]
    walls = {"wall seconds": round(median(cost.wall for cost in costs), 3)}
    title = f"{name}, a million keys"
    return Line(
        title, "", median(seconds), None, "CPU s", rounds=tuple(seconds), detail={**detail, **walls}
    )


def _costs(bench: Bench, work: Callable[[], None]) -> list[Cost]:
    return [bench.clock.measure(work) for _ in range(bench.options.rounds)]


def _graph() -> DagBuilder:
    sums = KeyedAggregate((sum_of("number"), count_rows("rows")), ("key",))
    builder = DagBuilder().source("in", _SCHEMA).operator("sum", sums).connect("in", "sum")
    return builder.sink_for("sum", "out")


def _pipeline() -> Pipeline:
    pipelines = Pipelines()
    pipelines.pipeline(name=_NAME, sinks=[Sink("out")], unbounded=True)(_graph)
    return pipelines.get(_NAME)


def _executors(stage: Stage) -> dict[int, DagExecutor]:
    """An executor for each worker, which has seen each of its keys once."""
    keys = pa.array([f"key-{number}" for number in range(_KEYS)])
    owners = owners_of(key_hashes([keys]), _BEFORE)
    executors = {}
    for worker in range(_BEFORE):
        own_keys = keys.filter(pc.equal(owners, worker))
        numbers = pa.array(np.arange(len(own_keys)), pa.int64())
        batch = pa.record_batch([own_keys, numbers, numbers], schema=_SCHEMA)
        executor = executors[worker] = DagExecutor.from_dag(stage.dag, worker=worker)
        executor.process_event(stage.inputs[0].source, Event(0, batch))
        executor.take_all_sink_outputs()
    return executors


def _take(stage: Stage, executors: Mapping[int, DagExecutor]) -> None:
    for worker, executor in executors.items():
        split(stage, worker, executor.checkpoint())


def _restore(stage: Stage, executors: Mapping[int, DagExecutor]) -> None:
    for worker, executor in executors.items():
        head, chunks = split(stage, worker, executor.checkpoint())
        again = DagExecutor.from_dag(stage.dag, worker=worker)
        again.restore(assemble(stage, worker, _BEFORE, head, chunks))


def _rescale(rows: DataFrame, plan: StagePlan) -> None:
    rescale(rows, plan, _BEFORE, _AFTER).unpersist()


def _rows(spark: SparkSession, kept: list[StateRow]) -> DataFrame:
    table = pa.Table.from_batches([batch_of(kept)])
    return spark.createDataFrame(table).repartition(_BEFORE, "worker")


def _resident() -> int:
    """Resident memory of this process, in bytes."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def _sizes(stage: Stage, executors: Mapping[int, DagExecutor]) -> dict[str, object]:
    """Size of a snapshot."""
    stored = 0
    for worker, executor in executors.items():
        _, chunks = split(stage, worker, executor.checkpoint())
        stored += sum(len(chunk.data) for chunk in chunks)
    return {"keys": _KEYS, "bytes a key": round(stored / _KEYS, 1)}
