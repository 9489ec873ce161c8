"""Frames: torn tails are told, damage is refused with its place, and memory is bounded."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
from dataclasses import replace

import pytest

from capstan.core.protocol import Fault, Messages, Progress, Rule
from capstan.core.times import Time
from capstan.errors import CapstanError, InvalidRequestError, SystemFailureError
from capstan.interop.timely import (
    Damage,
    EventReader,
    EventTypes,
    EventWriter,
    FrameDecoder,
    Frames,
    Lines,
    encode_event,
    open_recording,
    recordings_in,
    types_of,
)
from capstan.interop.timely.types.codec import MisfitError

TYPES = EventTypes.of("u64", "u64")
PAIRS = EventTypes.of("Product<u64,duration_nanos>", "(string, Option<u8>)")
EVENTS = (Messages.of((0,), [1, 2]), Progress.of([((0,), -1), ((3,), 1)]), Messages.of((3,), []))


def frame(*parts):
    body = b"".join(parts)
    return struct.pack("<Q", len(body)) + body


def u64(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def tag(value):
    return struct.pack("<I", value)


def data_of(types, events):
    return b"".join(encode_event(types, event) for event in events)


def reader_of(data, types=TYPES, name="file.bin", **options):
    return EventReader(io.BytesIO(data), Frames(types, **options), name)


def test_bytes_of_both_kinds():
    assert encode_event(TYPES, EVENTS[0]) == frame(tag(1), u64(0, 2, 1, 2))
    update = struct.pack("<Qq", 0, -1) + struct.pack("<Qq", 3, 1)
    assert encode_event(TYPES, EVENTS[1]) == frame(tag(0), u64(2), update)
    assert encode_event(TYPES, Progress(())) == frame(tag(0), u64(0))
    nested = Messages.of((1, 2_000_000_003), [("a", None)])
    assert encode_event(PAIRS, nested) == frame(
        tag(1), u64(1, 2), struct.pack("<I", 3), u64(1, 1), b"a", b"\x00"
    )


@pytest.mark.parametrize(
    "event",
    [
        Messages.of((-1,), []),
        Messages.of((0, 0), []),
        Messages.of((0,), ["a"]),
        Messages((Time.of(0),), 3),
        Progress.of([((0,), 2**63)]),
        Progress.of([((2**64,), 1)]),
    ],
)
def test_events_of_other_types_are_not_written(event):
    with pytest.raises(MisfitError):
        encode_event(TYPES, event)
    sink = io.BytesIO()
    writer = EventWriter(sink, Frames(TYPES))
    writer.push(EVENTS[0])
    with pytest.raises(InvalidRequestError, match="CAP-VALUE: event 1 "):
        writer.push(event)
    writer.push(EVENTS[1])
    writer.close()
    assert (writer.seq, writer.size) == (2, len(sink.getvalue()))
    assert tuple(reader_of(sink.getvalue())) == EVENTS[:2]


@pytest.mark.parametrize("types", [TYPES, PAIRS], ids=["fixed", "variable"])
def test_every_cut_keeps_what_is_whole_and_tells_the_rest(types):
    events = EVENTS
    if types is PAIRS:
        events = (
            Messages.of((0, 5), [("abc", 7), ("", None)]),
            Progress.of([((0, 0), -1), ((3, 10**10), 1)]),
            Messages.of((3, 0), []),
        )
    data = data_of(types, events)
    ends = [len(data_of(types, events[:n])) for n in range(len(events) + 1)]
    for cut in range(len(data) + 1):
        reader = reader_of(data[:cut], types)
        whole = sum(end <= cut for end in ends) - 1
        assert tuple(reader) == events[:whole]
        assert reader.ended
        if cut == ends[whole]:
            assert reader.torn is None
            continue
        torn = reader.torn
        assert (torn.offset, torn.bytes) == (ends[whole], cut - ends[whole])
        assert torn.missing in {None, ends[whole + 1] - cut}
        assert (torn.missing is None) == (cut - ends[whole] < 8)
        assert torn.to_json()["about"].startswith(f"torn at byte {cut}, ")


DAMAGE = [
    (b"trailing rubbish", "CAP-FRAME-LENGTH", "7453010347690127988 bytes"),
    (bytes(8), "CAP-FRAME-LENGTH", "0 bytes"),
    (u64(11) + bytes(11), "CAP-FRAME-LENGTH", "11 bytes"),
    (u64(2**63), "CAP-FRAME-LENGTH", "9223372036854775808"),
    (u64(64 * 2**20 + 1), "CAP-FRAME-LENGTH", "67108865"),
    (frame(tag(2), u64(0)), "CAP-FRAME-TAG", "its tag is 2"),
    (frame(tag(2), u64(0))[:12], "CAP-FRAME-TAG", "its tag is 2"),
    (frame(tag(0), u64(1)), "CAP-FRAME-TYPES", "1 updates of times of u64 do not fill its 12"),
    (frame(tag(0), u64(0, 0)), "CAP-FRAME-TYPES", "0 updates"),
    (frame(tag(0), u64(2**64 - 1, 0, 0)), "CAP-FRAME-TYPES", "18446744073709551615 updates"),
    (frame(tag(1), u64(0)), "CAP-FRAME-TYPES", "do not fit into its 12 bytes"),
    (frame(tag(1), u64(0, 1)), "CAP-FRAME-TYPES", "1 records of u64 do not fit"),
    (frame(tag(1), u64(0, 2**64 - 1)), "CAP-FRAME-TYPES", "18446744073709551615 records"),
    (frame(tag(1), u64(0, 0), b"x"), "CAP-FRAME-TYPES", "1 bytes are left over"),
    # A length that says one byte more than the contents of a whole last frame.
    (u64(29) + frame(tag(0), u64(1, 3, 1))[8:], "CAP-FRAME-TYPES", "its 29 bytes"),
    (u64(21) + frame(tag(1), u64(3, 0))[8:], "CAP-FRAME-TYPES", "1 bytes are left over"),
]


@pytest.mark.parametrize(("rubbish", "code", "about"), DAMAGE)
def test_damage_is_refused_with_its_place(rubbish, code, about):
    whole = data_of(TYPES, EVENTS)
    reader = reader_of(whole + rubbish)
    taken = []
    with pytest.raises(InvalidRequestError) as refused:
        taken.extend(reader.__iter__())
    error = refused.value
    assert error.code == code
    assert about in error.message
    assert f"file.bin, event 3: the frame at byte {len(whole)}: " in error.message
    assert error.fields["file"] == "file.bin"
    assert (error.fields["offset"], error.fields["seq"]) == (len(whole), 3)
    assert error.fields["reason"]
    assert reader.ended
    assert reader.torn is None
    assert reader.poll() is None

    items = list(reader_of(whole + rubbish + whole).items())
    assert tuple(items[:3]) == EVENTS
    assert len(items) == 4
    assert isinstance(items[3], Damage)
    assert (items[3].rule, items[3].code, items[3].offset) == (Rule.SHAPE, code, len(whole))
    # The place is that in the recording, also where it arrives in pieces.
    reader = EventReader(io.BytesIO(whole + rubbish + whole), Frames(TYPES), piece=20)
    *_, damage = reader.items()
    assert damage == items[3]


def test_what_comes_before_damage_is_given():
    reader = reader_of(data_of(TYPES, EVENTS) + bytes(8))
    assert tuple(reader.poll() for _ in EVENTS) == EVENTS
    with pytest.raises(InvalidRequestError):
        reader.poll()


@pytest.mark.parametrize(
    ("written", "read"),
    [("string", "u64"), ("u64", "string"), ("u64", "u8"), ("u8", "u64"), ("u64", "(u64, bool)")],
)
def test_wrong_types_are_noticed_where_the_bytes_do_not_fit(written, read):
    value = {"string": "text", "u64": 77, "u8": 77}[written]
    data = encode_event(EventTypes.of("u64", written), Messages.of((0,), [value] * 3))
    with pytest.raises(InvalidRequestError, match="CAP-FRAME-TYPES"):
        list(reader_of(data, EventTypes.of("u64", read)))


def test_records_without_bytes_cannot_ask_for_memory():
    types = EventTypes.of("u64", "()")
    some = Messages.of((0,), [None] * 1000)
    assert list(reader_of(encode_event(types, some), types)) == [some]
    with pytest.raises(InvalidRequestError, match="without bytes"):
        list(reader_of(frame(tag(1), u64(0, 2**20 + 1)), types))
    with pytest.raises(MisfitError):
        encode_event(types, Messages.of((0,), [None] * (2**20 + 1)))


def test_the_longest_frame_can_be_set():
    data = data_of(TYPES, EVENTS)
    assert len(list(reader_of(data, longest=44))) == 3
    with pytest.raises(InvalidRequestError, match="CAP-FRAME-LENGTH"):
        list(reader_of(data, longest=43))
    lines = io.BytesIO()
    with EventWriter(lines, Lines.of(TYPES)) as writer:
        writer.push(EVENTS[0])
    longest = Lines(0, longest=len(lines.getvalue()) - 1)
    for text in (lines.getvalue(), lines.getvalue()[:-1] + b" " * 100):
        with pytest.raises(
            InvalidRequestError, match="CAP-FRAME-LENGTH.* the line at byte 0 is longer"
        ):
            list(EventReader(io.BytesIO(text), longest, piece=7))


def test_a_decoder_takes_bytes_one_by_one():
    decoder = FrameDecoder(TYPES)
    events = []
    for byte in data_of(TYPES, EVENTS):
        assert decoder.next() is None
        decoder.feed(bytes([byte]))
        event = decoder.next()
        if event is not None:
            events.append(event)
    assert tuple(events) == EVENTS
    assert not decoder.over
    decoder.finish()
    assert decoder.next() is None
    assert decoder.over
    assert decoder.torn is None


def test_transcripts_are_typed():
    good = b'{"worker":0,"seq":0,"event":"messages","time":0,"data":[[1,"a"]]}\n'
    types = EventTypes.of("u64", "(u8, string)")
    reader = EventReader(io.BytesIO(good), Lines.of(types))
    assert list(reader) == [Messages.of((0,), [(1, "a")])]
    for wrong in (good.replace(b"[1,", b"[256,"), good.replace(b'"time":0', b'"time":-1')):
        (fault,) = EventReader(io.BytesIO(wrong), Lines.of(types)).items()
        assert isinstance(fault, Fault)
        assert fault.rule is Rule.SHAPE
        with pytest.raises(
            InvalidRequestError, match="CAP-TRANSCRIPT: t, event 0: the line at byte 0: not"
        ):
            list(EventReader(io.BytesIO(wrong), Lines.of(types), "t"))


@pytest.mark.parametrize("piece", [1, 1000])
def test_a_last_line_without_its_newline_counts(piece):
    line = b'{"worker":0,"seq":0,"event":"progress","updates":[]}'
    reader = EventReader(io.BytesIO(line), Lines(0), piece=piece)
    assert list(reader) == [Progress(())]
    assert (reader.offset, reader.ended) == (len(line), True)
    torn = EventReader(io.BytesIO(line[:-5]), Lines(0), piece=piece)
    assert [type(item) for item in torn.items()] == [Fault]


@pytest.mark.parametrize("piece", [1, 1000])
def test_cut_connections_keep_whole_lines(piece):
    line = b'{"worker":0,"seq":%d,"event":"messages","time":0,"data":["a{"]}\n'
    data = line % 0 + line % 1
    for cut in range(len(data) + 1):
        reader = EventReader(io.BytesIO(data[:cut]), Lines(0), piece=piece, connected=True)
        # A last line without its newline is whole already.
        whole = (cut >= len(line) - 2) + (cut == len(data) or cut == len(data) - 1)
        assert list(reader) == [Messages.of((0,), ["a{"])] * whole
        begun = cut - (len(line) - 1 if cut >= len(line) - 1 else 0)
        if 0 < begun < len(line) - 2:
            assert reader.torn.offset + reader.torn.bytes == cut
        else:
            assert reader.torn is None


@pytest.mark.parametrize("encoding", [Frames(TYPES, 43), Lines.of(TYPES)])
def test_what_could_not_be_read_back_is_not_written(encoding):
    if isinstance(encoding, Lines):
        encoding = replace(encoding, longest=len(encoding.encode(EVENTS[1], 0)) - 1)
    sink = io.BytesIO()
    writer = EventWriter(sink, encoding)
    with pytest.raises(InvalidRequestError, match="CAP-FRAME-LENGTH: event 0 cannot be written"):
        writer.push(EVENTS[1])
    writer.push(EVENTS[0])
    writer.close()
    assert list(EventReader(io.BytesIO(sink.getvalue()), encoding)) == [EVENTS[0]]


def test_after_a_fault_in_a_transcript_the_next_line_counts():
    lines = b'rubbish\n{"worker":0,"seq":1,"event":"progress","updates":[]}\n'
    items = list(EventReader(io.BytesIO(lines), Lines(0, worker=None)).items())
    assert [type(item) for item in items] == [Fault, Progress]


@pytest.mark.parametrize(
    "event",
    [
        Messages.of((0,), [float("nan")]),
        Messages.of((0,), [{1, 2}]),
        Messages.of((0,), [b"x"]),
        Messages((Time.of(0),), 3),
        Messages.of((0, 0), []),
        Messages.of((2**64,), []),
        Messages.of((True,), []),
        Progress.of([((-(2**63) - 1,), 1)]),
        Progress.of([((0,), 2**63)]),
        Progress.of([((0,), 0.5)]),
    ],
)
def test_what_is_no_event_of_a_transcript_has_no_line(event):
    writer = EventWriter(io.BytesIO(), Lines(0))
    with pytest.raises(InvalidRequestError, match="CAP-VALUE"):
        writer.push(event)
    assert writer.seq == 0


@pytest.mark.parametrize(
    ("minimum", "time", "text"), [(0, (7,), "7"), ([0], (7,), "[7]"), ([0, 0], (7, 8), "[7,8]")]
)
def test_times_are_written_as_the_minimum_is(minimum, time, text):
    sink = io.BytesIO()
    with EventWriter(sink, Lines(minimum, worker=3)) as writer:
        writer.push(Progress.of([(time, 1)]))
        writer.push(Messages.of(time, [(1, "\u00e9")]))
    assert sink.getvalue().decode() == (
        f'{{"worker":3,"seq":0,"event":"progress","updates":[[{text},1]]}}\n'
        f'{{"worker":3,"seq":1,"event":"messages","time":{text},"data":[[1,"\u00e9"]]}}\n'
    )


def test_half_a_surrogate_pair_is_written_with_its_escape():
    line = b'{"worker":0,"seq":0,"event":"messages","time":0,"data":["\\ud800"]}\n'
    sink = io.BytesIO()
    with EventWriter(sink, Lines(0)) as writer:
        writer.push(*EventReader(io.BytesIO(line), Lines(0)))
    assert sink.getvalue() == line


@pytest.mark.parametrize("encoding", [Frames(TYPES), Lines.of(TYPES)], ids=["frames", "lines"])
def test_long_recordings_are_read_in_little_memory(encoding, tmp_path):
    """Reading costs what a piece and an event take, not what the file is long."""
    megabytes = int(os.environ.get("CAPSTAN_TEST_MEGABYTES", "4"))
    path = tmp_path / "worker-0"
    events = 0
    with path.open("wb") as file, EventWriter(file, encoding) as writer:
        while writer.size < megabytes * 2**20:
            writer.push(Messages.of((0,), range(events, events + 500)))
            events += 1
    tracemalloc.start()
    try:
        with open_recording(path, encoding) as reader:
            assert sum(event.records for event in reader) == events * 500
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20
    assert path.stat().st_size >= megabytes * 2**20


class _Full(io.RawIOBase):
    def write(self, data):
        raise OSError(28, "No space left on device")


class _Slow(io.RawIOBase):
    """Takes three bytes at a time."""

    def __init__(self):
        self.taken = b""

    def write(self, data):
        self.taken += bytes(data[:3])
        return min(len(data), 3)


class _Stuck(io.RawIOBase):
    def write(self, data):
        return None


def test_a_sink_that_fails_is_told():
    for sink in (_Full(), _Stuck()):
        writer = EventWriter(sink, Frames(TYPES), "x.bin")
        writer.push(EVENTS[0])
        with pytest.raises(SystemFailureError, match="CAP-WRITE: x.bin failed after event 1: "):
            writer.flush()
    slow = _Slow()
    with EventWriter(slow, Frames(TYPES)) as writer:
        writer.push(EVENTS[0])
    assert slow.taken == encode_event(TYPES, EVENTS[0])


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.bin", tmp_path):
        with pytest.raises(InvalidRequestError, match="CAP-FILE"):
            open_recording(path, Frames(TYPES))
    with pytest.raises(InvalidRequestError, match="CAP-FILE"):
        recordings_in(tmp_path)
    with pytest.raises(InvalidRequestError, match="CAP-FILE.*types are unknown"):
        types_of(tmp_path / "x.bin")
    (tmp_path / "case.json").write_text("[")
    with pytest.raises(InvalidRequestError, match="CAP-FILE.*not JSON"):
        types_of(tmp_path / "x.bin", "u64", "u64")
    (tmp_path / "case.json").write_bytes(b"\xff")
    with pytest.raises(CapstanError, match="CAP-FILE.*not JSON"):
        types_of(tmp_path / "x.bin")


def test_types_beside_a_file(tmp_path):
    case = '{"time_type": "i64", "record_type": "string", "minimum": -7}'
    (tmp_path / "case.json").write_text(case)
    path = tmp_path / "worker-3.bin"
    assert types_of(path) == EventTypes.of("i64", "string", -7)
    assert types_of(path, minimum=0) == EventTypes.of("i64", "string", 0)
    assert types_of(path, record_type="u8") == EventTypes.of("i64", "u8", -7)
    # Another type of time has another minimum.
    assert types_of(path, time_type="u64") == EventTypes.of("u64", "string", 0)


def test_recordings_are_listed_by_worker(tmp_path):
    names = ["worker-10.bin", "worker-2.bin", "worker-2.jsonl", "other.bin", "notes.txt"]
    for name in names:
        (tmp_path / name).touch()
    actual = [path.name for path in recordings_in(tmp_path)]
    assert actual == ["worker-2.jsonl", "worker-10.bin", "other.bin"]
    actual = [path.name for path in recordings_in(tmp_path, [".bin"])]
    assert actual == ["worker-2.bin", "worker-10.bin", "other.bin"]
