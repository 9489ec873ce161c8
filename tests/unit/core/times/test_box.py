from __future__ import annotations

import pytest

from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.errors import InvalidRequestError

EVENT = TimeType.of(event=Kind.TIMESTAMP)
BOTH = TimeType.of(epoch=Kind.BIGINT, day=Kind.DATE)


def test_half_open():
    box = Box((2,), (5,))
    assert [t for t in range(8) if box.contains((t,))] == [2, 3, 4]


def test_unnamed_coordinates_are_unbounded():
    box = Box((None, None), (None, 10))
    assert box.contains((10**9, 9))
    assert not box.contains((0, 10))
    assert Box.everything(BOTH).contains((-5, 5))
    with pytest.raises(InvalidRequestError, match="no coordinate"):
        Box.bound_of_text(BOTH, "days=1970-01-02")


def test_an_unbounded_epoch_never_completes_by_itself():
    by_day = Box((None, None), (None, 10))
    known = Box((None, None), (4, 10))
    frontier = Antichain.of([(4, 0)])
    assert not by_day.is_complete(frontier)
    assert known.is_complete(frontier)
    assert not known.is_complete(Antichain.of([(4, 0), (3, 9)]))
    assert known.is_complete(Antichain.of([(4, 0), (3, 10)]))


def test_ends_of_completeness():
    assert Box.everything(BOTH).is_complete(Antichain())
    assert not Box.everything(BOTH).is_complete(Antichain.of([(0, 0)]))
    assert Box((5, None), (5, None)).is_complete(Antichain.of([(0, 0)]))
    assert Box((2,), (5,)).is_complete(Antichain.of([(5,)]))
    assert not Box((2,), (5,)).is_complete(Antichain.of([(4,)]))


def test_touching_boxes_do_not_overlap():
    assert not Box((0,), (5,)).overlaps(Box((5,), (9,)))
    assert Box((0,), (5,)).overlaps(Box((4,), (9,)))
    assert Box((0,), (5,)).intersect(Box((4,), (None,))) == Box((4,), (5,))
    assert not Box((7,), (3,)).overlaps(Box((None,), (None,)))


def test_bounds_of_different_types():
    with pytest.raises(ValueError, match="coordinates"):
        Box((1,), (1, 2))


def test_as_json():
    assert Box((0,), (None,)).to_json(EVENT) == {
        "since": "1970-01-01T00:00:00.000000Z",
        "until": None,
    }
    assert Box((None, 0), (7, None)).to_json(BOTH) == {
        "since": [None, "1970-01-01"],
        "until": [7, None],
    }


def test_a_bound_by_name_or_by_position():
    assert Box.bound_of_text(BOTH, "day=1970-01-01") == (None, 0)
    assert Box.bound_of_text(BOTH, '[null, "1970-01-01"]') == (None, 0)
    assert Box.bound_of_text(BOTH, None) == (None, None)


@pytest.mark.parametrize(
    "text", ["3", "[3]", "days=1970-01-01", "day=3", "[1.0, null]", '["1970-01-01", 3]']
)
def test_bounds_that_are_refused(text):
    with pytest.raises(InvalidRequestError, match="CAP-TIME"):
        Box.bound_of_text(BOTH, text)


BITEMPORAL = TimeType.of(epoch=Kind.BIGINT, event=Kind.TIMESTAMP)
MARCH = 1_362_096_000_000_000


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        (None, (None, None)),
        ("2013-03-01", (None, MARCH)),
        ("event=2013-03-01", (None, MARCH)),
        ("epoch=7", (7, None)),
        (" epoch = -7 , event = 2013-03-01T00:00Z ", (-7, MARCH)),
        ('[null, "2013-03-01"]', (None, MARCH)),
        ("[7, null]", (7, None)),
    ],
)
def test_a_bound_names_coordinates_or_is_the_event_time(text, bound):
    assert Box.bound_of_text(BITEMPORAL, text) == bound


@pytest.mark.parametrize(
    "text",
    ["", "7", "[7]", "[7, 8]", "[7,", "epoch", "epoch=", "epoch=1,epoch=2", "era=1", "a=b=c"],
)
def test_another_text_is_no_bound(text):
    with pytest.raises(InvalidRequestError, match="CAP-TIME"):
        Box.bound_of_text(BITEMPORAL, text)


def test_bare_bounds_need_a_single_coordinate():
    assert Box.bound_of_text(TimeType.of(n=Kind.BIGINT), "7") == (7,)
    assert Box.bound_of_text(TimeType.of(n=Kind.BIGINT), "n=7") == (7,)
    with pytest.raises(InvalidRequestError) as refused:
        Box.bound_of_text(TimeType.of(x=Kind.BIGINT, y=Kind.BIGINT), "7")
    assert "x=..., y=..." in refused.value.hint
