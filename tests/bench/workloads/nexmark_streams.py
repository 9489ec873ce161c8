"""Nexmark's joins as pipelines over bids, auctions and people that are streams of their own."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pyarrow.compute as pc

from capstan.pipeline import DagBuilder, Sink, pipeline
from capstan.pipeline.operators import Filter, IntervalJoin
from tests.bench.workloads.nexmark_graphs import joined, streams_of
from tests.bench.workloads.nexmark_queries import new_sellers, sellers_nearby

_MODULES: Final = ["tests.bench.workloads.nexmark_graphs", "tests.bench.workloads.nexmark_queries"]
_TEN_SECONDS: Final = timedelta(seconds=10)
_FOR_EVER: Final = timedelta(days=36_525)

REFERENCES: Final = {
    name: f"{__name__}:{name}" for name in ("market_q3", "market_q8", "market_bids")
}
"""The pipelines of this module, by the names used in declarations."""


@pipeline(name="market_q3", sinks=[Sink("out")], unbounded=True, modules=_MODULES)
def market_q3() -> DagBuilder:
    """q3 over people and auctions."""
    return sellers_nearby(streams_of("person", "auction"))


@pipeline(name="market_q8", sinks=[Sink("out")], lookback=_TEN_SECONDS, modules=_MODULES)
def market_q8() -> DagBuilder:
    """q8 over people and auctions."""
    return new_sellers(streams_of("person", "auction"))


@pipeline(name="market_bids", sinks=[Sink("out")], unbounded=True, modules=_MODULES)
def market_bids() -> DagBuilder:
    """Bids from a person for an auction in time: three streams, each of other keys."""
    builder = streams_of("person", "auction", "bid")
    for_auction = IntervalJoin(("id",), ("auction",), 0, _FOR_EVER, prefix="bid_")
    in_time = Filter(pc.field("bid_dateTime") <= pc.field("expires"))
    by = IntervalJoin(("bid_bidder",), ("id",), -_FOR_EVER, _FOR_EVER, prefix="bidder_")
    joined(builder, "auctions", "bids", for_auction)
    builder.stateless_operator("in_time", in_time).connect("both", "in_time")
    builder.operator("named", by).connect("in_time", "named").connect("people", "named")
    return builder.sink_for("named", "out")
