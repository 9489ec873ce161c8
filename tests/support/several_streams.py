"""A pipeline over two streams: orders and their payments, by the captured worker of both."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from capstan.pipeline import TIME, DagBuilder, Sink, pipeline
from capstan.pipeline.operators import IntervalJoin, Project
from tests.support.sample_streams import HOUR

_NAMES = ("paid", "paid_by_worker", "paid_by_seller", "paid_by_payer")
REFERENCES: Final = {name: f"{__name__}:{name}" for name in _NAMES}
"""The pipelines of this module, by the names used in declarations."""

_ROWS = pa.schema([(TIME, pa.int64()), ("id", pa.int64()), ("amount", pa.int32())])
_PLACED = _ROWS.insert(1, pa.field("_worker", pa.int32()))
_PAID_WITHIN = 3 * HOUR


def _joined(orders: pa.Schema, payments: pa.Schema, key: tuple[str, ...]) -> DagBuilder:
    join = IntervalJoin(key, key, 0, _PAID_WITHIN, prefix="paid_")
    columns = [*orders.names[1:], "paid_amount"]
    columns += ["paid__worker"] if payments is _PLACED is not orders else []
    return (
        DagBuilder()
        .source("orders", orders)
        .source("payments", payments)
        .operator("both", join)
        .connect("orders", "both")
        .connect("payments", "both")
        .stateless_operator("shown", Project({name: name for name in columns}))
        .connect("both", "shown")
        .sink_for("shown", "out")
    )


@pipeline(
    name="paid",
    description="Orders with the payments of the three hours after them",
    sinks=[Sink("out", keys=("id",))],
    lookback=_PAID_WITHIN,
)
def paid() -> DagBuilder:
    """A join by the order."""
    return _joined(_ROWS, _ROWS, ("id",))


@pipeline(
    name="paid_by_worker",
    sinks=[Sink("out", worker="_worker", keys=("id",))],
    lookback=_PAID_WITHIN,
)
def paid_by_worker() -> DagBuilder:
    """The same of streams with the same workers, which the rows keep."""
    return _joined(_PLACED, _PLACED, ("_worker", "id"))


@pipeline(
    name="paid_by_seller",
    sinks=[Sink("out", worker="_worker", keys=("id",), worker_source="orders")],
    lookback=_PAID_WITHIN,
)
def paid_by_seller() -> DagBuilder:
    """A join by the order, by the worker of the order alone."""
    return _joined(_PLACED, _ROWS, ("id",))


@pipeline(
    name="paid_by_payer",
    sinks=[Sink("out", worker="paid__worker", keys=("id",), worker_source="payments")],
    lookback=_PAID_WITHIN,
)
def paid_by_payer() -> DagBuilder:
    """The same by the worker of the payment."""
    return _joined(_ROWS, _PLACED, ("id",))
