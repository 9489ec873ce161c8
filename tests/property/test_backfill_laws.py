"""Backfills: intervals are a partition, coverage is exact, what is filled is no gap any more."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from capstan.backfill.evidence import Evidence
from capstan.backfill.interval import IntervalState
from capstan.backfill.interval_grid import Even, Scheduled, cut
from capstan.backfill.interval_state import (
    IntervalClassifier,
    WrittenRegion,
    classify_intervals,
    region_owner,
)
from capstan.backfill.planner import BackfillMode, BackfillRequest, plan_replays
from capstan.backfill.survey import Survey
from capstan.core.config import Order, Replay
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.replay.planning.computation import CopyComputation
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.request import Request
from capstan.replay.planning.stream_input import Inputs, StreamInput
from capstan.replay.planning.target_layout import Layout
from capstan.storage.lake import Lake, TapePaths
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Cut, Tape

NUMBERS = range(8)
BIGINT = TimeType.of(t=Kind.BIGINT)
LABELS = {0: "a", 1: "b", 2: "c"}
bounds = st.none() | st.integers(0, 7)


def frontiers(width: int) -> st.SearchStrategy[Antichain | None]:
    times = st.tuples(*[st.integers(0, 7)] * width)
    return st.none() | st.lists(times, max_size=2).map(Antichain.of)


def regions(width: int) -> st.SearchStrategy[Region]:
    box = st.builds(Box, st.tuples(*[bounds] * width), st.tuples(*[bounds] * width))
    return st.builds(Region, box, frontiers(width), frontiers(width))


def grid(width: int) -> list[Time]:
    # One more than any bound, so that what is unbounded shows.
    numbers = range(9)
    return [Time((n,)) for n in numbers] if width == 1 else [
        Time((n, m)) for n in numbers for m in numbers
    ]  # fmt: skip


def writers(width: int) -> st.SearchStrategy[list[WrittenRegion]]:
    item = st.builds(
        WrittenRegion,
        st.text("xyz", min_size=1, max_size=2),
        st.none(),
        regions(width),
        st.booleans(),
    )
    return st.lists(item, max_size=4)  # fmt: skip


@given(st.integers(1, 2).flatmap(lambda width: st.tuples(regions(width), writers(width))))
def test_what_is_judged_cell_by_cell_holds_for_every_time(
    given_: tuple[Region, list[WrittenRegion]],
) -> None:
    region, written = given_
    width = len(region.box.since)
    minimum = Time((0,) * width)
    winners = {
        time: max((i for i, w in enumerate(written) if w.region.contains(time)), default=-1)
        for time in grid(width)
        if region.contains(time)
    }

    actual = region_owner(region, minimum, written)

    assert actual.covered == all(index >= 0 for index in winners.values())
    assert actual.touched == any(index >= 0 for index in winners.values())
    assert actual.stale == any(i >= 0 and not written[i].current for i in winners.values())
    assert set(actual.runs) == {written[i].run for i in winners.values() if i >= 0}


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 9), st.integers(-20, 20))
def test_intervals_of_a_length_partition_the_range(
    since: int, until: int, every: int, anchor: int
) -> None:
    actual = cut(Even(every, anchor), since, until)

    assert [value for low, high in actual for value in range(low, high)] == list(
        range(since, until)
    )
    assert all(low < high <= low + every for low, high in actual)
    assert all((low - anchor) % every == 0 for low, _ in actual[1:])


MOMENTS = st.datetimes(datetime(2012, 1, 1), datetime(2026, 1, 1)).map(  # noqa: DTZ001
    lambda naive: (
        (naive.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    )
)
SCHEDULES = st.sampled_from(["@daily", "@weekly", "@monthly", "@quarterly", "30 6 * * 1-5"])


@given(SCHEDULES, MOMENTS, st.timedeltas(timedelta(0), timedelta(days=200)))
def test_intervals_of_a_schedule_partition_the_range(
    schedule: str, since: int, length: timedelta
) -> None:
    until = since + length // timedelta(microseconds=1)
    scheduled = Scheduled(schedule)

    actual = cut(scheduled, since, until)

    ends = [since, *(high for _, high in actual)]
    assert [low for low, _ in actual] == ends[:-1]
    assert ends[-1] == (until if actual else since)
    assert bool(actual) == (since < until)
    for low, high in actual:
        assert scheduled.after(low) >= high
        assert scheduled.at_or_before(high - 1) <= low
    for low, _ in actual[1:]:
        assert scheduled.at_or_before(low) == low


def region_of(since: int | None, until: int | None) -> Region:
    return Region(Box((since,), (until,)))


spans = st.builds(region_of, bounds, bounds)
works = st.lists(
    st.builds(
        WrittenRegion,
        st.text("xyz", min_size=1, max_size=2),
        st.none() | st.frozensets(st.sampled_from([0, 1, 2]), min_size=1),
        spans,
        st.booleans(),
    ),
    max_size=4,
)
frontier_times = st.integers(0, 9)
asks = st.builds(
    BackfillRequest,
    st.just("r"),
    what=st.sampled_from(BackfillMode),
    order=st.sampled_from(Order),
    chunk=st.none() | st.integers(1, 4),
)


def survey_of(
    written: list[WrittenRegion], frontier: int, every: int, *, keeps_worker: bool = True
) -> Survey:
    """The survey of times 0 to 8 of three workers, without any lake."""
    paths = TapePaths.below("nowhere")
    box = Box((0,), (9,))
    reached = Antichain.of([(frontier,)])
    plan = Plan(
        lake=Lake("nowhere"),
        request=Request("s", "t", since="0", until="9"),
        inputs=Inputs(
            (
                StreamInput(
                    "",
                    Tape("s", paths, BIGINT, TapeSettings()),
                    Cut(3, 3),
                    workers=LABELS,
                    labels=LABELS,
                    frontier=reached,
                    frontiers=dict.fromkeys(LABELS, reached),
                ),
            )
        ),
        box=box,
        region=Region(box, reached).simplified(),
        reached=reached,
        cursor=None,
        target="t",
        declared=None,
        layout=Layout("_worker" if keeps_worker else None, "_time", LABELS),
        computation=CopyComputation.into(None),
    )
    minimum = Antichain.of([(0,)])
    judge_ = IntervalClassifier(plan, Evidence(tuple(written), ()), dict.fromkeys(LABELS, minimum))
    actual = classify_intervals(judge_, cut(Even(every), 0, 9))
    return Survey(Replay(name="r", stream="s", target="t"), plan, actual)


def run(request: Request, number: int, *, keeps_worker: bool = True) -> WrittenRegion:
    """What a replay has written once it has published."""
    by_label = {label: worker for worker, label in LABELS.items()}
    workers = LABELS if request.workers is None else [by_label[x] for x in request.workers]
    region = region_of(int(str(request.since)), int(str(request.until)))
    return WrittenRegion(f"run-{number}", frozenset(workers) if keeps_worker else None, region)


def last_writer(written: list[WrittenRegion], worker: int, time: int) -> WrittenRegion | None:
    actual = [w for w in written if w.holds(worker) and w.region.contains(Time((time,)))]
    return actual[-1] if actual else None


@given(works, frontier_times, st.integers(1, 4))
def test_the_state_of_an_interval_is_that_of_its_times(
    written: list[WrittenRegion], frontier: int, every: int
) -> None:
    actual = survey_of(written, frontier, every)

    assert [t for i in actual.intervals for t in range(int(i.since), int(i.until))] == [*range(9)]
    for interval in actual.intervals:
        times = range(int(interval.since), int(interval.until))
        last = {
            (worker, time): last_writer(written, worker, time)
            for worker in LABELS
            for time in times
        }
        lacking = {worker for (worker, _), writer in last.items() if writer is None}
        old = {worker for (worker, _), writer in last.items() if writer and not writer.current}
        assert interval.missing == tuple(LABELS[w] for w in sorted(lacking))
        assert interval.stale == tuple(LABELS[w] for w in sorted(old))
        assert set(interval.runs) == {writer.run for writer in last.values() if writer}
        if times[-1] >= frontier:
            assert interval.state is IntervalState.INCOMPLETE
        elif lacking:
            assert interval.state is IntervalState.GAP
        else:
            assert interval.state is (IntervalState.STALE if old else IntervalState.COVERED)


@given(works, frontier_times, st.integers(1, 4), asks, st.booleans())
def test_backfills_cover_gaps_and_leave_valid_runs(
    written: list[WrittenRegion],
    frontier: int,
    every: int,
    asked: BackfillRequest,
    keeps_worker: bool,
) -> None:
    if not keeps_worker:
        written = [replace(item, workers=None) for item in written]
    before = survey_of(written, frontier, every, keeps_worker=keeps_worker)
    requests = plan_replays(before, asked)
    ran = [run(r, n, keeps_worker=keeps_worker) for n, r in enumerate(requests)]

    after = survey_of([*written, *ran], frontier, every, keeps_worker=keeps_worker)

    expected = {
        BackfillMode.GAPS: {IntervalState.GAP},
        BackfillMode.STALE: {IntervalState.STALE},
        BackfillMode.FAILED: set(),
    }.get(asked.what, {IntervalState.GAP, IntervalState.STALE})
    assert expected.isdisjoint(item.state for item in after.intervals)
    for old, new in zip(before.intervals, after.intervals, strict=True):
        if asked.what is not BackfillMode.ALL and old.state not in expected:
            assert old == new
    if asked.what is not BackfillMode.ALL:
        assert plan_replays(after, asked) == []


@given(works, frontier_times, st.integers(1, 2), asks, st.integers(0, 9))
def test_what_was_cut_off_goes_on_with_the_run_that_is_missing(
    written: list[WrittenRegion], frontier: int, every: int, asked: BackfillRequest, done: int
) -> None:
    assume(asked.what in (BackfillMode.GAPS, BackfillMode.STALE))
    requests = plan_replays(survey_of(written, frontier, every), asked)
    ran = [run(request, number) for number, request in enumerate(requests[:done])]

    left = plan_replays(survey_of([*written, *ran], frontier, every), asked)

    assert left == requests[done:]


@given(works, frontier_times, st.integers(1, 4), asks)
def test_runs_are_chunks_of_adjacent_intervals_in_order(
    written: list[WrittenRegion], frontier: int, every: int, asked: BackfillRequest
) -> None:
    before = survey_of(written, frontier, every)
    requests = plan_replays(before, asked)

    starts = [int(str(request.since)) for request in requests]
    assert starts == sorted(starts, reverse=asked.order is Order.NEWEST)
    known = {int(item.since): item for item in before.intervals}
    for request in requests:
        since, until = int(str(request.since)), int(str(request.until))
        own = [item for start, item in known.items() if since <= start < until]
        assert own[-1].until == request.until
        assert asked.chunk is None or len(own) <= asked.chunk
        assert IntervalState.INCOMPLETE not in {item.state for item in own}
        assert request.as_of == 3
    if asked.chunk is None:
        # One run over each stretch: no two that could be one.
        ordered = sorted(requests, key=lambda request: int(str(request.since)))
        for one, next_ in pairwise(ordered):
            assert one.until != next_.since or one.workers != next_.workers
