from __future__ import annotations

import pytest

from capstan.core.protocol import Fault, Messages, Progress, Rule, StreamChecker, Verdict, check_all
from capstan.core.times import Antichain, Kind, Time, TimeType
from tests.support.reference_checker import check

EPOCH = TimeType.of(epoch=Kind.BIGINT)
NESTED = TimeType.of(outer=Kind.BIGINT, inner=Kind.BIGINT)


def reference(items, minimum=(0,), capabilities=1) -> Verdict:
    return check(items, Time(minimum), capabilities)


def incremental(items, minimum=(0,), capabilities=1) -> Verdict:
    return check_all(StreamChecker(minimum, [(minimum, capabilities)]), items)


@pytest.fixture(params=[reference, incremental])
def judged(request):
    return request.param


def progress(*updates):
    return Progress.of(((time,) if isinstance(time, int) else time, diff) for time, diff in updates)


def messages(*time, records=1):
    return Messages((Time(time),), records)


def test_a_worker_starts_with_the_minimum(judged):
    verdict = judged([])
    assert verdict.valid
    assert verdict.holdings == ((Time.of(0), 1),)
    assert verdict.frontier == Antichain.of([(0,)])
    assert not verdict.closed


def test_a_capability_is_let_go_for_its_successor_in_one_event(judged):
    verdict = judged([messages(0, records=3), progress((0, -1), (1, 1)), messages(4, records=2)])
    assert verdict.valid
    assert (verdict.events, verdict.records) == (3, 5)
    assert verdict.holdings == ((Time.of(1), 1),)


def test_in_two_events_the_successor_has_no_support(judged):
    verdict = judged([progress((0, -1)), progress((1, 1))])
    violation = verdict.violation
    assert violation is not None
    assert (violation.seq, violation.rule, violation.time) == (1, Rule.INCREMENT, Time.of(1))
    assert violation.held == ()
    assert verdict.closed
    assert verdict.events == 1


def test_support_in_a_partial_order_is_not_that_of_tuples(judged):
    events = [progress(((0, 0), -1), ((0, 4), 1), ((1, 3), 1)), messages(1, 2)]
    violation = judged(events, (0, 0)).violation
    assert violation is not None
    assert violation.rule is Rule.MESSAGE
    assert violation.describe(NESTED) == (
        "event 1: messages at [1, 2], and nothing held is less or equal; held: [0, 4] x1, [1, 3] x1"
    )


def test_an_increment_is_named_before_a_negative_count(judged):
    held_at_five = progress((0, -1), (5, 1))
    violation = judged([held_at_five, progress((4, 2), (6, -1))]).violation
    assert violation is not None
    assert (violation.rule, violation.time, violation.count) == (Rule.INCREMENT, Time.of(4), 2)
    assert violation.describe(EPOCH) == (
        "event 1: 4 goes up by 2, and nothing held is less or equal; held: 5 x1"
    )


def test_a_count_never_falls_below_zero(judged):
    violation = judged([progress((0, -2), (3, 1))]).violation
    assert violation is not None
    assert (violation.rule, violation.time, violation.count) == (Rule.NEGATIVE, Time.of(0), -1)
    assert violation.describe(EPOCH) == "event 0: 0 falls to -1; held: 0 x1"


def test_the_first_offending_time_is_named(judged):
    violation = judged([progress((0, -1), (9, -1), (8, -1))]).violation
    assert violation is not None
    assert (violation.rule, violation.time) == (Rule.NEGATIVE, Time.of(8))
    violation = judged([progress((0, -1), (9, 1)), progress((7, 1), (3, 1), (5, 1))]).violation
    assert violation is not None
    assert (violation.rule, violation.time) == (Rule.INCREMENT, Time.of(3))


def test_messages_without_records_need_support_too(judged):
    verdict = judged([progress((0, -1), (2, 1)), messages(1, records=0)])
    assert verdict.violation is not None
    assert verdict.violation.rule is Rule.MESSAGE


def test_after_the_end_only_what_changes_nothing(judged):
    end = progress((0, -1))
    assert judged([end, progress(), progress((3, 0)), progress((4, 1), (4, -1))]).valid
    for event, rule in [
        (progress((4, 1)), Rule.INCREMENT),
        (progress((4, -1)), Rule.NEGATIVE),
        (messages(4), Rule.MESSAGE),
    ]:
        verdict = judged([end, event])
        assert verdict.violation is not None
        assert verdict.violation.rule is rule
        assert verdict.closed


def test_two_recordings_start_with_two(judged):
    twice = [progress((0, -1)), progress((0, -1))]
    assert judged(twice, capabilities=2).closed
    assert not judged(twice, capabilities=1).valid
    assert judged([], capabilities=0).closed


def test_times_of_another_type_have_no_shape(judged):
    for event in (progress(((0, 0), 1)), progress((0, 1), ((1, 1), 0), (0, -1)), messages(1, 2)):
        violation = judged([event]).violation
        assert violation is not None
        assert (violation.seq, violation.rule, violation.time) == (0, Rule.SHAPE, None)


def test_a_fault_counts_in_its_turn(judged):
    fault = Fault(Rule.SHAPE, "not JSON")
    verdict = judged([messages(0, records=2), fault, messages(0)])
    assert (verdict.events, verdict.records) == (1, 2)
    assert verdict.violation is not None
    assert verdict.violation.describe(EPOCH) == "event 1: shape: not JSON; held: 0 x1"
    earlier = judged([progress((1, 1), (0, -2)), fault]).violation
    assert earlier is not None
    assert earlier.rule is Rule.NEGATIVE


def test_a_verdict_as_json(judged):
    verdict = judged([progress((0, -1), (2, 2)), messages(1)])
    assert verdict.to_json(EPOCH) == {
        "valid": False,
        "events": 1,
        "records": 0,
        "violation": {
            "seq": 1,
            "rule": "message",
            "time": 1,
            "held": [[2, 2]],
            "about": "event 1: messages at 1, and nothing held is less or equal; held: 2 x2",
        },
        "holdings": [[2, 2]],
        "frontier": [2],
        "closed": False,
    }


def test_many_held_times_are_not_all_told():
    held = tuple((Time.of(time), 1) for time in range(10, 20))
    judge = StreamChecker((0,), held)
    violation = judge.messages(((3,),), 1)
    assert violation is not None
    assert violation.describe(EPOCH).endswith("14 x1 and 5 more")
    assert len(violation.held) == 10


def test_judging_goes_on_where_it_stopped():
    judge = StreamChecker((0,), [((3,), 2), ((7,), 1)], seq=40, records=1000)
    assert judge.expect(40) is None
    assert judge.messages(((3,),), 5) is None
    assert judge.progress([((3,), -2)]) is None
    assert (judge.seq, judge.records) == (42, 1005)
    violation = judge.messages(((6,),), 1)
    assert violation is not None
    assert (violation.seq, violation.held) == (42, ((Time.of(7), 1),))


def test_a_number_out_of_turn():
    judge = StreamChecker((0,), seq=5)
    violation = judge.expect(7)
    assert violation is not None
    assert (violation.seq, violation.rule) == (5, Rule.SEQ)
    assert violation.detail == "seq 7 where 5 was due"


def test_what_the_caller_found():
    violation = StreamChecker((0,)).refuse(Rule.CONTENT, "2 records where 3 were counted", (0,))
    assert violation.describe(EPOCH) == (
        "event 0: content at 0: 2 records where 3 were counted; held: 0 x1"
    )


def test_a_judge_cannot_start_below_zero_or_in_another_type():
    with pytest.raises(ValueError, match="cannot be held"):
        StreamChecker((0,), [((0,), -1)])
    with pytest.raises(ValueError, match="cannot be held"):
        StreamChecker((0,), [((0, 0), 1)])


def test_messages_know_their_size():
    assert Messages.of((1,), ["a", "b"]).records == 2
    with pytest.raises(ValueError, match="records"):
        Messages((Time.of(1),), -1)
    with pytest.raises(ValueError, match="records"):
        Messages((Time.of(1),), 3, ("a",))
