"""What keyed state costs by row: a sum of each key, in batches and by record, beside bytewax."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa

from capstan.bench.clock import Cost
from capstan.bench.inputs import Bench
from capstan.bench.lines import Line, ratio
from capstan.dag import TIME, Dag, DagBuilder, DagExecutor, Event, OperatorSpec
from capstan.dag.operators import sum_of
from capstan.state import Data, KeyedAggregate, KeyedLogic, StatefulLogic
from capstan.state.logic import Output

_KEYS: Final = 100_000
_BATCH: Final = 10_000
_ROWS: Final = 1_000_000
_FEWER: Final = 200_000
"""What bytewax gets, whose rate does not depend on how many there are."""

_SCHEMA: Final = pa.schema([("key", pa.string()), ("number", pa.int64()), (TIME, pa.int64())])


class _Sum(StatefulLogic[int, int, int]):
    """Puts out the sum so far for each record."""

    def on_data(self, message: Data[int], state: int | None, output: Output[int]) -> int:
        total = (state or 0) + message.value
        output.emit(message.key, total, message.time)
        return total


def states(bench: Bench) -> list[Line]:
    """Rows in a second and core through keyed sums; beside bytewax only where it is installed."""
    bench.say(f"{_ROWS:,} rows of {_KEYS:,} keys")
    rows = _rows()
    by_record = KeyedLogic(_Sum(), ("key",), ("number",), pa.schema([("total", pa.int64())]))
    in_batches = KeyedAggregate((sum_of("number"),), ("key",))
    theirs = find_spec("bytewax") is not None
    return [
        _line(bench, "keyed sum, batch form", in_batches, rows, 0.1, "reduce_final", theirs=theirs),
        _line(bench, "keyed sum, by record", by_record, rows, 2 / 3, "stateful_map", theirs=theirs),
    ]


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
    pairs = _pairs(rows.slice(0, _FEWER))
    others = _per_row(bench, lambda: _run_bytewax(operator, pairs), len(pairs))
    ratios = [ratio(mine, other) for mine, other in zip(ours, others, strict=True)]
    detail["bytewax rows/s"] = 1 / median(others)
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
    keys = pa.array([str(key) for key in draw.integers(0, _KEYS, _ROWS).tolist()])
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
    """The same sums by bytewax, on one worker."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    def running(state: int | None, number: int) -> tuple[int, int]:
        total = (state or 0) + number
        return total, total

    flow = Dataflow("sum")
    stream = op.input("pairs", flow, TestingSource(pairs, batch_size=1_000))
    if operator == "reduce_final":
        sums = op.reduce_final("sum", stream, lambda one, other: one + other)
    else:
        sums = op.stateful_map("sum", stream, running)
    found: list[object] = []
    op.output("out", sums, TestingSink(found))
    run_main(flow)
    assert found
