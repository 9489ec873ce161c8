"""Laws of merging regions: the same points of the same workers, in as few regions as possible."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.times import Antichain, Box, Time
from capstan.core.times.region import Region
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.region_union import merge_regions, merge_scopes

NUMBERS = range(-3, 8)
WORKERS = range(3)
bounds = st.none() | st.integers(-2, 6)
widths = st.integers(1, 2)


def frontiers(width: int) -> st.SearchStrategy[Antichain | None]:
    times = st.tuples(*[st.integers(-2, 6)] * width)
    return st.none() | st.lists(times, max_size=2).map(Antichain.of)


def regions(width: int) -> st.SearchStrategy[Region]:
    box = st.builds(Box, st.tuples(*[bounds] * width), st.tuples(*[bounds] * width))
    # A few boxes only: regions of different boxes are not merged by their frontiers.
    few = st.just(Box((None,) * width, (None,) * width)) | box
    return st.builds(Region, few, frontiers(width), frontiers(width))


def scopes(width: int) -> st.SearchStrategy[Scope]:
    workers = st.none() | st.sets(st.sampled_from(WORKERS), min_size=1).map(tuple)
    return st.builds(Scope, st.just("t"), workers, regions(width))


def points(several: Iterable[Region], width: int) -> set[tuple[int, ...]]:
    grid = [(n,) for n in NUMBERS] if width == 1 else [(n, m) for n in NUMBERS for m in NUMBERS]
    actual = list(several)
    return {time for time in grid if any(item.contains(Time(time)) for item in actual)}


@given(widths.flatmap(lambda width: st.lists(regions(width), max_size=6)))
def test_united_regions_have_the_same_times(several: list[Region]) -> None:
    width = len(several[0].box.since) if several else 1
    assert points(merge_regions(several), width) == points(several, width)
    assert len(merge_regions(several)) <= len(several)


@given(widths.flatmap(lambda width: st.lists(scopes(width), max_size=6)))
def test_strips_have_the_same_rows(several: list[Scope]) -> None:
    width = len(several[0].region.box.since) if several else 1
    actual = merge_scopes(several)
    for worker in WORKERS:
        before = [item.region for item in several if worker in (item.workers or WORKERS)]
        after = [
            item
            for strip in actual
            if strip.workers is None or worker in strip.workers
            for item in strip.regions
        ]
        assert points(after, width) == points(before, width)


@given(widths.flatmap(lambda width: st.lists(regions(width), max_size=6)))
def test_the_regions_of_a_strip_are_in_order_with_gaps(several: list[Region]) -> None:
    for strip in merge_scopes(Scope("t", (0,), item) for item in several):
        for one, other in zip(strip.regions, strip.regions[1:], strict=False):
            ends, begins = one.box.until[-1], other.box.since[-1]
            assert ends is not None
            assert begins is not None
            assert ends < begins


@pytest.mark.parametrize("backwards", [False, True])
def test_a_year_by_the_hour_is_one_region(backwards: bool) -> None:
    hours = [Region(Box((hour,), (hour + 1,))) for hour in range(8760)]
    assert merge_regions(reversed(hours) if backwards else hours) == [Region(Box((0,), (8760,)))]


def test_hours_with_gaps_stay_as_many() -> None:
    hours = [Region(Box((2 * hour,), (2 * hour + 1,))) for hour in range(1000)]
    assert merge_regions(hours) == hours


def test_epochs_of_all_times_are_one_region() -> None:
    epochs = [Region(Box((epoch, None), (epoch + 1, None))) for epoch in range(100)]
    assert merge_regions(epochs) == [Region(Box((0, None), (100, None)))]


def test_a_replay_that_was_followed_is_one_region() -> None:
    every = Box((None, None), (None, None))
    reached = [Antichain.of([(n, 0), (0, 2 * n)]) for n in range(1, 1001)]
    begun = [None, *reached]
    followed = [Region(every, below, above) for below, above in zip(reached, begun, strict=False)]
    assert merge_regions(followed) == [Region(every, reached[-1])]


def test_a_frontier_past_the_box_bounds_nothing() -> None:
    passed, begun = Antichain.of([(4, 0), (0, 9)]), Antichain.of([(0, 0)])
    boxes = [Box((0, n), (4, n + 1)) for n in range(9)]
    reported = [Region(box, passed, begun) for box in boxes]
    assert merge_regions(reported) == [Region(Box((0, 0), (4, 9)))]


def test_workers_with_equal_coverage_are_grouped() -> None:
    days = [Region(Box((day,), (day + 1,))) for day in range(10)]
    actual = merge_scopes(Scope("t", (worker,), day) for worker in range(50) for day in days)
    assert [(strip.workers, strip.regions) for strip in actual] == [
        (frozenset(range(50)), (Region(Box((0,), (10,))),))
    ]
    whole = merge_scopes([Scope("t", (1,), days[0]), Scope("t", None, days[0])])
    assert [strip.workers for strip in whole] == [None]
