"""Cost of pipelines: the executor per event and node, Arrow operators per row, Nexmark queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline import (
    TIME,
    Dag,
    DagBuilder,
    DagExecutor,
    Event,
    Operator,
    OperatorContext,
    Stateless,
)
from capstan.pipeline.operators import Filter, Project
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import Bench
from tests.bench.measures import Line, rate, ratio
from tests.bench.nexmark_bids import answers_of, bids_of, in_bytewax, in_pipeline
from tests.bench.workloads import nexmark_events

_EVENTS: Final = 20_000
_ROWS: Final = {1: 20_000, 1_000: 4_000_000, 10_000: 20_000_000}
"""Rows per batch, and rows in all."""
_JUDGED: Final = 10_000
_ROWS_GOAL: Final = 10_000_000.0
"""Goal in rows per second, by size of batches."""
_QUERIES: Final = (1, 5, 7)
_NEXMARK: Final = 200_000
_PACE: Final = 1_000
_SCHEMA: Final = pa.schema([(TIME, pa.int64()), ("number", pa.int64())])


def pipelines(bench: Bench) -> list[Line]:
    """All results of this module; comparisons with bytewax only if it is installed."""
    return [*_executors(bench), *_rows(bench), *_nexmark(bench)]


class _Pass(Operator):
    """Passes its input on."""

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        context.emit(batch)


class _Passing(Stateless):
    """See `_Pass`."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of its input."""
        return inputs[0]

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """All columns."""
        return frozenset(inputs[0].names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """The running form."""
        return _Pass()

    def describe(self) -> str:
        """One line for people."""
        return "pass on"


def _graphs() -> dict[str, Dag]:
    def begun() -> DagBuilder:
        return DagBuilder().source("in", _SCHEMA)

    def chain(nodes: int) -> DagBuilder:
        builder, before = begun(), "in"
        for number in range(nodes - 2):
            name = f"n{number}"
            builder.stateless_operator(name, _Passing()).connect(before, name)
            before = name
        return builder.sink_for(before, "out")

    fan, diamond = begun(), begun()
    for number in range(3):
        fan.stateless_operator(f"n{number}", _Passing()).connect("in", f"n{number}")
        fan.sink_for(f"n{number}", f"out{number}")
    for name in ("left", "right"):
        diamond.stateless_operator(name, _Passing()).connect("in", name)
    diamond.stateless_operator("both").connect("left", "both").connect("right", "both")
    diamond.sink_for("both", "out")
    actual = {"linear": chain(4), "fan-out 3": fan, "diamond": diamond, "deep chain": chain(12)}
    return {name: builder.build() for name, builder in actual.items()}


def _executors(bench: Bench) -> list[Line]:
    """Microseconds for a one-row event at a node, in graphs of several shapes."""
    event = Event(0, pa.RecordBatch.from_arrays([[0], [1]], schema=_SCHEMA))
    lines = []
    for name, dag in _graphs().items():

        def work(dag: Dag = dag) -> None:
            executor = DagExecutor.from_dag(dag)
            for _ in range(_EVENTS):
                executor.process_event("in", event)
            executor.take_all_sink_outputs()

        costs = _measured(bench, work)
        item = [cost.cpu * 1e6 / _EVENTS / len(dag.nodes) for cost in costs]
        line = Line(
            f"executor, {name}", "", median(item), None, "us/event/node", rounds=tuple(item),
            detail={"nodes": len(dag.nodes), "events": _EVENTS},
        )  # fmt: skip
        lines.append(line)
    return lines


def _rows(bench: Bench) -> list[Line]:
    """Rows per second through a filter and a projection, for several sizes of batches."""
    doubled = Project({"number": lambda batch: pc.multiply(batch.column("number"), 2)})
    kept = Filter(lambda batch: pc.greater(batch.column("number"), 10))
    dag = (
        DagBuilder()
        .source("in", _SCHEMA)
        .stateless_operator("kept", kept)
        .stateless_operator("doubled", doubled)
        .connect("in", "kept")
        .connect("kept", "doubled")
        .sink_for("doubled", "out")
        .build()
    )
    lines = []
    for size, rows in _ROWS.items():
        numbers = pa.array(range(size), pa.int64())
        event = Event(0, pa.RecordBatch.from_arrays([numbers, numbers], schema=_SCHEMA))

        def work(event: Event = event, size: int = size, rows: int = rows) -> None:
            executor = DagExecutor.from_dag(dag)
            for _ in range(rows // size):
                executor.process_event("in", event)
                executor.take_sink_outputs("out")

        costs = _measured(bench, work)
        name = f"two Arrow operators, {size:,} rows a batch"
        goal = _ROWS_GOAL if size == _JUDGED else None
        lines.append(rate(name, "rows/s", rows, costs, goal=goal))
    return lines


def _nexmark(bench: Bench) -> list[Line]:
    """Bids per second and core through q1, q5 and q7; compared with bytewax, if installed.

    These queries read only the bids among the events, so both sides get only bids.

    Raises:
        AssertionError: The results differ.
    """
    bench.say(f"{_NEXMARK:,} events of Nexmark")
    events = nexmark_events.events(bench.spark, _NEXMARK, events_per_second=_PACE)
    table = events.where("bid IS NOT NULL").select("dateTime", "bid").toArrow().combine_chunks()
    times = pc.cast(table.column("dateTime"), pa.int64())
    table = table.add_column(0, TIME, times)
    bids = bids_of(table) if find_spec("bytewax") else []
    if not bids:
        bench.say("bytewax is not installed, so nothing is compared with it: `make setup` has it")
    lines = []
    for number in _QUERIES:
        costs = _measured(bench, partial(in_pipeline, number, table))
        line = rate(f"nexmark q{number}", "bids/s", table.num_rows, costs)
        if bids:
            others = _measured(bench, partial(in_bytewax, number, bids))
            actual = in_pipeline(number, table)
            assert answers_of(number, actual) == Counter(in_bytewax(number, bids)), number
            middle = median(cost.cpu for cost in others)
            line = Line(
                line.name, "bytewax", line.value, None, line.unit,
                total=ratio(median(cost.cpu for cost in costs), middle), rounds=line.rounds,
                detail={**line.detail, "bytewax": ratio(table.num_rows, middle)},
            )  # fmt: skip
        lines.append(line)
        beside = f"; {line.total:.3g} of bytewax's time" if line.total is not None else ""
        bench.say(f"{line.name}: {line.value or 0:,.0f} bids/s{beside}")
    return lines


def _measured(bench: Bench, work: Callable[[], object]) -> list[Cost]:
    return [bench.clock.measure(work) for _ in range(bench.options.rounds)]
