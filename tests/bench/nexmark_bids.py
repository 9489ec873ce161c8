"""Nexmark's q1, q5 and q7 over bids in memory: as pipelines, and in bytewax."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from capstan.core.times import Kind, TimeType
from capstan.pipeline import TIME, pipelines
from tests.bench.workloads import nexmark_queries
from tests.support.local_runner import everything, run_locally

if TYPE_CHECKING:
    from bytewax.dataflow import Stream

_TIMES: Final = TimeType.of(event=Kind.TIMESTAMP)
_RATE: Final = Decimal("0.908")
_BEGIN: Final = datetime(2015, 7, 15, tzinfo=UTC)
_ANSWERS: Final = {
    1: ("auction", "bidder", "price", "dateTime"),
    5: ("auction", "num"),
    7: ("auction", "bidder", "price", "dateTime"),
}
"""The columns of a query's answers that both sides produce."""

Bid = tuple[int, int, int, datetime]
"""Auction, bidder, price and time: a record for bytewax."""


def in_pipeline(number: int, table: pa.Table) -> pa.Table:
    """The answers of a query's pipeline.

    Args:
        number: Number of the query.
        table: Bids: `_time BIGINT`, `dateTime TIMESTAMP`, and the struct `bid`.
    """
    assert nexmark_queries.q1 is not None
    pipeline = pipelines().get(f"nexmark_q{number}")
    return run_locally(table, pipeline, everything(_TIMES)).sinks["out"]


def answers_of(number: int, found: pa.Table) -> Counter[tuple[Any, ...]]:
    """The answers of a pipeline in bytewax's form."""
    columns = [found.column(name).to_pylist() for name in _ANSWERS[number]]
    return Counter(zip(*columns, strict=True))


def bids_of(table: pa.Table) -> list[Bid]:
    """The bids of `in_pipeline`, one by one."""
    bid = table.column("bid").combine_chunks()
    columns = [bid.field(name).to_pylist() for name in ("auction", "bidder", "price")]
    moments = [
        datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time)
        for time in table.column(TIME).to_pylist()
    ]
    return list(zip(*columns, moments, strict=True))


def in_bytewax(number: int, bids: Sequence[Bid]) -> list[tuple[Any, ...]]:
    """The answers of bytewax: one record at a time, on one worker."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    flow = Dataflow(f"q{number}")
    stream = op.input("bids", flow, TestingSource(bids, batch_size=1_000))
    answers = {1: _q1, 5: _q5, 7: _q7}[number](stream)
    results: list[tuple[Any, ...]] = []
    op.output("out", answers, TestingSink(results))
    run_main(flow)
    return results


def _q1(bids: Stream[Bid]) -> Stream[Any]:
    import bytewax.operators as op

    return op.map("converted", bids, lambda bid: (bid[0], bid[1], bid[2] * _RATE, bid[3]))


def _q5(bids: Stream[Bid]) -> Stream[Any]:
    import bytewax.operators as op
    from bytewax.operators import windowing as win

    windows = win.SlidingWindower(
        length=timedelta(seconds=10), offset=timedelta(seconds=2), align_to=_BEGIN
    )
    counts = win.count_window("counts", bids, _clock(), windows, lambda bid: str(bid[0]))
    # By window: an auction, and its number of bids there.
    counted = op.map(
        "by window", counts.down, lambda each: (str(each[1][0]), (int(each[0]), each[1][1]))
    )
    most = op.fold_final("most", counted, list, lambda best, each: _highest(best, each, 1))
    return op.flat_map("answers", most, lambda window: window[1])


def _q7(bids: Stream[Bid]) -> Stream[Any]:
    import bytewax.operators as op
    from bytewax.operators import windowing as win

    keyed = op.key_on("together", bids, lambda _: "all")
    windows = win.TumblingWindower(length=timedelta(seconds=10), align_to=_BEGIN)
    highest = win.fold_window(
        "highest",
        keyed,
        _clock(),
        windows,
        list,
        lambda best, bid: _highest(best, bid, 2),
        lambda one, other: one + other,
    )
    return op.flat_map("answers", highest.down, lambda window: window[1][1])


def _highest(best: list[Any], each: Any, by: int) -> list[Any]:
    """The entries with the greatest value at an index so far."""
    if not best or each[by] > best[0][by]:
        return [each]
    return [*best, each] if each[by] == best[0][by] else best


def _clock() -> Any:
    from bytewax.operators.windowing import EventClock

    # By default, time passes between bids like on the wall clock, and some bids are late.
    return EventClock(lambda bid: bid[3], timedelta(), lambda: _BEGIN)
