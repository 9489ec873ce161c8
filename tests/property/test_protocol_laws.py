from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from capstan.core.protocol import Messages, Progress, Rule, StreamChecker, check_all
from capstan.core.times import Time
from tests.support.reference_checker import check
from tests.support.strategies import (
    any_events,
    interleavings,
    recordings,
    rewritten_updates,
    times,
    widths,
)


def minimum(width):
    return Time([0] * width)


def valid(width, events, capabilities=1):
    return check(events, minimum(width), capabilities).valid


def net(event):
    sums = {}
    for time, diff in event.updates:
        sums[time] = sums.get(time, 0) + diff
    return list(sums.items())


@given(st.data(), widths())
def test_recordings_are_valid_by_construction(data, width):
    events = data.draw(recordings(width, stamped=True))
    verdict = check(events, minimum(width))
    assert verdict.valid
    assert verdict.events == len(events)


@given(st.data(), widths())
def test_both_checkers_agree_on_every_sequence(data, width):
    events = data.draw(any_events(width, stamped=True))
    capabilities = data.draw(st.integers(0, 3))
    judge = StreamChecker(minimum(width), [(minimum(width), capabilities)])
    assert check_all(judge, events) == check(events, minimum(width), capabilities)


@given(st.data(), widths())
def test_both_checkers_agree_on_recordings_gone_wrong(data, width):
    events = data.draw(recordings(width, stamped=True))
    assume(events)
    at = data.draw(st.integers(0, len(events) - 1))
    to = data.draw(st.integers(0, len(events)))
    change = data.draw(st.sampled_from(["drop", "repeat", "move", "insert"]))
    event = events[at]
    if change in ("drop", "move"):
        events = events[:at] + events[at + 1 :]
    if change in ("repeat", "move"):
        events = [*events[:to], event, *events[to:]]
    if change == "insert":
        events = [
            *events[:at],
            *data.draw(any_events(width, max_size=2, stamped=True)),
            *events[at:],
        ]
    assert check_all(StreamChecker(minimum(width)), events) == check(events, minimum(width))


@given(st.data(), widths())
def test_judging_in_two_goes_is_judging_in_one(data, width):
    events = data.draw(any_events(width, stamped=True))
    cut = data.draw(st.integers(0, len(events)))
    first = StreamChecker(minimum(width))
    verdict = check_all(first, events[:cut])
    if verdict.valid:
        second = StreamChecker(minimum(width), first.holdings, seq=first.seq, records=first.records)
        verdict = check_all(second, events[cut:])
    assert verdict == check(events, minimum(width))


@given(st.data(), widths())
def test_a_violation_changes_nothing(data, width):
    judge = StreamChecker(minimum(width))
    for event in data.draw(any_events(width, stamped=True)):
        before = judge.verdict()
        violation = judge.judge(event)
        if violation is not None:
            assert judge.verdict() == before
            assert violation.seq == before.events
            assert violation.held == before.holdings


@given(st.data(), widths())
def test_every_prefix_is_valid(data, width):
    events = data.draw(recordings(width, stamped=True))
    assert valid(width, events[: data.draw(st.integers(0, len(events)))])


@given(st.data(), widths(), st.integers(0, 3))
def test_every_interleaving_is_valid(data, width, count):
    recorded = [data.draw(recordings(width, max_size=6)) for _ in range(count)]
    together = data.draw(interleavings(recorded))
    verdict = check(together, minimum(width), count)
    assert verdict.valid
    sums = {}
    for events in recorded:
        for time, held in check(events, minimum(width)).holdings:
            sums[time] = sums.get(time, 0) + held
    assert verdict.holdings == tuple(sorted(sums.items()))


@given(st.data(), widths())
def test_messages_may_move_earlier(data, width):
    events = data.draw(recordings(width, stamped=True))
    at = [at for at, event in enumerate(events) if isinstance(event, Messages)]
    assume(at)
    source = data.draw(st.sampled_from(at))
    target = data.draw(st.integers(0, source))
    events.insert(target, events.pop(source))
    assert valid(width, events)


@given(st.data(), widths())
def test_progress_may_move_later_past_messages(data, width):
    events = data.draw(recordings(width, stamped=True))
    before = check(events, minimum(width)).holdings
    for _ in range(data.draw(st.integers(0, 4))):
        swaps = [
            at
            for at in range(len(events) - 1)
            if isinstance(events[at], Progress) and isinstance(events[at + 1], Messages)
        ]
        if swaps:
            at = data.draw(st.sampled_from(swaps))
            events[at], events[at + 1] = events[at + 1], events[at]
    verdict = check(events, minimum(width))
    assert verdict.valid
    assert verdict.holdings == before


@given(st.data(), widths())
def test_all_messages_first_is_valid(data, width):
    events = data.draw(recordings(width, stamped=True))
    assert valid(width, sorted(events, key=lambda event: isinstance(event, Progress)))


@given(st.data(), widths())
def test_dropping_the_last_capability_below_a_message_is_caught(data, width):
    events = data.draw(recordings(width, stamped=True))
    at = [at for at, event in enumerate(events) if getattr(event, "stamp", ())]
    assume(at)
    source = data.draw(st.sampled_from(at))
    time = data.draw(st.sampled_from(events[source].stamp))
    held = check(events[:source], minimum(width)).holdings
    below = [(element, -count) for element, count in held if element.less_equal(time)]
    assert below
    broken = [*events[:source], Progress.of(below), *events[source:]]
    violation = check(broken, minimum(width)).violation
    assert violation is not None
    assert (violation.seq, violation.rule) == (source + 1, Rule.MESSAGE)
    assert violation.time in events[source].stamp
    assert violation.time <= time
    # One that is left supports it.
    spared = data.draw(st.sampled_from(range(len(below))))
    kept = below[:spared] + below[spared + 1 :]
    alone = Messages((time,), events[source].records)
    assert valid(width, [*events[:source], Progress.of(kept), alone])


@given(st.data(), widths())
def test_a_batch_is_atomic_and_net(data, width):
    events = data.draw(any_events(width, stamped=True))
    rewritten = [
        Progress.of(data.draw(rewritten_updates(width, net(event))))
        if isinstance(event, Progress)
        else event
        for event in events
    ]
    assert check(rewritten, minimum(width)) == check(events, minimum(width))
    assert check_all(StreamChecker(minimum(width)), rewritten) == check(events, minimum(width))


@given(st.data(), widths())
def test_nothing_can_come_at_a_complete_time(data, width):
    events = data.draw(recordings(width, stamped=True))
    cut = data.draw(st.integers(0, len(events)))
    frontier = check(events[:cut], minimum(width)).frontier
    for event in events[cut:]:
        if isinstance(event, Messages):
            assert all(map(frontier.less_equal, event.stamp))
    late = data.draw(times(width))
    if not frontier.less_equal(late):
        assert not valid(width, [*events[:cut], Messages((late,), 0)])


@given(st.data(), widths())
def test_frontiers_only_advance(data, width):
    judge = StreamChecker(minimum(width))
    for event in data.draw(recordings(width, stamped=True)):
        before = judge.frontier
        assert judge.judge(event) is None
        assert before.dominates(judge.frontier)
