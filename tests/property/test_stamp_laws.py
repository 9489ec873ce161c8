"""Laws of stamps and of the orders of times, against models that share no code with the product."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.protocol import (
    Fault,
    Messages,
    Progress,
    Release,
    Rule,
    StreamChecker,
    Violation,
    check_all,
)
from capstan.core.times import Antichain, Box, Kind, MutableAntichain, Time, TimeType, complete
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError
from capstan.interop.timely import (
    Capture,
    Emitted,
    EventLink,
    EventReader,
    EventTypes,
    EventWriter,
    Frames,
    Lines,
    Replayer,
    TimeCodec,
    encode_event,
)
from capstan.storage.delta.arrow_writer import arrow_schema
from capstan.storage.tape.schema import events_schema
from capstan.verify.event_fold import FoldResult, ResumePoint, fold
from tests.support.reference_checker import check
from tests.support.strategies import recordings, widths

LEAF = "u64"


def shapes():
    """Types of times as trees: a leaf, or `P` or `T` and two parts."""
    return st.recursive(
        st.just(LEAF), lambda part: st.tuples(st.sampled_from("PT"), part, part), max_leaves=4
    )


def name(shape):
    if shape == LEAF:
        return LEAF
    kind, *parts = shape
    listed = ",".join(map(name, parts))
    return f"Product<{listed}>" if kind == "P" else f"({listed})"


def before(shape, a, b):
    """`PartialOrder::less_equal` of timely, of nested values."""
    if shape == LEAF:
        return a <= b
    kind, outer, inner = shape
    if kind == "P":
        return before(outer, a[0], b[0]) and before(inner, a[1], b[1])
    if a[0] == b[0]:
        return before(inner, a[1], b[1])
    return before(outer, a[0], b[0])


def values(shape, high=2):
    if shape == LEAF:
        return st.integers(0, high)
    return st.tuples(*(values(part, high) for part in shape[1:]))


def flat(value):
    return (value,) if isinstance(value, int) else tuple(x for part in value for x in flat(part))


def nested(shape, time):
    """The value of a flat time."""
    rest = list(time)

    def take(part):
        return rest.pop(0) if part == LEAF else tuple(take(inner) for inner in part[1:])

    return take(shape)


def model(shape, events, least):
    """The rules in their plainest form: holdings by nested time, every element looked up."""
    held = Counter({nested(shape, least): 1})

    def covered(time):
        return any(n > 0 and before(shape, s, nested(shape, time)) for s, n in held.items())

    for seq, event in enumerate(events):
        if isinstance(event, Messages):
            if list(event.stamp) != sorted(event.stamp):
                return seq, Rule.SHAPE, None
            late = [time for time in event.stamp if not covered(time)]
            if late:
                return seq, Rule.MESSAGE, late[0]
            continue
        net = Counter()
        for time, diff in event.updates:
            net[time] += diff
        new = [time for time in sorted(net) if net[time] > 0 and not covered(time)]
        gone = [time for time in sorted(net) if held[nested(shape, time)] + net[time] < 0]
        if new or gone:
            return (seq, Rule.INCREMENT, new[0]) if new else (seq, Rule.NEGATIVE, gone[0])
        for time, diff in net.items():
            held[nested(shape, time)] += diff
    return None


def violation_of(verdict):
    found = verdict.violation
    assert found is None or isinstance(found, Violation)
    return None if found is None else (found.seq, found.rule, found.time)


@st.composite
def stamped_events(draw, shape):
    """Events of a kind of times, legal more often than not."""
    width = len(flat(nested_zero(shape)))
    times = values(shape).map(flat).map(Time)
    events = []
    held = Counter({Time([0] * width): 1})
    for _ in range(draw(st.integers(0, 10))):
        if draw(st.booleans()):
            stamp = draw(st.lists(times, max_size=3))
            stamp = stamp if draw(st.integers(0, 9)) == 0 else sorted(stamp)
            events.append(Messages(tuple(stamp), 1, (7,)))
            continue
        gone = draw(st.lists(st.sampled_from(sorted(held)), max_size=1)) if held else []
        came = draw(st.lists(times, max_size=2))
        updates = [(time, -1) for time in gone] + [(time, 1) for time in came]
        held.update(came)
        held.subtract(gone)
        held = +held
        events.append(Progress.of(updates))
    return events


def nested_zero(shape):
    return 0 if shape == LEAF else tuple(nested_zero(part) for part in shape[1:])


@given(st.data(), shapes())
def test_times_are_ordered_as_timely_orders_them(data, shape):
    order = TimeCodec.of(name(shape)).order
    a, b = (data.draw(values(shape)) for _ in range(2))
    x, y = flat(a), flat(b)
    assert order.less_equal(x, y) == order.comparison(x, y) == before(shape, a, b)
    # The order of listings extends it.
    assert x <= y or not order.less_equal(x, y)
    if order.is_total(len(x)):
        assert order.less_equal(x, y) or order.less_equal(y, x)


def test_which_orders_are_total():
    def total(text):
        codec = TimeCodec.of(text)
        return codec.order.is_total(len(codec.coordinates))

    assert all(map(total, ["u64", "(u64,i64)", "((u64,u64),u64)", "(u64,(u64,u64))", "(u64,)"]))
    partial = ["Product<u64,u64>", "Product<(u64,u64),u64>", "(Product<u64,u64>,u64)"]
    assert not any(map(total, partial))


@given(st.data(), shapes())
def test_a_frontier_has_the_minimal_times_of_its_order(data, shape):
    order = TimeCodec.of(name(shape)).order
    changes = data.draw(st.lists(st.tuples(values(shape), st.integers(-2, 2)), max_size=8))
    held, counts = MutableAntichain(order), Counter()
    for value, diff in changes:
        held.update([(flat(value), diff)])
        counts[value] += diff
        positive = [v for v, count in counts.items() if count > 0]
        minimal = {
            flat(v) for v in positive if not any(before(shape, w, v) and w != v for w in positive)
        }
        assert set(held.frontier) == minimal
        assert held.frontier == Antichain.of(map(flat, positive), order)
        probe = data.draw(values(shape))
        reached = any(before(shape, v, probe) for v in positive)
        assert held.less_equal(flat(probe)) == held.frontier.less_equal(flat(probe)) == reached
        assert complete(held.frontier, flat(probe)) is not reached


@given(st.data(), shapes())
def test_every_element_needs_a_held_time(data, shape):
    codec = TimeCodec.of(name(shape))
    events = data.draw(stamped_events(shape))
    expected = model(shape, events, codec.minimum)
    verdict = check_all(StreamChecker(codec.minimum, order=codec.order), events)
    assert violation_of(verdict) == expected
    assert verdict == check(events, codec.minimum, order=codec.order)
    seq = len(events) if expected is None else expected[0]
    assert verdict.events == seq
    assert verdict.records == sum(isinstance(event, Messages) for event in events[:seq])


def written(encoding, events):
    sink = io.BytesIO()
    with EventWriter(sink, encoding) as writer:
        for event in events:
            writer.push(event)
    return sink.getvalue()


def with_data(events):
    return [
        Messages(event.stamp, event.records, tuple(range(event.records)))
        if isinstance(event, Messages)
        else event
        for event in events
    ]


@given(st.data(), shapes(), st.integers(1, 40))
def test_stamps_come_back_from_frames_and_lines(data, shape, piece):
    events = [
        event
        if isinstance(event, Progress)
        else Messages(tuple(sorted(event.stamp)), event.records, event.data)
        for event in data.draw(stamped_events(shape))
    ]
    types = EventTypes.of(name(shape), "u64")
    single = all(len(event.stamp) == 1 for event in events if isinstance(event, Messages))
    encodings = [Frames(types, release=Release.V032), Lines.of(types, 0, Release.V032)]
    encodings.append(Lines.of(types))
    encodings += [Frames(types), Lines.of(types, 0, Release.V031)] if single else []
    for encoding in encodings:
        bytes_of = written(encoding, events)
        reader = EventReader(io.BytesIO(bytes_of), encoding, "x", piece)
        actual = list(reader)
        assert actual == events
        assert written(encoding, actual) == bytes_of
    if single:
        # Without a release, messages under one time are written as they always were.
        assert written(encodings[2], events) == written(encodings[4], events)


@given(st.data(), widths())
def test_a_frame_of_one_element_is_the_former_one_with_a_count(data, width):
    types = EventTypes.of(LEAF if width == 1 else f"({','.join([LEAF] * width)})", "u64")
    time = data.draw(st.tuples(*[st.integers(0, 2**64 - 1)] * width))
    event = Messages.of(time, data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=3)))
    old, new = encode_event(types, event), encode_event(types, event, Release.V032)
    length = int.from_bytes(old[:8], "little") + 8
    assert new == length.to_bytes(8, "little") + old[8:12] + (1).to_bytes(8, "little") + old[12:]


@given(st.binary(max_size=200), shapes(), st.integers(1, 64))
def test_any_bytes_are_read_or_refused(data, shape, piece):
    types = EventTypes.of(name(shape), "u64")
    for release in Release:
        for encoding in (Frames(types, release=release), Lines.of(types, None, release)):
            reader = EventReader(io.BytesIO(data), encoding, "x", piece)
            items = list(reader.items())
            if isinstance(encoding, Frames):
                whole = items[:-1] if items and isinstance(items[-1], Fault) else items
                assert written(encoding, whole) == data[: reader.offset]


@given(st.data(), widths(), st.integers(1, 5), st.sampled_from([1, 2, None]))
def test_a_replay_delivers_each_stamp_once_and_none_late(data, width, peers, batch):
    minimum = Time([0] * width)
    recorded = st.lists(recordings(width, max_size=8, stamped=True), max_size=4)
    sources = [with_data(events) for events in data.draw(recorded)]
    replayer = Replayer(sources, minimum, peers, batch)
    emitted = []
    frontiers = [Antichain.of([minimum])] * peers
    for step in replayer:
        if isinstance(step, Emitted):
            assert not any(complete(frontiers[step.worker], t) for t in step.messages.stamp)
            emitted.append(step.messages)
        else:
            frontiers[step.worker] = step.frontier
    everything = [e for events in sources for e in events if isinstance(e, Messages)]
    assert Counter(emitted) == Counter(everything)
    assert replayer.done


@given(st.data(), st.sampled_from([LEAF, ("T", LEAF, LEAF), ("P", LEAF, LEAF)]))
def test_a_capture_is_valid_or_stopped(data, shape):
    codec = TimeCodec.of(name(shape))
    link = EventLink()
    reader = link.reader()
    capture = Capture(link, codec.minimum, codec.order)
    for _ in range(data.draw(st.integers(0, 6))):
        some = [flat(value) for value in data.draw(st.lists(values(shape), max_size=3))]
        try:
            if data.draw(st.booleans()):
                capture.stamped(some, [1])
            else:
                capture.advance(Antichain.of(some, codec.order))
        except CheckFailedError as error:
            assert error.code == "CAP-VIOLATION"
    events = list(reader)
    assert model(shape, events, codec.minimum) is None
    assert capture.captured.events == len(events)


WIDE = {width: TimeType.of(**dict.fromkeys("abc"[:width], Kind.BIGINT)) for width in (1, 2, 3)}


def on_tape(events, time_type):
    """Rows of the table `events` of a tape of stamps, as `docs/protocol.md` states them."""

    def struct(time):
        return dict(zip(time_type.names, time, strict=True))

    for seq, event in enumerate(events):
        row = {"worker": 0, "seq": seq, "batch": seq, "commit": 0}
        if isinstance(event, Progress):
            updates = [{"time": struct(time), "diff": diff} for time, diff in event.updates]
            yield row | {"kind": "progress", "updates": updates}
            continue
        row |= {"kind": "messages", "records": event.records, "fingerprint": {"h1": 0, "h2": 0}}
        if event.stamp:
            row["time"] = struct(event.stamp[0])
        if len(event.stamp) != 1:
            row["stamp"] = [struct(time) for time in event.stamp]
        yield row


def folded(rows, time_type, size=100):
    schema, rows = arrow_schema(events_schema(time_type, stamped=True)), list(rows)
    parts = [rows[at : at + size] for at in range(0, len(rows), size)] or [[]]
    batches = [pa.RecordBatch.from_pylist(part, schema) for part in parts]
    outcomes = list(fold(batches, time_type, {0: ResumePoint()}))
    return [FoldResult.from_text(row["outcome"]) for one in outcomes for row in one.to_pylist()]


PAIRS = ("T", LEAF, LEAF)
ON_TAPE = [LEAF, ("P", LEAF, LEAF), ("P", LEAF, ("P", LEAF, LEAF)), PAIRS, ("T", PAIRS, LEAF)]


@given(st.data(), st.sampled_from(ON_TAPE), st.integers(1, 10))
def test_a_tape_of_stamps_is_judged_as_the_events_are(data, shape, size):
    codec = TimeCodec.of(name(shape))
    time_type = replace(WIDE[len(codec.minimum)], order=codec.order)
    events = data.draw(stamped_events(shape))
    verdict = check_all(StreamChecker(codec.minimum, order=codec.order), events)
    found = verdict.violation
    assert model(shape, events, codec.minimum) == (found and (found.seq, found.rule, found.time))
    results = folded(on_tape(events, time_type), time_type, size)
    assert [(r.events, r.records, r.holdings, r.violation) for r in results] == [
        (verdict.events, verdict.records, verdict.holdings, verdict.violation)
    ][: len(events)]


def test_a_tape_of_pairs_is_judged_in_their_order():
    held = Progress.of([(Time((0, 5)), 1), (Time((0, 0)), -1)])
    events = [held, Messages((Time((1, 0)),), 1), Messages((Time((0, 4)),), 1)]
    for order, valid in ((TimeCodec.of("(u64,u64)").order, 2), (WIDE[2].order, 1)):
        time_type = replace(WIDE[2], order=order)
        [result] = folded(on_tape(events, time_type), time_type)
        assert (result.events, result.violation.rule) == (valid, Rule.MESSAGE)


@given(st.data())
def test_a_missing_event_of_a_tape_of_stamps_is_noticed(data):
    stamps = st.lists(st.integers(0, 3).map(lambda t: Time((t,))), max_size=3).map(sorted)
    events = [Messages(tuple(stamp), 1) for stamp in data.draw(st.lists(stamps, min_size=2))]
    gone = data.draw(st.integers(0, len(events) - 2))
    rows = [row for row in on_tape(events, WIDE[1]) if row["seq"] != gone]
    [result] = folded(rows, WIDE[1])
    assert (result.events, result.violation.seq, result.violation.rule) == (gone, gone, Rule.SEQ)


def ranges(width, bounds):
    """Successive ranges of times: what each frontier completes that the one before does not."""
    everything = Box((None,) * width, (None,) * width)
    frontiers = [Antichain.of(bound) for bound in bounds]
    chain = [Antichain.of([(0,) * width])]
    for frontier in frontiers:
        if chain[-1].dominates(frontier):
            chain.append(frontier)
    chain.append(Antichain())
    return [Region(everything, until, since) for since, until in pairwise(chain)]


@given(st.data(), widths())
def test_successive_ranges_have_each_record_once(data, width):
    some = st.lists(st.tuples(*[st.integers(0, 4)] * width), min_size=1, max_size=3)
    parts = ranges(width, data.draw(st.lists(some, max_size=4)))
    for drawn in data.draw(st.lists(some, max_size=5)):
        stamp = tuple(sorted(map(Time, drawn)))
        due, covered = [], False
        for part in parts:
            # Some element is in the range, and none was covered before.
            inside = any(map(part.contains, stamp))
            due.append(inside and not covered)
            done = [complete(part.below, time) for time in stamp]
            covered = covered or any(done)
            if width == 1:
                # Complete when any element is, which the least decides.
                assert any(done) == done[0]
                assert part.contains(stamp[0]) == due[-1]
        assert sum(due) == 1
        places = [part.place(stamp) for part in parts]
        assert [place is not None for place in places] == due
        # The row in the target lies in the range that wrote it, and in no other one.
        [(at, place)] = [(at, place) for at, place in enumerate(places) if place is not None]
        assert place == next(time for time in stamp if parts[at].contains(time))
        assert [part.contains(place) for part in parts] == due


@given(st.data(), widths(), st.integers(1, 3))
def test_slices_and_frontiers_together_have_each_record_once(data, width, step):
    axis = data.draw(st.integers(0, width - 1))
    some = st.lists(st.tuples(*[st.integers(0, 4)] * width), min_size=1, max_size=3)
    end = Antichain.of(data.draw(st.none() | some) or [])

    def box(low):
        since, until = [None] * width, [None] * width
        since[axis], until[axis] = low or None, low + step if low + step <= 4 else None
        return Box(tuple(since), tuple(until))

    parts = [Region(box(low), end) for low in range(0, 5, step)]
    stamp = tuple(sorted(map(Time, data.draw(some))))
    places = [part.place(stamp) for part in parts]
    found = [place for place in places if place is not None]
    assert len(found) == any(complete(end, time) for time in stamp)
    for place in found:
        assert [part.contains(place) for part in parts] == [each == place for each in places]


@given(st.data(), widths())
def test_disjoint_boxes_never_have_a_record_twice(data, width):
    bound = st.none() | st.integers(0, 4)
    boxes = st.builds(Box, st.tuples(*[bound] * width), st.tuples(*[bound] * width))
    one, two = data.draw(boxes), data.draw(boxes)
    drawn = st.lists(st.tuples(*[st.integers(0, 4)] * width), max_size=3)
    stamp = tuple(sorted(map(Time, data.draw(drawn))))
    places = [Region(box).place(stamp) for box in (one, two)]
    if not one.overlaps(two):
        assert None in places
    for box, place in zip((one, two), places, strict=True):
        if not Region(box).splits(stamp):
            assert place == (stamp[0] if stamp and box.contains(stamp[0]) else None)


def test_only_what_nothing_bounds_has_messages_without_elements():
    everything = Box((None, None), (None, None))
    assert Region(everything).is_everything
    assert Region(everything, Antichain()).is_everything
    assert Region(Box((None,), (None,)), Antichain()).is_everything
    for part in (
        Region(Box((None, 0), (None, None))),
        Region(Box((None, None), (1, None))),
        Region(everything, Antichain.of([(1, 0)])),
        Region(everything, None, Antichain()),
        Region(everything, None, Antichain.of([(0, 0)])),
        Region(Box((None,), (None,)), None, Antichain()),
        Region(Box((None,), (None,)), Antichain.of([(3,)])),
    ):
        assert not part.is_everything
