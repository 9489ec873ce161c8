"""The benchmark of pipelines asks bytewax the same of the same bids."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capstan.pipeline import TIME
from tests.bench.nexmark_bids import answers_of, bids_of, in_bytewax, in_pipeline

BIDS = 3_000
BEGIN = datetime(2015, 7, 15, tzinfo=UTC)


@pytest.fixture(scope="module")
def bids():
    """A minute of bids, on so few auctions at so few prices that several are the highest."""
    draw = np.random.default_rng(7)
    numbers = {
        "auction": draw.integers(1_000, 1_020, BIDS),
        "bidder": draw.integers(1_000, 1_100, BIDS),
        "price": draw.integers(100, 130, BIDS),
    }
    texts = dict.fromkeys(("channel", "url", "extra"), pa.array(["c"] * BIDS))
    bid = pa.StructArray.from_arrays(
        [*map(pa.array, numbers.values()), *texts.values()], [*numbers, *texts]
    )
    times = pa.array(int(BEGIN.timestamp()) * 1_000_000 + np.arange(BIDS) * 20_000)
    moments = pc.cast(times, pa.timestamp("us", "UTC"))
    return pa.table({TIME: times, "dateTime": moments, "bid": bid})


@pytest.mark.parametrize(("number", "answers"), [(1, BIDS), (5, 30), (7, 30)])
def test_bytewax_comes_to_the_same(bids, number, answers):
    actual = answers_of(number, in_pipeline(number, bids))
    assert actual == Counter(in_bytewax(number, bids_of(bids)))
    assert actual.total() >= answers
