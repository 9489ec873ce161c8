from __future__ import annotations

import pytest

from capstan.core.times import Antichain, ChangeBatch, MutableAntichain, Time, complete


def test_a_time_is_before_another_only_in_every_coordinate():
    assert Time.of(1, 2).less_equal(Time.of(1, 3))
    # As tuples (0, 4) comes first; in time the two are not comparable.
    assert Time.of(0, 4) < Time.of(1, 3)
    assert not Time.of(0, 4).less_equal(Time.of(1, 3))
    assert not Time.of(1, 3).less_equal(Time.of(0, 4))


def test_one_coordinate_is_a_total_order():
    assert Time.of(-5).less_equal(Time.of(-5))
    assert Time.of(-5).less_equal(Time.of(3))
    assert not Time.of(3).less_equal(Time.of(-5))


@pytest.mark.parametrize(("a", "b"), [((1,), (1, 2)), ((1, 2), (1,)), ((1, 2), (1, 2, 3))])
def test_times_of_different_types_are_not_compared(a, b):
    with pytest.raises(ValueError, match="zip"):
        Time(a).less_equal(b)


def test_a_time_equals_the_plain_tuple_and_has_no_room_for_more():
    assert {Time.of(1, 2): "x"}[(1, 2)] == "x"
    assert not hasattr(Time.of(1), "__dict__")


def test_a_change_batch_adds_up_and_forgets_what_cancels():
    batch = ChangeBatch([(Time.of(2), 1), (Time.of(1), 3), (Time.of(2), -1), (Time.of(0), 0)])
    assert batch.items() == ((Time.of(1), 3),)
    assert batch
    batch.update(Time.of(1), -3)
    assert not batch
    assert batch == ChangeBatch()
    assert ChangeBatch([(Time.of(1), 3)]) != ChangeBatch([(Time.of(1), 2)])
    assert ChangeBatch([(Time.of(1), 3)]) != ChangeBatch([(Time.of(2), 3)])


def test_an_antichain_keeps_only_the_minimal():
    frontier = Antichain.of([(1, 1), (2, 0), (0, 1), (2, 0)])
    assert frontier.elements == (Time.of(0, 1), Time.of(2, 0))
    assert frontier == Antichain((Time.of(2, 0), Time.of(0, 1), Time.of(5, 5)))
    assert frontier.less_equal((0, 1))
    assert not frontier.less_equal((1, 0))


def test_completeness_needs_every_element_to_be_past():
    frontier = Antichain.of([(0, 4), (1, 3)])
    assert complete(frontier, (0, 3))
    assert complete(frontier, (9, 2))
    assert not complete(frontier, (1, 3))
    assert complete(Antichain(), (0, 0))


def test_the_empty_frontier_is_the_furthest():
    some = Antichain.of([(3,)])
    assert some.dominates(Antichain())
    assert not Antichain().dominates(some)


def test_a_mutable_antichain_moves_with_its_counts():
    held = MutableAntichain.from_items([((0,), 1)])
    held.update([((0,), -1), ((2,), 1), ((7,), 1)])
    assert held.frontier == Antichain.of([(2,)])
    held.update([((2,), 2), ((7,), -1), ((2,), -1)])
    assert held.items() == (((2,), 2),)
    assert held.frontier == Antichain.of([(2,)])
    held.update([((2,), -2)])
    assert held.is_empty
    assert held.frontier.is_empty


def test_a_dropped_element_uncovers_what_it_covered():
    held = MutableAntichain.from_items([((0, 0), 1), ((1, 1), 1), ((0, 3), 1), ((2, 2), 1)])
    assert held.frontier == Antichain.of([(0, 0)])
    held.update([((0, 0), -1)])
    assert held.frontier == Antichain.of([(0, 3), (1, 1)])


def test_counts_below_zero_hold_nothing():
    held = MutableAntichain.from_items([((0,), -1), ((5,), 1)])
    assert held.frontier == Antichain.of([(5,)])
    assert held.count((0,)) == -1
    assert not held.less_equal((4,))
    held.update([((0,), 2)])
    assert held.frontier == Antichain.of([(0,)])


def test_times_that_are_gone_do_not_pile_up():
    held = MutableAntichain.from_items([((0,), 1), ((1,), 1)])
    for step in range(1, 5000):
        held.apply([((step,), -1), ((step + 1,), 1)])
    assert held.items() == (((0,), 1), ((5000,), 1))
    assert held.frontier == Antichain.of([(0,)])
    assert len(held._heap) < 200
    held.apply([((0,), -1)])
    assert held.frontier == Antichain.of([(5000,)])


def test_an_undercut_element_leaves_the_frontier():
    held = MutableAntichain.from_items([((5, 5), 1)])
    for step in range(5, 0, -1):
        held.apply([((step, step - 1), 1)])
    assert held.frontier == Antichain.of([(1, 0)])
    assert len(held._minimal) == 1
