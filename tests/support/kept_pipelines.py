"""A user's pipelines as of commit 39c5aa1: several streams, lookup tables, further keyed state.

Hashes of this text and its functions are stored in `tests/formats/3`: leave every byte as it is.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline import (
    TIME,
    DagBuilder,
    KeyedAggregate,
    KeyedLogic,
    Lookup,
    Sink,
    pipeline,
    ttl_map,
)
from capstan.pipeline.operators import (
    Deduplicate,
    DivertLate,
    Filter,
    IntervalJoin,
    Project,
    Sql,
    SqlWindow,
    TopN,
    WindowJoin,
    count_rows,
)

HOUR = dt.timedelta(hours=1)
_ROWS = pa.schema([(TIME, pa.int64()), ("id", pa.int64()), ("amount", pa.int32())])
_OF_WORKER = _ROWS.insert(1, pa.field("_worker", pa.int32()))
_OF_PLACE = _ROWS.append(pa.field("place", pa.string()))
_NAMED = _OF_PLACE.append(pa.field("shop_name", pa.string())).append(
    pa.field("shop_region", pa.int64())
)

SHOPS = Lookup("shops", "orders", "shops", ("place",), ("code",), ("name", "region"), "shop_")
REGIONS = Lookup("regions", "orders", "regions", ("shop_region",), ("number",), ("title",))


def _recent(
    _key: Hashable, amount: int | None, time: int, entries: dict[Hashable, tuple[str, int]]
) -> tuple[str, dict[Hashable, tuple[str, int]]]:
    """Lists the amounts of the last three hours."""
    expiry = time + 3 * 3_600_000_000
    entries = {**entries, str(time): (str(amount), expiry)}
    return ",".join(value for value, _ in entries.values()), entries


@pipeline(
    name="paid",
    description="Orders with the payments of the three hours after them",
    sinks=[Sink("out", "paid", keys=("id",))],
    lookback=3 * HOUR,
)
def paid() -> DagBuilder:
    """A join of two streams."""
    return (
        DagBuilder()
        .source("orders", _ROWS)
        .source("payments", _ROWS)
        .operator("both", IntervalJoin(("id",), ("id",), 0, 3 * HOUR, prefix="paid_"))
        .connect("orders", "both")
        .connect("payments", "both")
        .stateless_operator(
            "shown", Project({"id": "id", "amount": "amount", "paid_amount": "paid_amount"})
        )
        .connect("both", "shown")
        .sink_for("shown", "out")
    )


@pipeline(
    name="paid_by_place",
    sinks=[Sink("out", worker="_worker", keys=("id",), worker_source="orders")],
    lookback=3 * HOUR,
)
def paid_by_place() -> DagBuilder:
    """The same, by the worker of the order."""
    return (
        DagBuilder()
        .source("orders", _OF_WORKER)
        .source("payments", _ROWS)
        .operator("both", IntervalJoin(("id",), ("id",), 0, 3 * HOUR, prefix="paid_"))
        .connect("orders", "both")
        .connect("payments", "both")
        .sink_for("both", "out")
    )


@pipeline(name="large_orders", sinks=[Sink("out", "large_orders", keys=("id",))])
def large_orders() -> DagBuilder:
    """Orders over an amount, for a list of streams."""
    return (
        DagBuilder()
        .source("orders", _ROWS)
        .stateless_operator("large", Filter(pc.greater(pc.field("amount"), 40)))
        .connect("orders", "large")
        .sink_for("large", "out")
    )


@pipeline(
    name="settled",
    description="State of each kind that shop.py does not have, over two streams",
    sinks=[Sink(name) for name in ("joined", "met", "first", "top", "counted", "recent")],
    unbounded=True,
)
def settled() -> DagBuilder:
    """Orders and payments, followed."""
    recent = KeyedLogic(
        ttl_map(_recent), ("place",), ("amount",), pa.schema([("amounts", pa.string())]),
        ties=("id",),
    )  # fmt: skip
    counted = SqlWindow(
        "SELECT place, count(*) AS orders, sum(amount)::BIGINT AS amount FROM input GROUP BY place",
        2 * HOUR, by=("place",),
    )  # fmt: skip
    return (
        DagBuilder()
        .source("orders", _OF_PLACE)
        .source("payments", _ROWS)
        .stateless_operator("timely", DivertLate())
        .stateless_operator("named", Filter(pc.is_valid(pc.field("place"))))
        .stateless_operator("net", Sql("SELECT _time, id, amount - 1 AS net FROM input"))
        .operator("by_id", IntervalJoin(("id",), ("id",), 0, 4 * HOUR, how="left", prefix="paid_"))
        .operator("by_hour", WindowJoin(("id",), ("id",), 2 * HOUR, prefix="paid_"))
        .operator("deduplicated", Deduplicate(("place",), 3 * HOUR, ("id",)))
        .operator(
            "highest",
            TopN(1, (("amount", "descending"),), by=("place",), window=4 * HOUR, rank="n"),
        )
        .operator("of_two_hours", counted)
        .operator("of_late", recent)
        .connect("orders", "timely")
        .connect("timely", "named")
        .connect("payments", "net")
        .connect("named", "by_id")
        .connect("net", "by_id")
        .connect("named", "by_hour")
        .connect("net", "by_hour")
        .connect("named", "deduplicated")
        .connect("named", "highest")
        .connect("named", "of_two_hours")
        .connect("named", "of_late")
        .sink_for("by_id", "joined")
        .sink_for("by_hour", "met")
        .sink_for("deduplicated", "first")
        .sink_for("highest", "top")
        .sink_for("of_two_hours", "counted")
        .sink_for("of_late", "recent")
    )


@pipeline(name="placed", sinks=[Sink("out", "placed", keys=("id",))], lookups=[SHOPS, REGIONS])
def placed() -> DagBuilder:
    """Orders with their shop and its region; the second lookup needs the first."""
    columns = ("id", "place", "amount", "shop_name", "title")
    return (
        DagBuilder()
        .source("orders", _NAMED.append(pa.field("title", pa.string())))
        .stateless_operator("shown", Project({name: name for name in columns}))
        .connect("orders", "shown")
        .sink_for("shown", "out")
    )


@pipeline(name="per_shop", sinks=[Sink("out", "per_shop")], lookups=[SHOPS], unbounded=True)
def per_shop() -> DagBuilder:
    """Counts per shop so far, with a lookup table, followed."""
    total = KeyedAggregate((count_rows("orders"),), ("shop_name",), 6 * HOUR, ("id",))
    return (
        DagBuilder()
        .source("orders", _NAMED)
        .operator("so_far", total)
        .connect("orders", "so_far")
        .sink_for("so_far", "out")
    )
