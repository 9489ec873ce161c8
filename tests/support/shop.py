"""A user's file of pipelines and transforms, as written for the former import paths.

Hashes of its text and of its functions are stored in `tests/formats/2`: leave every byte of it as
it is.
"""

# ruff: noqa: I001

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capstan.dag import TIME, Context, DagBuilder, Operator, OperatorSpec, Stateless
from capstan.dag.errors import OperatorFailed
from capstan.dag.operators import (
    Filter,
    IntervalJoin,
    MapBatch,
    Project,
    SessionWindow,
    TopN,
    Window,
    WindowJoin,
    count_rows,
    mean_of,
    sum_of,
)
from capstan.declare import Declarations, load
from capstan.errors import BadRequest
from capstan.interop import EventReader
from capstan.pipeline import SideTable, Sink, pipeline
from capstan.session import build_session
from capstan.state import KeyedAggregate, KeyedLogic, StatefulLogic, stateful_map
from capstan.workloads.flight_pipelines import late_carriers, read_weather

USES = (
    BadRequest, Declarations, EventReader, OperatorFailed, OperatorSpec, StatefulLogic, TopN,
    WindowJoin, build_session, late_carriers, load, read_weather,
)  # fmt: skip
"""What other files of the project import from here."""

HOUR = dt.timedelta(hours=1)
LARGE = 40
_INSTANT = pa.timestamp("us", tz="UTC")
_ORDERS = pa.schema(
    [(TIME, pa.int64()), ("id", pa.int64()), ("place", pa.string()), ("amount", pa.int32())]
)


def large(records):
    """A transform: orders over an amount."""
    return records.where(records.amount > LARGE).select(
        "_worker", records["_time.event"].alias("hour"), "id", "place", "amount"
    )


def managers() -> pa.Table:
    """A side table: who runs a place, from when on."""
    start = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    return pa.table(
        {
            "since": pa.array([start, start, start + 20 * HOUR], _INSTANT),
            "place": ["a", "b", "a"],
            "manager": ["Ada", "Ben", "Cy"],
        }
    )


@dataclass(frozen=True, slots=True)
class Sorted(Stateless):
    """Sets rows with small amounts aside."""

    least: int

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        return frozenset(inputs[0].names)

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        return _Sorting(self.least)


class _Sorting(Operator):
    def __init__(self, least: int) -> None:
        self._least = least

    def process(self, batch: pa.RecordBatch, context: Context) -> None:
        small = pc.fill_null(pc.less(batch.column("amount"), self._least), True)
        context.side("small", batch.filter(small))
        context.emit(batch.filter(pc.invert(small)))


def running(place, amount, total):
    """Adds to the total of a place."""
    total = (total or 0) + (amount or 0)
    return total, total


def _odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("id"), 1), 1))


@pipeline(
    name="hourly",
    description="Orders and amount per place and hour",
    sinks=[Sink("hours", "hourly", "window_start", grain=HOUR, keys=("place",))],
    lookback=HOUR,
)
def hourly() -> DagBuilder:
    """Tumbling windows behind a sorter with a side output."""
    windows = Window.tumbling(
        HOUR, [count_rows("orders"), sum_of("amount"), mean_of("amount", "mean")],
        by=["place"], bounds=_INSTANT,
    )  # fmt: skip
    return (
        DagBuilder()
        .source("orders", _ORDERS)
        .stateless_operator("sorted", Sorted(10))
        .operator("by_hour", windows)
        .connect("orders", "sorted")
        .connect("sorted", "by_hour")
        .sink_for("by_hour", "hours")
    )


@pipeline(
    name="totals",
    description="Running totals, visits, and the visits of each hour",
    sinks=[Sink("running"), Sink("visits"), Sink("steps")],
    unbounded=True,
)
def totals() -> DagBuilder:
    """Keyed state of three kinds."""
    total = KeyedLogic(
        stateful_map(running), ("place",), ("amount",), pa.schema([("total", pa.int64())]),
        ties=("id",),
    )  # fmt: skip
    hours = Window.tumbling(HOUR, [sum_of("amount")], by=["place"])
    return (
        DagBuilder()
        .source("orders", _ORDERS)
        .stateless_operator("named", Filter(pc.is_valid(pc.field("place"))))
        .operator("total", total)
        .operator("by_hour", hours)
        .operator("by_visit", SessionWindow(2 * HOUR, (count_rows("orders"),), ("place",)))
        .operator("both", IntervalJoin(("place",), ("place",), 0, 4 * HOUR, prefix="visit_"))
        .operator("so_far", KeyedAggregate((count_rows("orders"),), ("place",), 6 * HOUR, ("id",)))
        .connect("orders", "named")
        .connect("named", "total")
        .connect("named", "by_hour")
        .connect("named", "by_visit")
        .connect("by_hour", "both")
        .connect("by_visit", "both")
        .connect("named", "so_far")
        .sink_for("total", "running")
        .sink_for("both", "visits")
        .sink_for("so_far", "steps")
    )


@pipeline(
    name="managed",
    description="Odd orders, with who ran the place",
    sinks=[Sink("odd_orders")],
    lookback=48 * HOUR,
    tables=[SideTable("managers", "tests.support.shop:managers", "since", version="1")],
)
def managed() -> DagBuilder:
    """A join with a side table."""
    who = pa.schema([(TIME, pa.int64()), ("place", pa.string()), ("manager", pa.string())])
    named = Project({"id": "id", "place": "place", "amount": "amount"})
    return (
        DagBuilder()
        .source("orders", _ORDERS)
        .source("managers", who)
        .stateless_operator("odd", MapBatch(_odd, frozenset({"id", "place", "amount"})))
        .stateless_operator("named", named)
        .operator("with", IntervalJoin(("place",), ("place",), -48 * HOUR, 0, prefix="by_"))
        .connect("orders", "odd")
        .connect("odd", "named")
        .connect("named", "with")
        .connect("managers", "with")
        .sink_for("with", "odd_orders")
    )
