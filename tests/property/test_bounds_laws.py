"""Bounds of files: what they say of a file's rows is true of every row, with one slack for all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import assume, given
from hypothesis import strategies as st

from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.storage.tape.bounds import box_of, fit, interval, may_be_null, only_value

DAY = 86_400_000_000
NUMBERS = range(-2, 8)
limits = st.none() | st.integers(-2, 7)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.integers(-(2**51), 2**51).map(lambda n: EPOCH + timedelta(microseconds=n))
days = st.dates(date(1890, 1, 1), date(2110, 1, 1))


def boxes(width: int) -> st.SearchStrategy[Box]:
    return st.builds(Box, st.tuples(*[limits] * width), st.tuples(*[limits] * width))


def regions(width: int) -> st.SearchStrategy[Region]:
    times = st.tuples(*[st.integers(-2, 7)] * width)
    frontiers = st.none() | st.lists(times, max_size=3).map(Antichain.of)
    return st.builds(Region, boxes(width), frontiers, frontiers)


def in_integers(value: date) -> int:
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    return (value - date(1970, 1, 1)).days


def logged(values: Sequence[date]) -> dict[str, object]:
    """The bounds that a log has of a column: of timestamps in whole milliseconds, cut off."""

    def cut(value: date) -> date:
        if not isinstance(value, datetime):
            return value
        return value.replace(microsecond=value.microsecond // 1000 * 1000)

    return {"min.at": cut(min(values)), "max.at": cut(max(values))}


@given(st.sampled_from([1, 2]).flatmap(lambda width: st.tuples(boxes(width), regions(width))))
def test_file_bounds_decide_inside_and_outside_soundly(drawn: tuple[Box, Region]) -> None:
    file, region = drawn
    grid = (
        [(n,) for n in NUMBERS]
        if len(file.since) == 1
        else [(n, m) for n in NUMBERS for m in NUMBERS]
    )
    inside = {region.contains(Time(time)) for time in grid if file.contains(time)}
    verdict = fit(file, region)
    if verdict is not None:
        assert inside <= {verdict}


@given(boxes(1), boxes(1))
def test_of_boxes_only_a_part_is_left_open(file: Box, box: Box) -> None:
    whole = [n for n in range(-4, 10) if file.contains((n,))]
    assume(whole)
    inside = [n for n in whole if box.contains((n,))]
    expected = {len(whole): True, 0: False}.get(len(inside))
    assert fit(file, Region(box)) is expected


@given(st.lists(moments, min_size=1) | st.lists(days, min_size=1))
def test_bounds_contain_each_value_and_are_tight(values: list[date]) -> None:
    kind = Kind.TIMESTAMP if isinstance(values[0], datetime) else Kind.DATE
    since, end = interval(logged(values), "at", kind)
    assert since is not None
    assert end is not None
    numbers = sorted(map(in_integers, values))
    slack = 1_000 if kind is Kind.TIMESTAMP else 1
    assert since <= numbers[0] < since + slack
    assert numbers[-1] < end <= numbers[-1] + slack


@given(st.lists(days, min_size=1))
def test_days_stand_for_all_of_their_moments(values: list[date]) -> None:
    numbers = sorted(map(in_integers, values))
    expected = numbers[0] * DAY, (numbers[-1] + 1) * DAY
    assert interval(logged(values), "at", Kind.TIMESTAMP) == expected


@given(st.lists(moments, min_size=1))
def test_moments_stand_for_their_days(values: list[datetime]) -> None:
    numbers = sorted(in_integers(value.date()) for value in values)
    assert interval(logged(values), "at", Kind.DATE) == (numbers[0], numbers[-1] + 1)


def test_what_is_unknown_bounds_nothing() -> None:
    pair = TimeType.of(epoch=Kind.BIGINT, event=Kind.TIMESTAMP)
    file = box_of({"min.time.epoch": 3, "max.time.epoch": 4}, pair)
    assert file == Box((3, None), (5, None))
    assert fit(file, Region(Box((3, None), (5, None)))) is True
    assert fit(file, Region(Box((3, 0), (5, None)))) is None
    assert fit(file, Region(Box((5, 0), (None, None)))) is False
    assert only_value({"min.worker": 1, "max.worker": 2}, "worker") is None
    assert only_value({"partition.worker": 0}, "worker") == 0


def test_a_log_cuts_off_no_more_than_is_allowed_for(tmp_path: Path) -> None:
    at = [
        datetime(2024, 5, 1, 12, 0, 0, 999_999, tzinfo=UTC),
        datetime(1969, 7, 20, 0, 0, 0, 1, UTC),
    ]
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, pa.table({"at": pa.array(at, pa.timestamp("us", "UTC"))}))
    [bounds] = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    since, end = interval(bounds, "at", Kind.TIMESTAMP)
    assert since is not None
    assert end is not None
    first, last = sorted(map(in_integers, at))
    assert first - 1_000 < since <= first
    assert last < end <= last + 1_001


def test_bounds_do_not_tell_of_rows_without_a_value():
    assert may_be_null({"min.worker": 1, "max.worker": 1, "null_count.worker": 2}, "worker")
    assert may_be_null({"min.worker": 1, "max.worker": 1}, "worker")
    assert may_be_null({"partition.worker": None}, "worker")
    assert not may_be_null({"min.worker": 1, "max.worker": 1, "null_count.worker": 0}, "worker")
    assert not may_be_null({"partition.worker": 1}, "worker")
    assert not may_be_null({}, "worker")  # Bounds that are unknown hold nothing anyway.
