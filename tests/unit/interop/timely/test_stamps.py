"""Recordings of timely 0.32: their bytes, wrong forms, and which form is assumed."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import tracemalloc
from pathlib import Path

import pytest

from capstan.core.protocol import Messages, Progress, Release, StreamChecker, check_all
from capstan.core.times import PAIR, Antichain, Time
from capstan.errors import InvalidRequestError
from capstan.interop.timely import (
    EventReader,
    EventTypes,
    EventWriter,
    Frames,
    Lines,
    Replayer,
    assumed_of_frames,
    assumed_of_lines,
    capture_into,
    encode_event,
    extract,
    release_of,
    types_of,
)
from capstan.interop.timely.event_link import EventLink

CONFORMANCE = Path(__file__).parents[3] / "conformance"
OLD = sorted(path.parent for path in (CONFORMANCE / "timely").glob("*/case.json"))
NEW = sorted(path.parent for path in (CONFORMANCE / "timely032").glob("*/case.json"))
U64 = EventTypes.of("u64", "u64")
PRODUCT = EventTypes.of("Product<u64,u64>", "u64")
V031, V032 = Release.V031, Release.V032


def frame(*parts):
    body = b"".join(parts)
    return struct.pack("<Q", len(body)) + body


def u64(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def messages(*values):
    return frame(struct.pack("<I", 1), u64(*values))


def items(data, types=U64, release=V032, longest=2**26):
    return list(EventReader(io.BytesIO(data), Frames(types, longest, release), "x").items())


@pytest.mark.parametrize(
    ("types", "event", "length", "body"),
    [
        (U64, Messages.under([], [7]), 28, u64(0, 1, 7)),
        (U64, Messages.of((5,), [7]), 36, u64(1, 5, 1, 7)),
        (U64, Messages.under([(5,), (5,)], [7]), 44, u64(2, 5, 5, 1, 7)),
        (U64, Messages.under([(9,), (5,)], []), 36, u64(2, 5, 9, 0)),
        (PRODUCT, Messages.under([(1, 0), (0, 1)], [7]), 60, u64(2, 0, 1, 1, 0, 1, 7)),
        (EventTypes.of("u64", "string"), Messages.of((5,), ["a"]), 37, u64(1, 5, 1, 1) + b"a"),
        (
            EventTypes.of("u64", "(u64,string)"), Messages.of((5,), [(7, "a")]), 45,
            u64(1, 5, 1, 7, 1) + b"a",
        ),
        (
            EventTypes.of("Duration", "u64"), Messages.of((1_500_000_000,), [7]), 40,
            u64(1, 1) + struct.pack("<I", 500_000_000) + u64(1, 7),
        ),
    ],
)  # fmt: skip
def test_bytes_are_those_that_timely_writes(types, event, length, body):
    data = encode_event(types, event, V032)
    assert data == struct.pack("<QI", length, 1) + body
    assert items(data, types) == [event]


def test_progress_is_the_same_in_both_forms():
    event = Progress.of([((1,), 1), ((0,), -1)])
    assert encode_event(U64, event, V032) == encode_event(U64, event, V031)


def test_elements_out_of_order_are_damage():
    (only,) = items(messages(2, 9, 5, 1, 7))
    assert (only.code, only.offset) == ("CAP-FRAME-TYPES", 0)
    assert "elements not in order: a stamp of 2 elements: 9, 5" in only.detail
    unsorted = Messages((Time.of(9), Time.of(5)), 0, ())
    for encoding in (Frames(U64, release=V032), Lines.of(U64, 0, V032), Lines.of(U64)):
        with pytest.raises(InvalidRequestError, match="elements not in order"):
            encoding.encode(unsorted, 0)
    violation = check_all(StreamChecker((0,)), [unsorted]).violation
    assert (violation.rule, violation.time) == ("shape", None)


@pytest.mark.parametrize("count", [5, 2**32, 2**61, 2**64 - 1])
def test_elements_are_bounded_by_the_bytes_before_they_are_read(count):
    body = struct.pack("<I", 1) + u64(count, 0, 0, 0, 0)
    tracemalloc.start()
    whole = items(struct.pack("<Q", len(body)) + body)
    # The frame says that it is long, but its bytes are not there.
    torn = items(struct.pack("<Q", 2**26) + body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    (only,) = whole
    assert only.code == "CAP-FRAME-TYPES"
    assert f"{count} times of u64 do not fit into" in only.detail
    assert torn == [] or torn[0].code == "CAP-FRAME-TYPES"


def test_a_form_that_does_not_fit_is_refused_and_the_other_named():
    events = [Progress.of([((1,), 1)]), Messages.of((1,), [9, 8])]
    for release in Release:
        first, damage = items(
            b"".join(encode_event(U64, event, release.other) for event in events), release=release
        )
        assert first == events[0]
        assert (damage.code, damage.offset) == ("CAP-FRAME-TYPES", 36)
        words = f"(read as timely {release}; it fits timely {release.other})"
        assert damage.detail.endswith(words)
    # Neither fits: nothing is said.
    (damage,) = items(messages(3, 1), release=V031)
    assert "timely" not in damage.detail


def test_stamps_have_no_place_in_the_form_of_0_31():
    event = Messages.under([(5,), (9,)], [7])
    for encoding in (Frames(U64), Lines.of(U64, 0, V031)):
        sink = io.BytesIO()
        writer = EventWriter(sink, encoding)
        writer.push(Messages.of((5,), [7]))
        with pytest.raises(InvalidRequestError, match="a stamp of 2 elements: 5, 9") as caught:
            writer.push(event)
        assert (caught.value.code, caught.value.fields["seq"]) == ("CAP-STAMP", 1)
    for times in ([(5,), (9,)], []):
        with pytest.raises(InvalidRequestError, match="CAP-STAMP"):
            _ = Messages.under(times, []).time
    with pytest.raises(InvalidRequestError, match="a stamp without elements"):
        extract([Messages.under([], [1])])
    many = Messages.under([(n,) for n in range(9)], [])
    with pytest.raises(InvalidRequestError, match="9 elements: 0, 1, 2, 3, 4 and 4 more"):
        _ = many.time


TIMED = b'{"worker":0,"seq":%d,"event":"messages","time":0,"data":[]}\n'
STAMPED = b'{"worker":0,"seq":%d,"event":"messages","stamp":[%s],"data":[]}\n'


@pytest.mark.parametrize(
    ("lines", "release", "fault"),
    [
        ([TIMED, STAMPED % (1, b"0")], None, 1),
        ([STAMPED % (0, b"0"), TIMED], None, 1),
        # What has no other way is a stamp.
        ([TIMED, STAMPED % (1, b"0,1"), STAMPED % (2, b"")], None, None),
        ([STAMPED % (0, b"0,1"), TIMED], None, None),
        ([STAMPED % (0, b"0,1"), STAMPED % (1, b"0"), TIMED], None, 2),
        ([TIMED, STAMPED % (1, b"")], V031, 1),
        ([STAMPED % (0, b""), TIMED], V032, 1),
        ([STAMPED % (0, b"1,0")], V032, 0),
        ([STAMPED % (0, b"true")], V032, 0),
        ([STAMPED % (0, b"[0]")], V032, 0),
        ([TIMED[:-3] + b',"stamp":[0]}\n'], None, 0),
    ],
)  # fmt: skip
def test_a_transcript_states_a_time_in_one_way(lines, release, fault):
    data = b"".join(line % at if line is TIMED else line for at, line in enumerate(lines))
    found = list(EventReader(io.BytesIO(data), Lines(0, release=release), "x").items())
    assert len(found) == len(lines)
    faults = [at for at, item in enumerate(found) if not isinstance(item, Messages)]
    assert faults == ([] if fault is None else [fault])
    if fault is None:
        sink = io.BytesIO()
        with EventWriter(sink, Lines(0, release=release)) as writer:
            for event in found:
                writer.push(event)
        assert sink.getvalue() == data


def of_frames(folder):
    paths = sorted(folder.glob("*.bin"))
    return assumed_of_frames(paths, types_of(paths[0]))


def of_lines(folder):
    minimum = json.loads((folder / "case.json").read_text())["minimum"]
    return assumed_of_lines(sorted(folder.glob("*.jsonl")), minimum)


@pytest.mark.parametrize("folder", OLD, ids=lambda folder: folder.name)
def test_recordings_of_0_31_are_assumed_as_such(folder):
    assert (of_frames(folder), of_lines(folder)) == (V031, V031)


NO_MESSAGES = {"f0_no_data_w3", "f2_immediate_close_w2"}


@pytest.mark.parametrize("folder", NEW, ids=lambda folder: folder.name)
def test_recordings_of_0_32_are_assumed_as_such(folder):
    expected = V031 if folder.name in NO_MESSAGES else V032
    assert (of_frames(folder), of_lines(folder)) == (expected, expected)


def write(path, events, release):
    path.write_bytes(b"".join(encode_event(U64, event, release) for event in events))
    return path


def test_what_fits_both_forms_is_asked(tmp_path):
    # Time 1 with the records 4 1 2 3 4, or time 5 with 1 2 3 4.
    path = write(tmp_path / "worker-0.bin", [Messages.of((1,), [4, 1, 2, 3, 4])], V031)
    assert items(path.read_bytes(), release=V031)[0].data == (4, 1, 2, 3, 4)
    stamped = write(tmp_path / "worker-2.bin", [Messages.of((5,), [1, 2, 3, 4])], V032)
    assert stamped.read_bytes() == path.read_bytes()
    with pytest.raises(InvalidRequestError, match="fit timely 0.31 and timely 0.32") as caught:
        assumed_of_frames([path], U64)
    assert caught.value.code == "CAP-TIMELY"
    # Another recording of the run decides.
    clear = write(tmp_path / "worker-3.bin", [Messages.of((7,), [3])], V032)
    assert assumed_of_frames([path, clear], U64) is V032
    clear = write(tmp_path / "worker-3.bin", [Messages.of((7,), [3])], V031)
    assert assumed_of_frames([path, clear], U64) is V031
    # Time 0 or no element: the latter needs a deliberate send.
    zero = write(tmp_path / "worker-4.bin", [Messages.of((0,), [3])], V031)
    assert items(zero.read_bytes())[0].stamp == ()
    assert assumed_of_frames([zero], U64) is V031


def test_damaged_recordings_are_assumed_where_they_fit_further(tmp_path):
    def damaged(release):
        path = write(tmp_path / f"worker-{release}.bin", [Messages.of((7,), [3])] * 3, release)
        path.write_bytes(path.read_bytes() + frame(struct.pack("<I", 9), u64(0)))
        return path

    assert assumed_of_frames([damaged(V031)], U64) is V031
    with pytest.raises(InvalidRequestError, match="timely 0.31 up to byte 0 and timely 0.32") as it:
        assumed_of_frames([damaged(V032)], U64)
    assert it.value.code == "CAP-TIMELY"
    noise = tmp_path / "worker-9.bin"
    noise.write_bytes(b"\xff" * 40)
    assert assumed_of_frames([noise], U64) is V031


def test_transcripts_of_two_forms_are_asked(tmp_path):
    shutil.copy(CONFORMANCE / "timely" / "a0_book_w5" / "worker-0.jsonl", tmp_path)
    shutil.copy(CONFORMANCE / "timely032" / "a0_book_w5" / "worker-1.jsonl", tmp_path)
    with pytest.raises(InvalidRequestError, match="have a time.*a stamp") as caught:
        assumed_of_lines(sorted(tmp_path.glob("*.jsonl")), 0)
    assert caught.value.code == "CAP-TIMELY"
    assert assumed_of_lines([], 0) is V031


def test_the_release_is_declared_beside_the_recordings(tmp_path):
    path = tmp_path / "worker-0.bin"
    assert release_of(path) is None
    assert release_of(path, "0.32") is V032
    (tmp_path / "case.json").write_text('{"timely": "0.32"}')
    assert release_of(path) is V032
    assert release_of(path, "0.31") is V031
    for wrong in ('"0.33"', "0.32", "[]"):
        (tmp_path / "case.json").write_text(f'{{"timely": {wrong}}}')
        with pytest.raises(InvalidRequestError, match="CAP-TIMELY"):
            release_of(path)


def test_types_can_be_sent_to_tasks_once_they_were_used():
    types = EventTypes.of("Product<(u64,u64),u8>", "u64")
    event = Messages.of((1, 2, 3), [7])
    assert items(encode_event(types, event, V032), types) == [event]
    sent = pickle.loads(pickle.dumps(types))
    assert (sent, sent.time.order) == (types, types.time.order)
    assert items(encode_event(sent, event, V032), sent) == [event]


def test_pairs_are_ordered_by_their_first_part_that_differs():
    types = EventTypes.of("(u64,u64)", "u64")
    assert types.time.order == PAIR
    events = [
        Progress.of([((0, 5), 1), ((0, 0), -1)]),
        Messages.of((1, 0), [7]),
        Progress.of([((1, 0), 1), ((0, 5), -1)]),
    ]
    assert check_all(StreamChecker((0, 0), order=PAIR), events).valid
    # As a Product it breaks a rule.
    assert check_all(StreamChecker((0, 0)), events).violation.seq == 1
    for release in Release:
        data = b"".join(encode_event(types, event, release) for event in events)
        assert items(data, types, release) == events
    replayed = Replayer([events], (0, 0), order=PAIR)
    assert sum(1 for _ in replayed) == 4
    assert replayed.replayed.frontier.elements == ((1, 0),)
    assert replayed.replayed.frontier.less_equal((2, 0))
    link = EventLink()
    sink = [Antichain.of([(0, 5)]), Messages.of((1, 0), [7]), Antichain.of([(1, 0)], PAIR)]
    assert capture_into(sink, link, (0, 0), PAIR).frontier.elements == ((1, 0),)
