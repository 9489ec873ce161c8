"""Which times a run reads, and which outputs it keeps."""

from __future__ import annotations

import pytest

from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.pipeline import END, Pipeline, Sink, reach_of

TIMES = TimeType.of(t=Kind.BIGINT)
BOTH = TimeType.of(epoch=Kind.BIGINT, event=Kind.BIGINT)


def pipeline(**settings: object) -> Pipeline:
    return Pipeline("p", "a:b", (Sink("out"),), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "asked", "frontier", "reads", "writes", "last", "complete"),
    [
        # Complete: the range itself, and what lies before and after it.
        ({}, (10, 20), 25, (10, 20), (10, 20), 20, True),
        ({"lookback": 4}, (10, 20), 25, (6, 20), (10, 20), 20, True),
        ({"lookahead": 5}, (10, 20), 25, (10, 25), (10, 20), 25, True),
        ({"unbounded": True}, (10, 20), 25, (None, 20), (10, 20), 20, True),
        # Not complete: outputs that later records could change are left out.
        ({}, (10, 20), 15, (10, 20), (10, 15), 15, False),
        ({"lookahead": 5}, (10, 20), 24, (10, 25), (10, 19), 24, False),
        # Without an end: what is complete, and less what looks ahead.
        ({}, (10, None), 15, (10, None), (10, 15), 15, False),
        ({"lookahead": 5}, (None, None), 15, (None, None), (None, 10), 15, False),
        # Closed: the input ends where the range has no end, and there alone.
        ({}, (10, None), None, (10, None), (10, None), END, True),
        ({"lookahead": 5}, (10, None), None, (10, None), (10, None), END, True),
        ({}, (10, 20), None, (10, 20), (10, 20), 20, True),
    ],
)
def test_of_one_coordinate(
    settings: dict[str, object],
    asked: tuple[int | None, int | None],
    frontier: int | None,
    reads: tuple[int | None, int | None],
    writes: tuple[int | None, int | None],
    last: int,
    complete: bool,
) -> None:
    box = Box((asked[0],), (asked[1],))
    at = Antichain() if frontier is None else Antichain.of([(frontier,)])
    reach = reach_of(pipeline(**settings), TIMES, box, at)
    assert (reach.reads.since[0], reach.reads.until[0]) == reads
    assert (reach.since, reach.until) == writes
    assert (reach.last, reach.complete) == (last, complete)


def test_what_was_known_when_is_complete_by_its_epoch() -> None:
    known = Box((None, 10), (3, 20))
    # Epoch 3 has not begun to close anything at 20, and nothing of it belongs to the range.
    reach = reach_of(pipeline(lookback=2), BOTH, known, Antichain.of([(3, 0)]))
    assert reach.coordinate == 1
    assert reach.reads == Box((None, 8), (3, 20))
    assert reach.writes == Box((None, 10), (None, 20))
    assert (reach.last, reach.complete) == (20, True)


def test_an_open_epoch_leaves_the_rest_of_the_range() -> None:
    known = Box((None, 10), (3, 20))
    reach = reach_of(pipeline(), BOTH, known, Antichain.of([(2, 14), (4, 0)]))
    assert (reach.until, reach.last, reach.complete) == (14, 14, False)


def test_without_an_end_of_events_windows_close_by_the_watermark() -> None:
    reach = reach_of(pipeline(), BOTH, Box((None, None), (3, None)), Antichain.of([(5, 17)]))
    assert (reach.until, reach.last, reach.complete) == (17, 17, True)


def test_a_lookback_stops_where_times_begin() -> None:
    days = TimeType.of(event=Kind.TIMESTAMP)
    first = days.minimum[0]
    reach = reach_of(pipeline(lookback=100), days, Box((first + 5,), (None,)), Antichain())
    assert reach.reads.since == (first,)


def test_a_pipeline_has_to_say_which_coordinate_is_its_time() -> None:
    other = TimeType.of(a=Kind.BIGINT, b=Kind.BIGINT)
    everywhere = Box.everything(other)
    with pytest.raises(InvalidRequestError, match="which of a, b is its time"):
        reach_of(pipeline(), other, everywhere, Antichain())
    assert reach_of(pipeline(coordinate="b"), other, everywhere, Antichain()).coordinate == 1
    with pytest.raises(InvalidRequestError, match="no coordinate"):
        reach_of(pipeline(coordinate="c"), other, everywhere, Antichain())
