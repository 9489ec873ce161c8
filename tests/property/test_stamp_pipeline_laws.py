"""Pipelines over streams with stamps give what a look at each record gives, in any ranges."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.pipeline import STAMP, TIME, pipelines, reach_of
from capstan.pipeline.operators.ordering import ordered
from tests.support.local_runner import run_locally
from tests.support.stamped_streams import MODELS, expected, recording, shown

LINE = TimeType.of(t=Kind.BIGINT)


def played(name, sent, since, until, frontier, peers=1, size=10_000):
    """The rows of a range, from the records that a replay reads for it."""
    pipeline = pipelines().get(name)
    reach = reach_of(pipeline, LINE, Box((since,), (until,)), frontier)
    region = Region(reach.reads, frontier)
    rows = []
    for each in sent:
        place = region.place([Time((time,)) for time in each.stamp])
        if place is not None:
            [time] = place
            columns = {TIME: time, STAMP: list(each.stamp), "f0": each.key, "f1": each.number}
            rows.append(columns)
    schema = next(node.schema for node in pipeline.dag().nodes if node.name == "records")
    records = pa.Table.from_pylist(rows, schema)
    run = run_locally(records, pipeline, reach, peers=peers, rows_per_batch=size)
    return run.sinks["out"].to_pylist()


@pytest.mark.parametrize("name", sorted(MODELS))
@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(0, 40), max_size=3, unique=True).map(sorted),
    st.integers(1, 3),
    st.integers(1, 20),
)
def test_ranges_of_any_cut_give_each_record_once(name, seed, cuts, peers, size):
    random = Random(seed)
    sent = [each for worker in range(2) for each in recording(random, worker)[1]]
    model = expected(name, sent)
    rows = []
    for since, until in pairwise((None, *cuts, None)):
        part = played(name, sent, since, until, Antichain(), peers, size)
        assert all((since or 0) <= row[TIME] < (until or 10**9) for row in part)
        rows += part
    assert shown(name, rows) == model


@pytest.mark.parametrize("name", ["stamp_sizes", "stamp_states"])
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 30))
def test_a_stream_that_goes_on_gives_what_is_complete(name, seed, end):
    sent = recording(Random(seed), 0)[1]
    rows = played(name, sent, None, None, Antichain.of([Time((end,))]))
    whole = [each for each in sent if each.stamp and min(each.stamp) < end]
    assert shown(name, rows) == expected(name, whole)


values = st.none() | st.lists(st.integers(-2, 2) | st.none(), max_size=4)


@given(st.lists(st.tuples(st.integers(0, 1), values), max_size=8), st.integers(1, 3))
def test_lists_are_ordered_by_their_elements(rows, size):
    kind = pa.list_(pa.int64())
    parts = [rows[at : at + size] for at in range(0, len(rows), size)] or [[]]
    table = pa.table(
        {
            "n": pa.chunked_array([[n for n, _ in part] for part in parts], pa.int64()),
            "s": pa.chunked_array([pa.array([s for _, s in part], kind) for part in parts]),
        }
    )

    def key(row):
        return row[0], row[1] is None, [(each is None, each or 0) for each in row[1] or []]

    actual = ordered(table, [("n", "ascending")]).to_pylist()
    assert [(row["n"], row["s"]) for row in actual] == sorted(rows, key=key)
    assert Counter(map(str, actual)) == Counter(map(str, table.to_pylist()))
