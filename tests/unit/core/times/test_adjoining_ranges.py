from __future__ import annotations

from itertools import pairwise

import pytest

from capstan.core.times import AdjoiningRanges, Box


def boxes(*bounds: int | None) -> list[Box]:
    return [Box((a,), (b,)) for a, b in pairwise(bounds)]


def test_each_time_is_in_the_range_that_has_it():
    ranges = AdjoiningRanges.of(boxes(0, 2, 3, 7))
    assert ranges is not None
    assert [ranges.number((time,)) for time in range(7)] == [0, 0, 1, 2, 2, 2, 2]
    assert (ranges.number((-5,)), ranges.number((7,))) == (0, 2)


def test_the_last_coordinate_decides():
    parts = [Box((1, 0), (None, 5)), Box((1, 5), (None, 9))]
    ranges = AdjoiningRanges.of(parts)
    assert ranges is not None
    assert [ranges.number((8, time)) for time in (0, 4, 5, 8)] == [0, 0, 1, 1]
    assert AdjoiningRanges.of([parts[0], Box((2, 5), (None, 9))]) is None


@pytest.mark.parametrize(
    "parts",
    [
        [Box((0,), (2,)), Box((3,), (4,))],
        [Box((0,), (2,)), Box((1,), (4,))],
        [Box((2,), (4,)), Box((0,), (2,))],
        boxes(None, 2, 3),
        boxes(0, 2, None),
        boxes(0, None, 3),
    ],
    ids=["gap", "overlap", "turned", "no start", "no end", "no bound"],
)
def test_others_do_not_adjoin(parts: list[Box]):
    assert AdjoiningRanges.of(parts) is None
