"""Laws of times that are pairs: ranges, columns, unions and checks as a plain tuple is ordered."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from capstan.core.times import (
    PAIR,
    PRODUCT,
    Antichain,
    Bound,
    Box,
    Coordinate,
    Kind,
    Time,
    TimeType,
)
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.maintenance.expected_content import _reached
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.region_json import may_overlap, parse_region, region_text
from capstan.storage.ledger.region_union import merge_regions, merge_scopes
from capstan.storage.tape.bounds import fit
from capstan.storage.tape.region_mask import in_box, inside
from capstan.storage.tape.region_sql import region_sql

NUMBERS = range(-2, 7)
GRIDS = {width: [Time(time) for time in product(NUMBERS, repeat=width)] for width in (2, 3)}
limits = st.integers(-1, 5)
widths = st.sampled_from([2, 3])


def pairs(width: int) -> TimeType:
    axes = (Coordinate.of(name, Kind.BIGINT) for name in ("t0", "t1", "t2")[:width])
    return TimeType(tuple(axes), PAIR)


@st.composite
def bounds(draw: st.DrawFn, width: int) -> Bound:
    """Bounds of the first coordinates, of some or of none."""
    known = draw(st.integers(0, width))
    return (*(draw(limits) for _ in range(known)), *(None,) * (width - known))


def boxes(width: int) -> st.SearchStrategy[Box]:
    return st.builds(Box, bounds(width), bounds(width), st.just(PAIR))


def frontiers(width: int) -> st.SearchStrategy[Antichain | None]:
    times = st.tuples(*[limits] * width)
    made = st.lists(times, max_size=2).map(lambda drawn: Antichain.of(drawn, PAIR))
    return st.none() | made


def regions(width: int) -> st.SearchStrategy[Region]:
    return st.builds(Region, boxes(width), frontiers(width), frontiers(width))


def plain(width: int) -> st.SearchStrategy[Box]:
    """Boxes coordinate by coordinate, as those of files."""
    bound = st.tuples(*[st.none() | limits] * width)
    return st.builds(Box, bound, bound)


def members(box: Box) -> set[Time]:
    """The model: bounds with an end below all numbers, compared as Python compares tuples."""
    low, high = ([-99 if v is None else v for v in bound] for bound in (box.since, box.until))
    unbounded = box.until[0] is None
    every = GRIDS[len(box.since)]
    return {t for t in every if low <= list(t) and (unbounded or list(t) < high)}


def times_of(region: Region) -> set[Time]:
    """The model of a region: its box, before the one frontier, and from the other on."""
    found = members(region.box)
    if region.below is not None:
        found = {t for t in found if not any(tuple(e) <= t for e in region.below)}
    if region.above is not None:
        found = {t for t in found if any(tuple(e) <= t for e in region.above)}
    return found


@given(widths.flatmap(lambda width: st.tuples(boxes(width), boxes(width), plain(width))))
def test_boxes_are_intervals(drawn: tuple[Box, Box, Box]) -> None:
    one, other, file = drawn
    every = GRIDS[len(one.since)]
    assert {t for t in every if one.contains(t)} == members(one)
    assert members(one.intersect(other)) == members(one) & members(other)
    assert not (one.is_empty and members(one))
    if members(one) & members(other):
        assert one.overlaps(other)
    in_file = {t for t in every if file.contains(t)}
    for box, times in ((one, members(one)), (file, in_file)):
        for order in (PAIR, PRODUCT):
            assert times <= {t for t in every if box.hull(order).contains(t)}
    assert not (members(one) & in_file) or (file.overlaps(one) and one.overlaps(file))


@given(widths.flatmap(lambda width: st.lists(st.tuples(*[limits] * width), min_size=2, max_size=2)))
def test_a_file_is_told_by_its_first_and_last_time(drawn: list[tuple[int, ...]]) -> None:
    since, last = (
        tuple(choose(axis) for axis in zip(*drawn, strict=True)) for choose in (min, max)
    )
    hull = Box(since, tuple(value + 1 for value in last)).hull(PAIR)
    times = {t for t in GRIDS[len(since)] if hull.contains(t)}
    assert (min(times), max(times)) == (since, last)


@given(widths.flatmap(lambda width: st.tuples(boxes(width), frontiers(width))))
@example((Box((0, None), (2, 1), PAIR), Antichain.of([(2, 1)], PAIR)))
@example((Box((0, None), (2, None), PAIR), Antichain.of([(1, 5)], PAIR)))
def test_a_range_is_complete_when_no_time_of_it_can_come(
    drawn: tuple[Box, Antichain | None],
) -> None:
    box, frontier = drawn
    assume(frontier is not None)
    assert frontier is not None
    low, high = ([-99 if v is None else v for v in bound] for bound in (box.since, box.until))
    endless = box.until[0] is None
    # The first time that may come, of each element, lies at or after the end.
    done = [not endless and max(low, list(element)) >= high for element in frontier]
    assert box.is_complete(frontier) == (all(done) or (not endless and low >= high))


@given(widths.flatmap(lambda width: st.tuples(regions(width), regions(width), plain(width))))
@example(
    (Region(Box((0, 0), (2, 0), PAIR)), Region(Box((1, 9), (2, 0), PAIR)), Box((0, 0), (2, 0)))
)
def test_regions_are_ranges(drawn: tuple[Region, Region, Box]) -> None:
    one, other, file = drawn
    every = GRIDS[len(one.box.since)]
    assert {t for t in every if one.contains(t)} == times_of(one)
    simple = one.simplified()
    assert (simple.below, simple.above) == (None, None)
    assert times_of(simple) == times_of(one)
    stored = parse_region(region_text(one))
    assert (stored, stored.box.order) == (one, PAIR)
    assert {t for t in every if stored.contains(t)} == times_of(one)
    if times_of(one) & times_of(other):
        assert may_overlap(one, other)
    if one.includes(other):
        assert times_of(other) <= times_of(one)
    told = fit(file, one)
    if told is not None:
        assert {t in times_of(one) for t in every if file.contains(t)} <= {told}


@given(widths.flatmap(regions))
def test_columns_of_times_are_told_as_one_by_one(region: Region) -> None:
    width = len(region.box.since)
    every, time_type = GRIDS[width], pairs(width)
    expected = [time in times_of(region) for time in every]
    assert inside(region, np.array(every, dtype=np.int64)).tolist() == expected
    fields = {f"t{i}": [time[i] for time in every] for i in range(width)}
    condition = region_sql(time_type, region, tuple(fields)).replace("L", "")
    with duckdb.connect() as connection:
        connection.register("grid", pa.table(fields))
        kept = connection.sql(f"SELECT ({condition}) AS kept FROM grid").fetchall()
    assert [row[0] for row in kept] == expected
    box = region.simplified().box
    struct = pa.table({"time": pa.StructArray.from_arrays(list(map(pa.array, fields.values())),
                                                          list(fields))})  # fmt: skip
    found = ds.dataset(struct).to_table(filter=in_box(time_type, box)).column("time").to_pylist()
    assert [tuple(time.values()) for time in found] == [t for t in every if box.contains(t)]


@given(widths.flatmap(frontiers))
def test_times_that_can_still_come_are_told_as_one_by_one(frontier: Antichain | None) -> None:
    assume(frontier)
    assert frontier is not None
    every = GRIDS[len(frontier.elements[0])]
    columns = [pa.array([time[i] for time in every]) for i in range(len(every[0]))]
    assert _reached(columns, frontier).to_pylist() == [frontier.less_equal(t) for t in every]


@given(widths.flatmap(lambda width: st.lists(regions(width), max_size=6)))
def test_united_ranges_have_the_same_times(several: list[Region]) -> None:
    merged = merge_regions(several)
    assert set().union(*map(times_of, merged)) == set().union(*map(times_of, several))
    [strip] = merge_scopes(Scope("t", (0,), region) for region in several) or [None]
    for one, other in pairwise(strip.regions if strip else ()):
        assert max(times_of(one), default=()) < min(times_of(other), default=(99,))


def test_successive_ranges_of_pairs_are_one() -> None:
    ends: list[Any] = [(0, 0), (0, 7), (2, None), (2, 1), (9, 9)]
    parts = [Region(Box(a, b, PAIR)) for a, b in pairwise(ends)]
    assert merge_regions(parts) == [Region(Box((0, 0), (9, 9), PAIR))]


@given(widths.flatmap(lambda width: st.tuples(
    st.lists(bounds(width), max_size=4),
    st.lists(st.lists(st.tuples(*[limits] * width), min_size=1, max_size=3), max_size=5),
)))  # fmt: skip
def test_any_split_into_ranges_has_each_record_once(drawn: tuple[Any, Any]) -> None:
    cuts, stamps = drawn
    assume(stamps)
    width = len(stamps[0][0])
    nothing = (None,) * width
    ends = sorted(cuts, key=lambda bound: [v for v in bound if v is not None])
    chain = [nothing, *(end for end in ends if end[0] is not None), nothing]
    parts = [Region(Box(a, b, PAIR)) for a, b in pairwise(chain)]
    for stamp in ([*map(Time, sorted(drawn))] for drawn in stamps):
        places = [part.place(stamp) for part in parts]
        # The least element decides, and is the place.
        assert [place for place in places if place is not None] == [stamp[0]]
        assert [part.contains(stamp[0]) for part in parts] == [p is not None for p in places]


def test_bounds_of_pairs_begin_with_the_first_coordinate() -> None:
    assert Box.bound_of_text(pairs(2), "t0=3") == (3, None)
    assert Box.bound_of_text(pairs(2), "[3, 4]") == (3, 4)
    assert Box.bound_of_text(pairs(3), "t0=3,t1=4") == (3, 4, None)
    # One place has one bound, so a range that begins where it ends is seen to be empty.
    assert Box.bound_of_text(pairs(2), "[3, 0]") == (3, None)
    assert Box.bound_of_text(pairs(3), "[3, 0, 0]") == (3, None, None)
    assert Box.bound_of_text(pairs(3), "[3, 0, 1]") == (3, 0, 1)
    assert Box.bound_of_text(pairs(2), "[0, 0]") == Box.bound_of_text(pairs(2), "t0=0") == (0, None)
    assert Box.bound_of_text(TimeType.of(x=Kind.BIGINT, y=Kind.BIGINT), "[3, 0]") == (3, 0)
    for text in ("t1=3", "[null, 3]"):
        with pytest.raises(InvalidRequestError, match="a bound of pairs begins with t0") as caught:
            Box.bound_of_text(pairs(2), text)
        assert caught.value.code == "CAP-TIME"


def test_a_type_states_its_order() -> None:
    made = pairs(2)
    assert made.to_json()["order"] == "lexicographic"
    assert TimeType.from_json(made.to_json()) == made
    assert "order" not in TimeType.of(t0=Kind.BIGINT).to_json()
    with pytest.raises(InvalidRequestError, match="cannot be in the order") as caught:
        TimeType.from_json({**made.to_json(), "order": "reverse"})
    assert caught.value.code == "CAP-TIME-TYPE"
