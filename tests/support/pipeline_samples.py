"""Pipelines over the small stream: across range edges, with side outputs, and wrong on purpose.

Tasks import this module, since operators are sent to them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline import (
    TIME,
    DagBuilder,
    Operator,
    OperatorContext,
    OperatorSpec,
    Sink,
    Stateless,
    pipeline,
)
from capstan.pipeline.operators import (
    Deduplicate,
    IntervalJoin,
    MapBatch,
    SessionWindow,
    Window,
    count_rows,
    sum_of,
)
from tests.support.sample_streams import HOUR

_NAMES = (
    "places",
    "firsts",
    "by_worker",
    "shaky",
    "unsteady",
    "counted",
    "strange",
    "by_place",
    "without_lookback",
    "stays_without_lookback",
    "stays_of_all_without_lookback",
)
REFERENCES: Final = {name: f"{__name__}:{name}" for name in _NAMES}
"""The pipelines of this module, by the names used in declarations."""

BACK, AHEAD = 8 * HOUR, 2 * HOUR
"""The lookback and lookahead of `places`."""

_INSTANT = pa.timestamp("us", tz="UTC")
_ROWS = pa.schema(
    [(TIME, pa.int64()), ("id", pa.int64()), ("place", pa.string()), ("amount", pa.int32())]
)


@dataclass(frozen=True, slots=True)
class Each(Stateless):
    """An operator that calls a function with each batch and its context.

    Attributes:
        does: Receives a batch, and the object through which it emits rows.
        adds: A column that it adds.
    """

    does: Callable[[pa.RecordBatch, OperatorContext], None]
    adds: tuple[pa.Field, ...] = field(default=())

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The columns of its input, and those that it adds."""
        return pa.schema([*inputs[0], *self.adds])

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        """The columns of its input."""
        return frozenset(inputs[0].names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        """The running form."""
        return _Doing(self.does)

    def describe(self) -> str:
        """One line for people."""
        return self.does.__name__.strip("_")


class _Doing(Operator):
    def __init__(self, does: Callable[[pa.RecordBatch, OperatorContext], None]) -> None:
        self._does = does

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        self._does(batch, context)


def _set_aside(batch: pa.RecordBatch, context: OperatorContext) -> None:
    amount = batch.column("amount")
    tens = pc.equal(pc.multiply(pc.divide(amount, 5), 5), amount)
    kept = pc.invert(pc.fill_null(tens, True))
    context.side("fives", batch.filter(pc.invert(kept)))
    context.emit(batch.filter(kept))


def _break_down(batch: pa.RecordBatch, context: OperatorContext) -> None:
    if 100 in batch.column("id").to_pylist():
        message = "a hundred"
        raise ValueError(message)
    context.emit(batch)


def _name_worker(batch: pa.RecordBatch, context: OperatorContext) -> None:
    workers = pa.array([context.worker] * batch.num_rows, pa.int64())
    context.emit(batch.append_column("replay_worker", workers))


def _count_up(batch: pa.RecordBatch, context: OperatorContext) -> None:
    numbers = pa.array(range(batch.num_rows), pa.int64())
    context.emit(batch.append_column("number", numbers))


def _at_start(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of windows, at the time at which their window begins, which is complete by then."""
    start = pc.cast(batch.column("window_start"), pa.int64())
    return batch.set_column(batch.schema.get_field_index(TIME), TIME, start)


@pipeline(
    name="places",
    description="Rows per place: by hour, in visits, and both together",
    sinks=[
        Sink("hours", "place_hours", "window_start", grain=HOUR, keys=("place",)),
        Sink("pairs"),
        Sink("starts", keys=("place",)),
    ],
    lookback=BACK,
    lookahead=AHEAD,
)
def places() -> DagBuilder:
    """A diamond of windows and sessions, joined; some amounts are set aside first."""
    hourly = Window.tumbling(
        HOUR, [count_rows("rows"), sum_of("amount")], by=["place"], bounds=_INSTANT
    )
    two = Window.tumbling(AHEAD, [count_rows("rows")], by=["place"], bounds=_INSTANT)
    return (
        DagBuilder()
        .source("rows", _ROWS)
        .stateless_operator("odd", Each(_set_aside))
        .operator("by_hour", hourly)
        .operator("visits", SessionWindow(2 * HOUR, (count_rows("rows"),), ("place",)))
        .operator("both", IntervalJoin(("place",), ("place",), 0, 4 * HOUR, prefix="visit_"))
        .operator("by_two", two)
        .stateless_operator("at_start", MapBatch(_at_start, frozenset({"place"})))
        .connect("rows", "odd")
        .connect("odd", "by_hour")
        .connect("odd", "visits")
        .connect("by_hour", "both")
        .connect("visits", "both")
        .connect("odd", "by_two")
        .connect("by_two", "at_start")
        .sink_for("by_hour", "hours")
        .sink_for("both", "pairs")
        .sink_for("at_start", "starts")
    )


@pipeline(
    name="firsts", description="The first row of each place", sinks=[Sink("out")], unbounded=True
)
def firsts() -> DagBuilder:
    """Its output depends on the very first records."""
    return _one(Deduplicate(("place",)))


@pipeline(
    name="by_worker", description="Rows with their worker", sinks=[Sink("out", worker="_worker")]
)
def by_worker() -> DagBuilder:
    """Its input, with the worker of each row."""
    schema = pa.schema([(TIME, pa.int64()), ("_worker", pa.int32()), ("id", pa.int64())])
    return DagBuilder().source("rows", schema).sink_for("rows", "out")


@pipeline(name="shaky", description="Breaks down at row 100", sinks=[Sink("out")])
def shaky() -> DagBuilder:
    """An operator that raises."""
    return _one(Each(_break_down))


@pipeline(name="strange", description="Wrong: reads a price", sinks=[Sink("out")])
def strange() -> DagBuilder:
    """A source with a column that the stream does not have."""
    schema = pa.schema([(TIME, pa.int64()), ("price", pa.int64())])
    return DagBuilder().source("rows", schema).sink_for("rows", "out")


@pipeline(name="unsteady", description="Wrong: names the replay worker", sinks=[Sink("out")])
def unsteady() -> DagBuilder:
    """Its output depends on the number of replay workers."""
    named = Each(_name_worker, (pa.field("replay_worker", pa.int64()),))
    return (
        DagBuilder()
        .source("rows", _ROWS)
        .operator("sessions", Deduplicate(("id",)))
        .stateless_operator("named", named)
        .connect("rows", "sessions")
        .connect("sessions", "named")
        .sink_for("named", "out")
    )


@pipeline(name="counted", description="Wrong: numbers rows of a batch", sinks=[Sink("out")])
def counted() -> DagBuilder:
    """Its output depends on the order of its records, and on how they are cut into batches."""
    return _one(Each(_count_up, (pa.field("number", pa.int64()),)))


def unkept(_place: object, amount: object, _state: object) -> tuple[object, object]:
    """The function of a logic whose state cannot be written."""
    return amount, object()


def _one(does: OperatorSpec) -> DagBuilder:
    """A source, one operator, a sink `out`."""
    build = DagBuilder().source("rows", _ROWS)
    made = build.operator if does.key is not None else build.stateless_operator
    return made("op", does).connect("rows", "op").sink_for("op", "out")


@pipeline(name="by_place", sinks=[Sink("out", grain=HOUR)], lookback=HOUR, lookahead=HOUR)
def by_place() -> DagBuilder:
    """Rows and amounts by place and hour, all computed by Spark."""
    made = [count_rows("rows"), sum_of("amount", "total")]
    by_hour = Window.tumbling(HOUR, made, by=["place"], bounds=_INSTANT)
    built = DagBuilder().source("rows", _ROWS).operator("by_hour", by_hour)
    return built.connect("rows", "by_hour").sink_for("by_hour", "out")


@pipeline(name="without_lookback", sinks=[Sink("out")])
def without_lookback() -> DagBuilder:
    """Rows by two hours: right for all records at once, and without a lookback for no others."""
    return _one(Window.tumbling(2 * HOUR, [count_rows("rows")], bounds=_INSTANT))


@pipeline(name="stays_without_lookback", sinks=[Sink("out")])
def stays_without_lookback() -> DagBuilder:
    """Rows by place of stays of any length, without a lookback."""
    return _one(SessionWindow(2 * HOUR, (count_rows("rows"),), by=("place",), bounds=_INSTANT))


@pipeline(name="stays_of_all_without_lookback", sinks=[Sink("out")])
def stays_of_all_without_lookback() -> DagBuilder:
    """Rows by stays of any length, of all places together, without a lookback."""
    return _one(SessionWindow(2 * HOUR, (count_rows("rows"),), bounds=_INSTANT))
