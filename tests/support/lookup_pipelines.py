"""Pipelines that complete orders by lookup tables: customers, and the regions that they are in."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa

from capstan.pipeline import TIME, DagBuilder, Lookup, Sink, pipeline
from capstan.pipeline.operators import Project, Window, sum_of
from tests.support.sample_streams import HOUR

_NAMES = ("named_orders", "orders_by_name", "by_customer")
REFERENCES: Final = {name: f"{__name__}:{name}" for name in _NAMES}
"""The pipelines of this module, by the names used in declarations."""

CUSTOMERS: Final = Lookup(
    "customers", "orders", "customers", ("customer",), ("id",), ("name", "region"), "customer_"
)
REGIONS: Final = Lookup(
    "regions", "orders", "regions", ("customer_region", "_worker"), ("code", "worker"), ("title",)
)
_ORDERS = pa.schema([(TIME, pa.int64()), ("id", pa.int64()), ("customer", pa.string())])
_NAMED = _ORDERS.append(pa.field("customer_name", pa.string())).append(
    pa.field("customer_region", pa.int32())
)


@pipeline(name="named_orders", sinks=[Sink("out", keys=("id",))], lookups=[CUSTOMERS])
def named_orders() -> DagBuilder:
    """Orders with the name and the region of their customer."""
    columns = ("id", "customer", "customer_name", "customer_region")
    return (
        DagBuilder()
        .source("orders", _NAMED)
        .stateless_operator("shown", Project({name: name for name in columns}))
        .connect("orders", "shown")
        .sink_for("shown", "out")
    )


@pipeline(
    name="orders_by_name",
    sinks=[Sink("out", keys=("id",))],
    lookups=[replace(CUSTOMERS, table="Shop.Customers")],
)
def orders_by_name() -> DagBuilder:
    """The same, with the customers in a catalog."""
    return named_orders()


@pipeline(
    name="by_customer",
    sinks=[Sink("out", keys=("customer_name", "title"))],
    lookups=[CUSTOMERS, REGIONS],
    lookback=HOUR,
)
def by_customer() -> DagBuilder:
    """Orders per hour by the names of customer and region; the second lookup needs the first."""
    columns = _NAMED.append(pa.field("title", pa.string()))
    window = Window.tumbling(HOUR, [sum_of("id", "ids")], by=["customer_name", "title"])
    return (
        DagBuilder()
        .source("orders", columns)
        .operator("hourly", window)
        .connect("orders", "hourly")
        .sink_for("hourly", "out")
    )
