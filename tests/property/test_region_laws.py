"""Regions: as a box where times are totally ordered, and the same after a trip through a ledger."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capstan.core.times import Antichain, Box, Time
from capstan.core.times.region import Region
from capstan.storage.ledger.region_json import may_overlap, parse_region, region_text

NUMBERS = range(-2, 8)
bounds = st.none() | st.integers(-2, 7)


def frontiers(width: int) -> st.SearchStrategy[Antichain | None]:
    times = st.tuples(*[st.integers(-2, 7)] * width)
    return st.none() | st.lists(times, max_size=3).map(Antichain.of)


def regions(width: int) -> st.SearchStrategy[Region]:
    box = st.builds(Box, st.tuples(*[bounds] * width), st.tuples(*[bounds] * width))
    return st.builds(Region, box, frontiers(width), frontiers(width))


def members(region: Region, width: int) -> set[tuple[int, ...]]:
    grid = [(n,) for n in NUMBERS] if width == 1 else [(n, m) for n in NUMBERS for m in NUMBERS]
    return {time for time in grid if region.contains(Time(time))}


@given(regions(1))
def test_a_total_order_needs_no_more_than_a_box(region: Region) -> None:
    simple = region.simplified()
    assert (simple.below, simple.above) == (None, None)
    assert members(simple, 1) == members(region, 1)


@given(st.integers(1, 2).flatmap(regions))
def test_a_region_comes_back_from_its_text(region: Region) -> None:
    assert parse_region(region_text(region)) == region
    assert region_text(parse_region(region_text(region))) == region_text(region)


@given(regions(1), regions(1))
def test_regions_that_share_a_time_overlap(one: Region, other: Region) -> None:
    if members(one, 1) & members(other, 1):
        assert may_overlap(one, other)


@given(regions(2), regions(2))
def test_partially_ordered_regions_that_share_a_time_overlap(one: Region, other: Region) -> None:
    if members(one, 2) & members(other, 2):
        assert may_overlap(one, other)
