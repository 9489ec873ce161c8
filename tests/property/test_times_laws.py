from __future__ import annotations

import json
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from capstan.core.times import (
    Antichain,
    Box,
    ChangeBatch,
    MutableAntichain,
    Time,
    TimeType,
    complete,
)
from tests.support.strategies import changes, time_types, times, times_of, widths

GRID = 5


def several_times(count):
    return widths().flatmap(lambda width: st.tuples(*[times(width)] * count))


def several_antichains(count):
    return widths().flatmap(
        lambda width: st.tuples(*[st.lists(times(width), max_size=5).map(Antichain.of)] * count)
    )


def grid(width):
    return [Time(point) for point in product(range(GRID), repeat=width)]


def around(width):
    # No bound lies past the grid, so its outermost cells stand for all that is beyond.
    return [Time(point) for point in product(range(-1, GRID + 1), repeat=width)]


@given(several_times(3))
def test_the_order_of_times(three):
    a, b, c = three
    assert a.less_equal(a)
    assert (a.less_equal(b) and b.less_equal(a)) == (a == b)
    assert not (a.less_equal(b) and b.less_equal(c)) or a.less_equal(c)
    # The listing order extends it.
    assert not a.less_equal(b) or a <= b


@given(st.data(), widths())
def test_an_antichain_is_minimal_and_stands_for_the_same_times(data, width):
    given_times = data.draw(st.lists(times(width), max_size=8))
    frontier = Antichain.of(given_times)
    assert set(frontier.elements) <= set(given_times)
    assert not any(a != b and a.less_equal(b) for a in frontier.elements for b in frontier.elements)
    assert frontier == Antichain.of(data.draw(st.permutations(given_times)))
    for time in grid(width):
        assert frontier.less_equal(time) == any(t.less_equal(time) for t in given_times)
        assert complete(frontier, time) != frontier.less_equal(time)


@given(several_antichains(3))
def test_the_order_of_frontiers(three):
    f, g, h = three
    assert f.dominates(f)
    assert (f.dominates(g) and g.dominates(f)) == (f == g)
    assert not (f.dominates(g) and g.dominates(h)) or f.dominates(h)
    assert f.dominates(Antichain())


@given(widths().flatmap(lambda width: changes(width, max_size=12)), st.data())
def test_a_change_batch_depends_on_sums_only(updates, data):
    batch = ChangeBatch(updates)
    assert batch == ChangeBatch(data.draw(st.permutations(updates)))
    sums = {time: sum(d for t, d in updates if t == time) for time, _ in updates}
    assert batch.items() == tuple(sorted((t, d) for t, d in sums.items() if d))
    assert bool(batch) == any(sums.values())


@given(st.data(), widths())
def test_a_mutable_antichain_is_the_minimal_of_what_is_counted(data, width):
    held, counts = MutableAntichain(), {}
    for updates in data.draw(st.lists(changes(width), max_size=8)):
        held.update(updates)
        for time, diff in updates:
            counts[time] = counts.get(time, 0) + diff
        expected = Antichain.of(time for time, count in counts.items() if count > 0)
        assert held.frontier == expected
        assert held.is_empty == expected.is_empty
        assert held.items() == tuple(sorted((t, c) for t, c in counts.items() if c))
        assert all(held.count(time) == count for time, count in counts.items())
        for time in grid(width):
            assert held.less_equal(time) == expected.less_equal(time)
    assert MutableAntichain.from_items(held.items()).frontier == held.frontier


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60))
def test_a_long_run_of_one_coordinate(steps):
    held = MutableAntichain.from_items([((100,), 1)])
    alive = {100}
    for step, (value, clear) in enumerate(steps):
        toggled = {(step + value) % 90} | (set(alive) if clear else set())
        held.apply([((t,), -1 if t in alive else 1) for t in toggled])
        alive ^= toggled
        assert held.frontier == Antichain.of((t,) for t in alive)


@st.composite
def boxes(draw, width):
    bound = st.none() | st.integers(0, GRID)
    return Box(tuple(draw(bound) for _ in range(width)), tuple(draw(bound) for _ in range(width)))


@given(st.data(), widths())
def test_a_box_is_complete_when_all_its_times_are(data, width):
    box = data.draw(boxes(width))
    frontier = Antichain.of(data.draw(st.lists(times(width), max_size=4)))
    cells = around(width)
    inside = [time for time in cells if box.contains(time)]
    assert box.is_complete(frontier) == all(complete(frontier, time) for time in inside)
    assert box.is_empty == (not inside)


@given(st.data(), widths())
def test_boxes_meet_where_both_contain(data, width):
    a, b = data.draw(boxes(width)), data.draw(boxes(width))
    cells = around(width)
    both = [time for time in cells if a.contains(time) and b.contains(time)]
    assert [time for time in cells if a.intersect(b).contains(time)] == both
    assert a.overlaps(b) == bool(both)
    assert a.overlaps(b) == b.overlaps(a)


@given(st.data(), time_types())
def test_times_are_read_back_as_written(data, time_type):
    time = data.draw(times_of(time_type))
    assert time_type.parse(time_type.render(time)) == time
    assert time_type.parse_text(time_type.render_text(time)) == time
    assert TimeType.from_json(time_type.to_json()) == time_type


@given(st.data(), time_types())
def test_boxes_are_read_back_as_written(data, time_type):
    since, until = data.draw(times_of(time_type)), data.draw(times_of(time_type))
    unbounded = data.draw(st.tuples(*[st.booleans()] * len(since)))
    box = Box(
        tuple(None if out else value for value, out in zip(since, unbounded, strict=True)), until
    )
    texts = [
        None if bound is None else json.dumps(bound) for bound in box.to_json(time_type).values()
    ]
    assert Box(*(Box.bound_of_text(time_type, text) for text in texts)) == box


@given(st.data(), time_types())
def test_written_timestamps_sort_as_their_times(data, time_type):
    one, other = data.draw(times_of(time_type)), data.draw(times_of(time_type))
    for coordinate, a, b in zip(time_type.coordinates, one, other, strict=True):
        assert (coordinate.render(a) < coordinate.render(b)) == (a < b)
