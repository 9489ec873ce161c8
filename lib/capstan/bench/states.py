"""What keyed state costs by row: sums and sessions by key, beside bytewax and Spark's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capstan.bench.clock import Cost
from capstan.bench.incremental import spark_sum
from capstan.bench.inputs import Bench
from capstan.bench.lines import Line, ratio
from capstan.dag import TIME, Dag, DagBuilder, DagExecutor, Event, OperatorSpec
from capstan.dag.operators import SessionWindow, sum_of
from capstan.state import Data, KeyedAggregate, KeyedLogic, StatefulLogic
from capstan.state.logic import Output

_KEYS: Final = 100_000
_BATCH: Final = 10_000
_ROWS: Final = 10_000_000
_RECORDS: Final = 200_000
"""How many of them are taken one by one, here and by Spark: the rates do not depend on it."""
_GAP: Final = 50_000
_TICK: Final = timedelta(milliseconds=1)
_FEWER: Final = {"fold_window": 10_000}
_OTHERS: Final = 200_000
"""What bytewax gets: its windows take longer for each row the more there are of them."""

_SCHEMA: Final = pa.schema([("key", pa.string()), ("number", pa.int64()), (TIME, pa.int64())])


class _Sum(StatefulLogic[int, int, int]):
    """Puts out the sum so far for each record."""

    def on_data(self, message: Data[int], state: int | None, output: Output[int]) -> int:
        total = (state or 0) + message.value
        output.emit(message.key, total, message.time)
        return total


def states(bench: Bench) -> list[Line]:
    """Rows in a second and core through keyed sums and sessions.

    Beside bytewax only where it is installed, and beside Spark's `transformWithState`.
    """
    bench.say(f"{_ROWS:,} rows of {_KEYS:,} keys")
    rows = _rows()
    fewer = rows.slice(0, _RECORDS)
    by_record = KeyedLogic(_Sum(), ("key",), ("number",), pa.schema([("total", pa.int64())]))
    in_batches = KeyedAggregate((sum_of("number"),), ("key",))
    sessions = SessionWindow(_GAP, (sum_of("number"),), ("key",))
    given: list[tuple[str, OperatorSpec, float, str]] = [
        ("keyed sum, batch form", in_batches, 0.1, "reduce_final"),
        ("keyed sum, by record", by_record, 2 / 3, "stateful_map"),
        ("sessions, batch form", sessions, 0.1, "fold_window"),
    ]
    theirs = find_spec("bytewax") is not None
    found = [
        _line(
            bench, name, spec, fewer if spec is by_record else rows, goal, operator, theirs=theirs
        )
        for name, spec, goal, operator in given
    ]
    by_spark = spark_sum(bench, fewer, _files(bench, fewer))
    ours = _per_row(bench, lambda: _run(_graph(by_record), fewer), fewer.num_rows)
    ratios = [mine / other for mine, other in zip(ours, by_spark, strict=True)]
    detail = {"rows/s": 1 / median(ours), "transformWithState rows/s": 1 / median(by_spark)}
    name = "keyed sum, by record"
    beside = Line(
        name, "transformWithState", median(ratios), None, rounds=tuple(ratios), detail=detail
    )
    return [*found, beside]


def _files(bench: Bench, rows: pa.Table) -> Path:
    """The rows in files, each of which is a batch to a stream."""
    folder = bench.folder / "keyed"
    folder.mkdir()
    for number in range(4):
        part = rows.slice(number * rows.num_rows // 4, rows.num_rows // 4)
        pq.write_table(part, folder / f"part-{number}.parquet")
    return folder


def _line(
    bench: Bench,
    name: str,
    spec: OperatorSpec,
    rows: pa.Table,
    goal: float,
    operator: str,
    *,
    theirs: bool,
) -> Line:
    """CPU seconds of a row beside those of bytewax, and the rates of both."""
    dag = _graph(spec)
    ours = _per_row(bench, lambda: _run(dag, rows), rows.num_rows)
    detail: dict[str, object] = {"rows": rows.num_rows, "keys": _KEYS, "rows/s": 1 / median(ours)}
    if not theirs:
        return Line(name, "", 1 / median(ours), None, "rows/s", detail=detail)
    pairs = _pairs(rows.slice(0, _FEWER.get(operator, _OTHERS)))
    others = _per_row(bench, lambda: _run_bytewax(operator, pairs), len(pairs))
    ratios = [ratio(mine, other) for mine, other in zip(ours, others, strict=True)]
    detail |= {"bytewax rows": len(pairs), "bytewax rows/s": 1 / median(others)}
    return Line(
        name,
        f"bytewax {operator}",
        ratio(median(ours), median(others)),
        goal,
        rounds=tuple(each for each in ratios if each is not None),
        detail=detail,
    )


def _per_row(bench: Bench, work: Callable[[], None], rows: int) -> list[float]:
    costs: list[Cost] = [bench.clock.measure(work) for _ in range(bench.options.rounds)]
    return [cost.cpu / rows for cost in costs]


def _rows() -> pa.Table:
    draw = np.random.default_rng(1)
    keys = pc.cast(pa.array(draw.integers(0, _KEYS, _ROWS)), pa.string())
    numbers = pa.array(draw.integers(0, 100, _ROWS), pa.int64())
    return pa.table([keys, numbers, pa.array(np.arange(_ROWS))], schema=_SCHEMA)


def _pairs(rows: pa.Table) -> list[tuple[str, int]]:
    columns = [rows.column(name).to_pylist() for name in ("key", "number")]
    return list(zip(*columns, strict=True))


def _graph(spec: OperatorSpec) -> Dag:
    builder = DagBuilder().source("in", _SCHEMA).operator("sum", spec).connect("in", "sum")
    return builder.sink_for("sum", "out").build()


def _run(dag: Dag, rows: pa.Table) -> None:
    executor = DagExecutor.from_dag(dag)
    for batch in rows.to_batches(max_chunksize=_BATCH):
        first = batch.column(TIME)[0].as_py()
        executor.process_watermark("in", first)
        executor.process_event("in", Event(first, batch))
        executor.take_sink_outputs("out")
    executor.finish()
    assert executor.take_sink_outputs("out")


def _run_bytewax(operator: str, pairs: list[tuple[str, int]]) -> None:
    """The same by bytewax, on one worker."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    def running(state: int | None, number: int) -> tuple[int, int]:
        total = (state or 0) + number
        return total, total

    flow = Dataflow("sum")
    stream = op.input("pairs", flow, TestingSource(pairs, batch_size=1_000))
    sums: Any
    if operator == "reduce_final":
        sums = op.reduce_final("sum", stream, lambda one, other: one + other)
    elif operator == "stateful_map":
        sums = op.stateful_map("sum", stream, running)
    else:
        sums = _sessions(stream)
    found: list[object] = []
    op.output("out", sums, TestingSink(found))
    run_main(flow)
    assert found


def _sessions(stream: Any) -> Any:
    """The sums of bytewax's sessions; the number of a pair stands for its time as well."""
    import bytewax.operators as op
    from bytewax.operators.windowing import EventClock, SessionWindower, fold_window

    start = datetime(2024, 1, 1, tzinfo=UTC)
    counter = itertools.count()
    timed = op.map_value("timed", stream, lambda number: (next(counter), number))
    clock = EventClock(lambda pair: start + pair[0] * _TICK, timedelta(0))
    return fold_window(
        "sum",
        timed,
        clock,
        SessionWindower(_GAP * _TICK),
        lambda: 0,
        lambda total, pair: total + pair[1],
        lambda one, other: one + other,
    ).down
