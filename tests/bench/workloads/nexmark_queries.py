"""Nexmark's queries as pipelines over the events of `tests.bench.workloads.nexmark_events`.

`tests.bench.workloads.nexmark_sql` states the same queries in SQL over the same rows. Queries that
Nexmark runs over an endless stream with a new answer for every row (q3, q4, q9, q18 to q20) give
their last answer, at the end of the input. q12 counts in windows of processing time: its graph
cannot be built, since replays would give different results.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline import TIME, DagBuilder, Sink, pipeline
from capstan.pipeline.operators import (
    Filter,
    IntervalJoin,
    MapBatch,
    Project,
    SessionWindow,
    Sql,
    SqlWindow,
    TopN,
    Window,
    WindowJoin,
    count_rows,
    max_of,
    mean_of,
)
from capstan.pipeline.operators.ordering import Direction
from tests.bench.workloads.nexmark_graphs import INSTANT, events_of, joined, picked, then
from tests.bench.workloads.nexmark_sql import ASKS, CHANNEL_ID, DIRECTORIES

_TEN_SECONDS: Final = timedelta(seconds=10)
# Longer than any stream of events: windows of this length end with the input, not before.
_FOR_EVER: Final = timedelta(days=36_525)
_RATE: Final = pa.scalar(Decimal("0.908"), pa.decimal128(3, 3))


def _query(
    number: int, *, lookback: timedelta = timedelta(), unbounded: bool = False
) -> Callable[[Callable[[], DagBuilder]], Callable[[], DagBuilder]]:
    return pipeline(
        name=f"nexmark_q{number}",
        description=f"Nexmark: {ASKS[number]}",
        sinks=[Sink("out")],
        lookback=lookback,
        unbounded=unbounded,
        modules=["tests.bench.workloads.nexmark_graphs", "tests.bench.workloads.nexmark_sql"],
    )


def _converted(price: pa.Array) -> pa.Array:
    product = pc.multiply(pc.cast(price, pa.decimal128(20, 0)), _RATE)
    return pc.cast(product, pa.decimal128(23, 3))


@_query(0)
def q0() -> DagBuilder:
    """Bids as they are."""
    return then(events_of("bid"), "bids", passed=picked("auction bidder price dateTime extra"))


@_query(1)
def q1() -> DagBuilder:
    """Bids with their prices in euros."""
    in_euros = Project(
        {
            "auction": "auction",
            "bidder": "bidder",
            "price": lambda batch: _converted(batch.column("price")),
            "dateTime": "dateTime",
            "extra": "extra",
        }
    )
    return then(events_of("bid"), "bids", in_euros=in_euros)


@_query(2)
def q2() -> DagBuilder:
    """Bids for some auctions."""

    def chosen(batch: pa.RecordBatch) -> pa.Array:
        auction = batch.column("auction")
        return pc.equal(auction, pc.multiply(pc.divide(auction, 123), 123))

    return then(events_of("bid"), "bids", chosen=Filter(chosen), picked=picked("auction price"))


@_query(3, unbounded=True)
def q3() -> DagBuilder:
    """A join of people and auctions without bound."""
    return sellers_nearby(events_of("person", "auction"))


def sellers_nearby(builder: DagBuilder) -> DagBuilder:
    """The rest of q3, after nodes `people` and `auctions`."""
    nearby = Filter(pc.field("state").isin(["OR", "ID", "CA"]))
    join = IntervalJoin(("seller",), ("id",), -_FOR_EVER, _FOR_EVER, prefix="person_")
    builder = (
        builder.stateless_operator("nearby", nearby)
        .stateless_operator("tenth", Filter(pc.field("category") == 10))
        .connect("people", "nearby")
        .connect("auctions", "tenth")
    )
    shown = Project(
        {"name": "person_name", "city": "person_city", "state": "person_state", "id": "id"}
    )
    return then(joined(builder, "tenth", "nearby", join), "both", shown=shown)


def _bids_of_auctions() -> DagBuilder:
    """Auctions beside each bid that came for them in time: node `in_time`."""
    join = IntervalJoin(("id",), ("auction",), 0, _FOR_EVER, prefix="bid_")
    in_time = Filter(pc.field("bid_dateTime") <= pc.field("expires"))
    return (
        joined(events_of("auction", "bid"), "auctions", "bids", join)
        .stateless_operator("in_time", in_time)
        .connect("both", "in_time")
    )


@_query(4, unbounded=True)
def q4() -> DagBuilder:
    """The greatest bid of each auction, and the mean of these by category."""
    return then(
        _bids_of_auctions(),
        "in_time",
        final=Window.tumbling(_FOR_EVER, [max_of("bid_price", "final")], by=["id", "category"]),
        mean=Window.tumbling(_FOR_EVER, [mean_of("final")], by=["category"]),
        shown=picked("category", average="mean_final"),
    )


@_query(5, lookback=_TEN_SECONDS)
def q5() -> DagBuilder:
    """The most of the counts in sliding windows."""
    slide = timedelta(seconds=2)
    counted = Window.sliding(_TEN_SECONDS, slide, [count_rows("num")], by=["auction"])
    # All results of a window have one time, and no other window has it.
    hottest = TopN(1, (("num", "descending"),), by=("window_end",), window=1, with_ties=True)
    return then(
        events_of("bid"), "bids", counted=counted, hottest=hottest, shown=picked("auction num")
    )


@_query(7, lookback=_TEN_SECONDS)
def q7() -> DagBuilder:
    """The first by price in each window."""
    highest = TopN(1, (("price", "descending"),), window=_TEN_SECONDS, with_ties=True)
    columns = "auction price bidder dateTime extra"
    return then(events_of("bid"), "bids", highest=highest, shown=picked(columns))


@_query(8, lookback=_TEN_SECONDS)
def q8() -> DagBuilder:
    """A join of two windows."""
    return new_sellers(events_of("person", "auction"))


def new_sellers(builder: DagBuilder) -> DagBuilder:
    """The rest of q8, after nodes `people` and `auctions`."""
    once = count_rows("times")
    join = WindowJoin(("id",), ("seller",), _TEN_SECONDS, prefix="auction_")
    new = Window.tumbling(_TEN_SECONDS, [once], by=["id", "name"], bounds=INSTANT)
    selling = Window.tumbling(_TEN_SECONDS, [once], by=["seller"], bounds=INSTANT)
    builder = (
        builder.operator("new", new)
        .operator("selling", selling)
        .connect("people", "new")
        .connect("auctions", "selling")
    )
    shown = picked("id name", starttime="window_start")
    return then(joined(builder, "new", "selling", join), "both", shown=shown)


@_query(9, unbounded=True)
def q9() -> DagBuilder:
    """The first bid of each auction by price."""
    order: tuple[tuple[str, Direction], ...] = (
        ("bid_price", "descending"),
        ("bid_dateTime", "ascending"),
    )
    return then(
        _bids_of_auctions(),
        "in_time",
        winning=TopN(1, order, by=("id",)),
        shown=picked(
            "id itemName description initialBid reserve dateTime expires seller category extra "
            "bid_auction bid_bidder bid_price bid_dateTime bid_extra"
        ),
    )


@_query(11, unbounded=True)
def q11() -> DagBuilder:
    """Sessions of bidders."""
    session = SessionWindow(
        _TEN_SECONDS, (count_rows("bid_count"),), by=("bidder",), bounds=INSTANT
    )
    shown = picked("bidder bid_count", starttime="window_start", endtime="window_end")
    return then(events_of("bid"), "bids", session=session, shown=shown)


@_query(12)
def q12() -> DagBuilder:
    """Windows by the clock, which no replay can have."""
    by_clock = SqlWindow(
        "SELECT bidder, count(*) AS bid_count, "
        "time_bucket(INTERVAL 10 SECONDS, current_timestamp) AS starttime "
        "FROM input GROUP BY bidder",
        1,
        by=("bidder",),
    )
    return then(events_of("bid"), "bids", by_clock=by_clock)


@_query(14)
def q14() -> DagBuilder:
    """A calculation over each bid, of those in a range of prices."""

    def calculated(batch: pa.RecordBatch) -> pa.RecordBatch:
        price = _converted(batch.column("price"))
        low, high = pa.scalar(Decimal(1_000_000)), pa.scalar(Decimal(50_000_000))
        kept = pc.and_(pc.greater(price, low), pc.less(price, high))
        rows, price = batch.filter(kept), price.filter(kept)
        hour = pc.hour(rows.column("dateTime"))
        day = pc.and_(pc.greater_equal(hour, 8), pc.less_equal(hour, 18))
        night = pc.or_(pc.less_equal(hour, 6), pc.greater_equal(hour, 20))
        kind = pc.if_else(day, "dayTime", pc.if_else(night, "nightTime", "otherTime"))
        counts = pc.cast(pc.count_substring(rows.column("extra"), "c"), pa.int64())
        names = [TIME, "auction", "bidder", "price", "bidTimeType", "dateTime", "extra", "c_counts"]
        made = {"price": price, "bidTimeType": kind, "c_counts": counts}
        columns = [made[name] if name in made else rows.column(name) for name in names]
        return pa.RecordBatch.from_arrays(columns, names)

    return then(events_of("bid"), "bids", calculated=MapBatch(calculated))


@_query(18, unbounded=True)
def q18() -> DagBuilder:
    """The last bid of each bidder for each auction."""
    last = TopN(1, (("dateTime", "descending"),), by=("bidder", "auction"))
    columns = "auction bidder price channel url dateTime extra"
    return then(events_of("bid"), "bids", last=last, shown=picked(columns))


@_query(19, unbounded=True)
def q19() -> DagBuilder:
    """The ten highest bids of each auction."""
    order: tuple[tuple[str, Direction], ...] = (("price", "descending"), ("dateTime", "ascending"))
    highest = TopN(10, order, by=("auction",), rank="rank_number")
    columns = "auction bidder price channel url dateTime extra rank_number"
    return then(events_of("bid"), "bids", highest=highest, shown=picked(columns))


@_query(20, unbounded=True)
def q20() -> DagBuilder:
    """Bids with their auction, a join without bound."""
    join = IntervalJoin(("auction",), ("id",), -_FOR_EVER, _FOR_EVER, prefix="auction_")
    builder = (
        events_of("auction", "bid")
        .stateless_operator("tenth", Filter(pc.field("category") == 10))
        .connect("auctions", "tenth")
    )
    shown = picked(
        "auction bidder price channel url dateTime extra auction_itemName auction_description "
        "auction_initialBid auction_reserve auction_dateTime auction_expires auction_seller "
        "auction_category auction_extra"
    )
    return then(joined(builder, "bids", "tenth", join), "both", shown=shown)


@_query(21)
def q21() -> DagBuilder:
    """The number of each bid's channel, in SQL."""
    return then(events_of("bid"), "bids", numbered=Sql(CHANNEL_ID))


@_query(22)
def q22() -> DagBuilder:
    """The folders of each bid's address, in SQL."""
    return then(events_of("bid"), "bids", split=Sql(DIRECTORIES))
