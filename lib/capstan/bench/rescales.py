"""What snapshots cost: taken, put back, and dealt to other replay workers, by a million keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.bench.clock import Cost
from capstan.bench.inputs import Bench
from capstan.bench.lines import Line
from capstan.dag import TIME, DagBuilder, DagExecutor, Event, Plan, Stage, plan_stages
from capstan.dag.operators import count_rows, sum_of
from capstan.pipeline.keeping import Kept, batch_of, rows_to_keep
from capstan.pipeline.rescaling import rescale
from capstan.state import KeyedAggregate, key_hashes
from capstan.state.chunks import PLACEMENT, cut_up, put_together

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS: Final = 1_000_000
_BEFORE: Final = 4
_AFTER: Final = 6
_SCHEMA: Final = pa.schema([("key", pa.string()), ("number", pa.int64()), (TIME, pa.int64())])


def rescales(bench: Bench) -> list[Line]:
    """CPU seconds of a million keys: into a snapshot and back in one process; dealt on Spark."""
    bench.say(f"{_KEYS:,} keys on {_BEFORE} replay workers")
    plan = _plan()
    stage = plan.stages[-1]
    before = _resident()
    known = _known(stage)
    detail = {**_sizes(stage, known), "memory a key": round((_resident() - before) / _KEYS, 1)}
    rows = _rows(bench.spark, [row for w in known for row in rows_to_keep(stage, w, known[w], {})])
    rows = rows.persist()
    rows.count()
    try:
        costs = {
            "snapshot": _each(bench, lambda: _taken(stage, known)),
            "snapshot and restore": _each(bench, lambda: _restored(stage, known)),
            "rescale on Spark": _each(bench, lambda: _dealt(rows, plan)),
        }
    finally:
        rows.unpersist()
    return [_line(name, found, detail) for name, found in costs.items()]


def _line(name: str, costs: list[Cost], detail: Mapping[str, object]) -> Line:
    seconds = [cost.cpu for cost in costs]
    walls = {"wall seconds": round(median(cost.wall for cost in costs), 3)}
    title = f"{name}, a million keys"
    return Line(
        title, "", median(seconds), None, "CPU s", rounds=tuple(seconds), detail={**detail, **walls}
    )


def _each(bench: Bench, work: Callable[[], None]) -> list[Cost]:
    return [bench.clock.measure(work) for _ in range(bench.options.rounds)]


def _plan() -> Plan:
    sums = KeyedAggregate((sum_of("number"), count_rows("rows")), ("key",))
    builder = DagBuilder().source("in", _SCHEMA).operator("sum", sums).connect("in", "sum")
    return plan_stages(builder.sink_for("sum", "out").build())


def _known(stage: Stage) -> dict[int, DagExecutor]:
    """An executor for each worker, which has seen each of its keys once."""
    keys = pa.array([f"key-{number}" for number in range(_KEYS)])
    owners = PLACEMENT.owners(key_hashes([keys]), range(_BEFORE))
    found = {}
    for worker in range(_BEFORE):
        mine = keys.filter(pc.equal(owners, worker))
        numbers = pa.array(np.arange(len(mine)), pa.int64())
        batch = pa.record_batch([mine, numbers, numbers], schema=_SCHEMA)
        executor = found[worker] = DagExecutor.from_dag(stage.dag, worker=worker)
        executor.process_event(stage.inputs[0].source, Event(0, batch))
        executor.take_all_sink_outputs()
    return found


def _taken(stage: Stage, known: Mapping[int, DagExecutor]) -> None:
    for worker, executor in known.items():
        cut_up(stage, worker, executor.checkpoint())


def _restored(stage: Stage, known: Mapping[int, DagExecutor]) -> None:
    for worker, executor in known.items():
        head, chunks = cut_up(stage, worker, executor.checkpoint())
        again = DagExecutor.from_dag(stage.dag, worker=worker)
        again.restore(put_together(stage, worker, _BEFORE, head, chunks))


def _dealt(rows: DataFrame, plan: Plan) -> None:
    rescale(rows, plan, _BEFORE, _AFTER).unpersist()


def _rows(spark: SparkSession, kept: list[Kept]) -> DataFrame:
    table = pa.Table.from_batches([batch_of(kept)])
    return spark.createDataFrame(table).repartition(_BEFORE, "worker")


def _resident() -> int:
    """Bytes of this process in memory."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def _sizes(stage: Stage, known: Mapping[int, DagExecutor]) -> dict[str, object]:
    """How large a snapshot is."""
    stored = 0
    for worker, executor in known.items():
        _, chunks = cut_up(stage, worker, executor.checkpoint())
        stored += sum(len(chunk.data) for chunk in chunks)
    return {"keys": _KEYS, "bytes a key": round(stored / _KEYS, 1)}
