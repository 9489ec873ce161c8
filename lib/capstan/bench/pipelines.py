"""What pipelines cost: an executor by event and node, Arrow operators by row, Nexmark by event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.bench.clock import Cost
from capstan.bench.inputs import Bench
from capstan.bench.lines import Line, rate, ratio
from capstan.dag import TIME, Context, Dag, DagBuilder, DagExecutor, Event, Operator, Stateless
from capstan.dag.operators import Filter, Project
from capstan.pipeline import pipelines as registered
from capstan.pipeline.local import run_here
from capstan.pipeline.reach import everything
from capstan.times import Kind, TimeType
from capstan.workloads import nexmark_events, nexmark_queries

if TYPE_CHECKING:
    from bytewax.dataflow import Stream

_EVENTS: Final = 20_000
_ROWS: Final = {1: 20_000, 1_000: 4_000_000, 10_000: 20_000_000}
"""Rows a batch, and how many rows in all."""
_JUDGED: Final = 10_000
_ROWS_GOAL: Final = 10_000_000.0
"""How many rows a second there should be at least, in batches of so many."""
_QUERIES: Final = (1, 5, 7)
_NEXMARK: Final = 200_000
_PACE: Final = 1_000
_TIMES: Final = TimeType.of(event=Kind.TIMESTAMP)
_SCHEMA: Final = pa.schema([(TIME, pa.int64()), ("number", pa.int64())])

Bid = tuple[int, int, int, datetime]
"""Auction, bidder, price and time: a record as bytewax gets it."""


def pipelines(bench: Bench) -> list[Line]:
    """All lines of this module; those beside bytewax only where it is installed."""
    return [*_executors(bench), *_rows(bench), *_nexmark(bench)]


class _Pass(Operator):
    """Puts out what comes."""

    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        context.emit(batch)


class _Passing(Stateless):
    """See `_Pass`."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Those of its input."""
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
    found = {"linear": chain(4), "fan-out 3": fan, "diamond": diamond, "deep chain": chain(12)}
    return {name: builder.build() for name, builder in found.items()}


def _executors(bench: Bench) -> list[Line]:
    """Microseconds for an event of one row at a node, in graphs of several shapes."""
    event = Event(0, pa.RecordBatch.from_arrays([[0], [1]], schema=_SCHEMA))
    lines = []
    for name, dag in _graphs().items():

        def work(dag: Dag = dag) -> None:
            executor = DagExecutor.from_dag(dag)
            for _ in range(_EVENTS):
                executor.process_event("in", event)
            executor.take_all_sink_outputs()

        costs = _measured(bench, work)
        each = [cost.cpu * 1e6 / _EVENTS / len(dag.nodes) for cost in costs]
        line = Line(
            f"executor, {name}", "", median(each), None, "us/event/node", rounds=tuple(each),
            detail={"nodes": len(dag.nodes), "events": _EVENTS},
        )  # fmt: skip
        lines.append(line)
    return lines


def _rows(bench: Bench) -> list[Line]:
    """Rows in a second through a filter and a projection, at several sizes of batches."""
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
    """Events in a second and core through q1, q5 and q7; beside bytewax, if that is there."""
    assert nexmark_queries.q1 is not None
    bench.say(f"{_NEXMARK:,} events of Nexmark")
    events = nexmark_events.events(bench.spark, _NEXMARK, events_per_second=_PACE)
    table = events.where("bid IS NOT NULL").select("dateTime", "bid").toArrow().combine_chunks()
    times = pc.cast(table.column("dateTime"), pa.int64())
    table = table.add_column(0, TIME, times)
    bids = _bids(table) if find_spec("bytewax") else []
    if not bids:
        bench.say("bytewax is not installed, so nothing is measured beside it: `make setup` has it")
    lines = []
    for number in _QUERIES:
        pipeline = registered().get(f"nexmark_q{number}")

        def ours(name: str = pipeline.name) -> None:
            run_here(table, registered().get(name), everything(_TIMES))

        def theirs(number: int = number) -> None:
            _run_bytewax(number, bids)

        costs = _measured(bench, ours)
        others = _measured(bench, theirs) if bids else []
        line = rate(f"nexmark q{number}", "bids/s", table.num_rows, costs)
        if others:
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


def _measured(bench: Bench, work: Callable[[], None]) -> list[Cost]:
    return [bench.clock.measure(work) for _ in range(bench.options.rounds)]


def _bids(table: pa.Table) -> list[Bid]:
    bid = table.column("bid").combine_chunks()
    columns = [bid.field(name).to_pylist() for name in ("auction", "bidder", "price")]
    moments = [
        datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time)
        for time in table.column(TIME).to_pylist()
    ]
    return list(zip(*columns, moments, strict=True))


def _run_bytewax(number: int, bids: Sequence[Bid]) -> None:
    """The same question, asked of bytewax: a record at a time, on one worker."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    flow = Dataflow(f"q{number}")
    stream = op.input("bids", flow, TestingSource(bids, batch_size=1_000))
    answers = {1: _q1, 5: _q5, 7: _q7}[number](stream)
    found: list[object] = []
    op.output("out", answers, TestingSink(found))
    run_main(flow)
    assert found


def _q1(bids: Stream[Bid]) -> Stream[object]:
    import bytewax.operators as op

    return op.map("converted", bids, lambda bid: (bid[0], bid[1], bid[2] * 908 / 1000, bid[3]))


def _q5(bids: Stream[Bid]) -> Stream[object]:
    import bytewax.operators as op
    from bytewax.operators import windowing as win

    windows = win.SlidingWindower(
        length=timedelta(seconds=10), offset=timedelta(seconds=2), align_to=_begin()
    )
    counts = win.count_window("counts", bids, _clock(), windows, lambda bid: str(bid[0]))
    by_window = op.map("by window", counts.down, lambda each: (str(each[1][0]), each))

    def most(best: list[object], each: object) -> list[object]:
        count, known = each[1][1], best[0][1][1] if best else -1  # type: ignore[index]
        return [each] if count > known else [*best, each] if count == known else best

    return op.fold_final("most", by_window, list, most)


def _q7(bids: Stream[Bid]) -> Stream[object]:
    import bytewax.operators as op
    from bytewax.operators import windowing as win

    keyed = op.key_on("together", bids, lambda _: "all")
    windows = win.TumblingWindower(length=timedelta(seconds=10), align_to=_begin())
    return win.max_window("highest", keyed, _clock(), windows, by=lambda bid: bid[2]).down


def _clock() -> object:
    from bytewax.operators.windowing import EventClock

    return EventClock(ts_getter=lambda bid: bid[3], wait_for_system_duration=timedelta())


def _begin() -> datetime:
    return datetime(2015, 7, 15, tzinfo=UTC)
