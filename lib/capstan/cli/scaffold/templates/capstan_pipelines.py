"""Pipelines of this project: graphs of operators that a replay runs over recorded streams."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa

from capstan.pipeline import TIME, DagBuilder, Sink, pipeline
from capstan.pipeline.operators import Project, Window, count_rows, sum_of

HOUR = timedelta(hours=1)


@pipeline(
    name="orders_by_hour",
    description="Orders and revenue, per shop and hour",
    sinks=[Sink("hours", "orders_by_hour", "hour", grain=HOUR, keys=("shop",))],
    lookback=HOUR,
)
def orders_by_hour() -> DagBuilder:
    """Count and sum orders in windows of an hour, which close once the hour is complete."""
    orders = pa.schema([(TIME, pa.int64()), ("shop", pa.string()), ("cents", pa.int64())])
    totals = [count_rows("orders"), sum_of("cents")]
    by_hour = Window.tumbling(HOUR, totals, by=["shop"], bounds=pa.timestamp("us", tz="UTC"))
    columns = {"shop": "shop", "hour": "window_start", "orders": "orders", "cents": "sum_cents"}
    return (
        DagBuilder()
        .source("orders", orders)
        .operator("by_hour", by_hour)
        .stateless_operator("named", Project(columns))
        .connect("orders", "by_hour")
        .connect("by_hour", "named")
        .sink_for("named", "hours")
    )
