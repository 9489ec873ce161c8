"""Laws of the interchange: values of any type, any cut, any damage, any dealing of recordings."""

from __future__ import annotations

import io
import json
import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from capstan.core.protocol import Event, Fault, Messages, Progress, StreamChecker, check_all
from capstan.core.times import MutableAntichain, Time, complete
from capstan.errors import CapstanError, InvalidRequestError
from capstan.interop.timely import (
    Advanced,
    Capture,
    CoordinateCodec,
    Emitted,
    EventLink,
    EventReader,
    EventTypes,
    EventWriter,
    Frames,
    Lines,
    MisfitError,
    Replayer,
    TypeShape,
    codec_of,
    encode_event,
    extract,
)
from tests.support.reference_checker import check
from tests.support.strategies import recordings, widths

SCALARS = [
    *(f"{sign}{bits}" for sign in "ui" for bits in (8, 16, 32, 64, 128)),
    "f32",
    "f64",
    "bool",
    "char",
    "string",
    "bytes",
    "duration_nanos",
]
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)


def type_names():
    """Types of every sort, a few levels deep."""

    def composed(inner):
        return st.one_of(
            inner.map(lambda part: f"Vec<{part}>"),
            st.tuples(inner, st.integers(1, 3)).map(lambda p: f"[{p[0]}; {p[1]}]"),
            st.lists(inner, min_size=1, max_size=3).map(lambda p: f"({','.join(p)},)"),
            st.tuples(inner, inner).map(lambda p: f"Product<{p[0]},{p[1]}>"),
            inner.filter(lambda part: not part.startswith("Option")).map(
                lambda part: f"Option<{part}>"
            ),
        )

    return st.recursive(st.sampled_from(SCALARS), composed, max_leaves=4)


def values(codec):
    """Values of a type, those at its edges among them."""
    if isinstance(codec, CoordinateCodec):
        return st.integers(codec.minimum, codec.maximum)
    if codec.name in {"u128", "i128"}:
        low = -(2**127) if codec.name == "i128" else 0
        return st.integers(low, low + 2**128 - 1)
    scalar = {
        "f32": st.floats(width=32, allow_nan=False),
        "f64": st.floats(allow_nan=False),
        "bool": st.booleans(),
        "char": st.characters(codec="utf-8"),
        "string": TEXT,
        "bytes": st.binary(max_size=5),
    }
    if codec.name in scalar:
        return scalar[codec.name]
    if codec.shape is TypeShape.TUPLE:
        return st.tuples(*map(values, codec.parts))
    (part,) = map(values, codec.parts)
    if codec.shape is TypeShape.OPTION:
        return st.none() | part
    length = getattr(codec, "length", None)
    return st.lists(part, min_size=length or 0, max_size=length or 3).map(tuple)


@st.composite
def typed_events(draw, max_size=4):
    """Types, and any events of them, which obey no rule."""
    coordinates = ["u64", "i64", "u8", "duration_nanos"]
    time = draw(
        st.sampled_from(coordinates)
        | st.tuples(*[st.sampled_from(coordinates)] * 2).map(lambda p: f"Product<{p[0]},{p[1]}>")
    )
    types = EventTypes.of(time, draw(type_names()))
    at = st.tuples(*map(values, types.time.coordinates)).map(Time)
    data = st.lists(values(types.record), max_size=3)
    messages = st.builds(Messages.of, at, data)
    updates = st.lists(st.tuples(at, st.integers(-(2**63), 2**63 - 1)), max_size=3)
    events = draw(st.lists(messages | updates.map(Progress.of), max_size=max_size))
    return types, events


def written(encoding, events):
    sink = io.BytesIO()
    with EventWriter(sink, encoding) as writer:
        for event in events:
            writer.push(event)
    return sink.getvalue()


def read(encoding, data, piece=1 << 20):
    return EventReader(io.BytesIO(data), encoding, "x", piece)


@given(type_names(), st.data())
def test_values_of_any_type_come_back_from_bytes_and_from_json(name, data):
    codec = codec_of(name)
    assert codec_of(codec.name) == codec
    item = data.draw(st.lists(values(codec), max_size=3))
    out = bytearray()
    codec.encode_many(item, out)
    assert len(out) >= codec.least * len(item)
    actual, end = codec.decode_many(bytes(out), 0, len(item))
    assert (actual, end) == (tuple(item), len(out))
    texts = json.dumps([codec.to_json(value) for value in item], allow_nan=False)
    again = bytearray()
    codec.encode_many(codec.from_json_many(json.loads(texts)), again)
    assert again == out


@given(type_names(), st.binary(max_size=40))
def test_bytes_that_are_a_value_are_written_as_they_were(name, data):
    codec = codec_of(name)
    try:
        value, end = codec.decode(data, 0)
    except MisfitError:
        return
    out = bytearray()
    codec.encode(value, out)
    assert out == data[:end]
    again = bytearray()
    codec.encode(codec.from_json(json.loads(json.dumps(codec.to_json(value)))), again)
    assert again == out


@given(st.text(max_size=30) | type_names().flatmap(lambda name: st.permutations(list(name))))
def test_any_text_is_a_type_or_refused(text):
    try:
        codec = codec_of("".join(text))
    except InvalidRequestError as error:
        assert error.code == "CAP-TYPE"
    else:
        assert codec_of(codec.name) == codec


@given(typed_events(), st.integers(1, 64))
def test_events_round_trip_in_both_forms_and_any_chunks(typed, piece):
    types, events = typed
    for encoding in (Frames(types), Lines.of(types, 3)):
        data = written(encoding, events)
        reader = read(encoding, data, piece)
        actual = list(reader)
        assert actual == events
        assert (reader.seq, reader.offset, reader.torn) == (len(events), len(data), None)
        assert written(encoding, actual) == data


@given(typed_events(), st.data())
def test_a_cut_keeps_what_is_whole_and_tells_the_rest(typed, data):
    types, events = typed
    frames = [encode_event(types, event) for event in events]
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    reader = read(Frames(types), whole[:cut])
    actual = list(reader)
    start = sum(map(len, frames[: len(actual)]))
    assert actual == events[: len(actual)]
    assert start <= cut
    if cut == start:
        assert reader.torn is None
    else:
        assert (reader.torn.offset, reader.torn.bytes) == (start, cut - start)
        assert cut < start + len(frames[len(actual)])


@given(typed_events(), st.data())
def test_damage_raises_and_keeps_what_preceded_it(typed, data):
    types, events = typed
    for encoding in (Frames(types), Lines.of(types, 0)):
        before = written(encoding, events)
        damaged = bytearray(before)
        at = data.draw(st.integers(0, len(damaged)))
        removed = data.draw(st.integers(0, 9))
        damaged[at : at + removed] = data.draw(st.binary(max_size=20))
        reader = read(encoding, bytes(damaged))
        actual = []
        try:
            for event in reader:
                actual.append(event)  # noqa: PERF402
        except CapstanError as error:
            assert error.code in {
                "CAP-FRAME-LENGTH", "CAP-FRAME-TAG", "CAP-FRAME-TYPES", "CAP-TRANSCRIPT",
            }  # fmt: skip
            assert error.fields["file"] == "x"
            assert error.fields["seq"] == len(actual)
        ends = 0
        for number, event in enumerate(events):
            ends += len(encoding.encode(event, number))
            if ends <= at:
                assert actual[number] == event
        if isinstance(encoding, Frames):
            # Whatever was read is what the bytes say.
            assert written(encoding, actual) == bytes(damaged[: reader.offset])
        faults = [item for item in read(encoding, bytes(damaged)).items() if _is_fault(item)]
        assert len(faults) <= (1 if isinstance(encoding, Frames) else len(damaged) + 1)


def _is_fault(item):
    return isinstance(item, Fault)


@given(st.binary(max_size=200), type_names(), st.integers(1, 64))
def test_any_bytes_are_read_or_refused(data, name, piece):
    types = EventTypes.of("u64", name)
    for encoding in (Frames(types), Lines.of(types, None)):
        for item in read(encoding, data, piece).items():
            assert isinstance(item, Event | Fault)


@given(st.data(), widths())
def test_what_is_valid_in_one_form_is_valid_in_the_other(data, width):
    events = [_with_data(event) for event in data.draw(recordings(width))]
    types = EventTypes.of(_time_name(width), "u64")
    actual = [list(read(e, written(e, events))) for e in (Frames(types), Lines.of(types))]
    assert actual[0] == actual[1] == events
    assert check(actual[0], types.minimum) == check_all(StreamChecker(types.minimum), events)


def _time_name(width):
    return "u64" if width == 1 else f"Product<{_time_name(width - 1)},u64>"


def _with_data(event):
    return Messages.of(event.time, range(event.records)) if isinstance(event, Messages) else event


@given(st.data(), widths(), st.integers(1, 5), st.sampled_from([1, 2, None]))
def test_any_distribution_gives_equal_records_and_frontiers(data, width, peers, batch):
    minimum = Time([0] * width)
    sources = [
        [_with_data(event) for event in events]
        for events in data.draw(st.lists(recordings(width, max_size=8), max_size=4))
    ]
    replayer = Replayer(sources, minimum, peers, batch)
    emitted, frontiers = [], [[] for _ in range(peers)]
    counted = [0] * len(sources)
    for step in replayer:
        if isinstance(step, Advanced):
            frontiers[step.worker].append(step.frontier)
            continue
        assert isinstance(step, Emitted)
        assert step.recording % peers == step.worker
        # Nothing comes at a time that was told to be complete, on this worker or in all.
        assert not complete(frontiers[step.worker][-1], step.messages.time)
        assert not complete(replayer.replayed.frontier, step.messages.time)
        emitted.append(step.messages)
        counted[step.recording] += 1
    assert replayer.done
    everything = [event for events in sources for event in events]
    assert extract(emitted) == extract(everything)
    assert counted == [sum(isinstance(e, Messages) for e in events) for events in sources]
    together = MutableAntichain()
    for number, own in enumerate(frontiers):
        assert all(before.dominates(after) for before, after in pairwise(own))
        held = MutableAntichain()
        for events in sources[number::peers]:
            holdings = check(events, minimum).holdings
            held.update(holdings)
            together.update(holdings)
        assert replayer.workers[number].holdings == held.items()
        assert own[-1] == held.frontier
    assert replayer.replayed.frontier == together.frontier
    assert replayer.replayed.closed == together.is_empty


@given(st.data(), widths(), st.integers(1, 3))
def test_a_recaptured_replay_is_valid_and_equal(data, width, peers):
    minimum = Time([0] * width)
    sources = [
        [_with_data(event) for event in events]
        for events in data.draw(st.lists(recordings(width, max_size=8), max_size=3))
    ]
    links = [EventLink() for _ in range(peers)]
    readers = [link.reader() for link in links]
    captures = [Capture(link, minimum) for link in links]
    replayer = Replayer(sources, minimum, peers)
    for step in replayer:
        output = step.messages if isinstance(step, Emitted) else step.frontier
        captures[step.worker].output(output)
    again = [list(reader) for reader in readers]
    for number, events in enumerate(again):
        verdict = check(events, minimum)
        assert verdict.valid
        assert verdict.frontier == replayer.workers[number].frontier
    everything = [event for events in sources for event in events]
    assert extract(event for events in again for event in events) == extract(everything)


@given(st.floats())
def test_every_double_is_kept(value):
    codec = codec_of("f64")
    actual = codec.from_json(json.loads(json.dumps(codec.to_json(value), allow_nan=False)))
    assert math.copysign(1, actual) == math.copysign(1, value)
    out, again = bytearray(), bytearray()
    codec.encode(value, out)
    codec.encode(actual, again)
    assert out == again
