from __future__ import annotations

import json

import pytest

from capstan.core.protocol import (
    Fault,
    Messages,
    Progress,
    Rule,
    read_transcript,
    transcript_minimum,
)
from capstan.core.times import Time
from capstan.errors import InvalidRequestError

SOUND = b'{"worker":0,"seq":0,"event":"messages","time":0,"data":[1]}\n'


def line(**fields):
    return json.dumps({"worker": 0, "seq": 0, **fields}).encode() + b"\n"


def messages(**fields):
    return line(**{"event": "messages", "time": 0, "data": [], **fields})


def progress(*updates, **fields):
    return line(event="progress", updates=list(updates), **fields)


def read_one(text, minimum=0):
    (item,) = read_transcript([text], minimum)
    return item


def test_both_kinds():
    lines = [SOUND, progress([0, -1], [2**64 - 1, 1], seq=1)]
    assert list(read_transcript(lines, 0)) == [
        Messages((Time.of(0),), 1, (1,)),
        Progress(((Time.of(0), -1), (Time.of(2**64 - 1), 1))),
    ]


def test_nested_times_and_a_last_line_without_its_newline():
    item = read_one(messages(time=[1, 2]).rstrip(), [0, 0])
    assert item == Messages((Time.of(1, 2),), 0, ())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"null\n",
        b"[]\n",
        b"\xff\n",
        b"\xef\xbb\xbf" + SOUND,
        SOUND[:-10],
        SOUND + SOUND,
        b"[" * 100_000,
        SOUND.replace(b'"time":0', b'"time":0,"time":1'),
        SOUND.replace(b"[1]", b"[NaN]"),
        SOUND.replace(b"[1]", b"[" + b"9" * 5000 + b"]"),
        messages(worker=-1),
        messages(worker=True),
        messages(worker=None),
        messages(seq="0"),
        messages(seq=0.0),
        messages(seq=True),
        messages(event="start"),
        messages(event=None),
        messages(event=[]),
        messages(time=[0]),
        messages(time=0.0),
        messages(time="0"),
        messages(time=None),
        messages(time=False),
        messages(time=2**64),
        messages(time=-(2**63) - 1),
        messages(data=None),
        messages(data={}),
        messages(updates=[]),
        progress(time=0),
        progress(data=[]),
        progress([0]),
        progress([0, 1, 2]),
        progress([0, 1.0]),
        progress([0, True]),
        progress([0, 2**63]),
        progress([[0], 1]),
        progress(0),
        line(event="progress", updates={}),
        line(event="progress"),
        line(event="messages", time=0),
        line(event="messages", data=[]),
    ],
)
def test_lines_that_are_no_event(text):
    item = read_one(text)
    assert isinstance(item, Fault)
    assert item.rule is Rule.SHAPE
    assert 0 < len(item.detail) < 200


@pytest.mark.parametrize("time", [0, [0], [0, 0, 0], [0, None], [[0], 0], [0, 1.0]])
def test_times_that_are_not_nested_as_the_minimum_is(time):
    item = read_one(messages(time=time), [0, 0])
    assert isinstance(item, Fault)
    assert "not a time of this recording" in item.detail


def test_the_first_line_says_whose_recording_it_is():
    lines = [messages(worker=3), messages(worker=3, seq=1), messages(worker=2, seq=2)]
    *sound, fault = read_transcript(lines, 0)
    assert not any(isinstance(item, Fault) for item in sound)
    assert fault == Fault(Rule.SHAPE, "worker 2 in the recording of worker 3")
    assert isinstance(next(read_transcript(lines, 0, worker=2)), Fault)


@pytest.mark.parametrize(("numbers", "faults"), [([0, 2, 2], [1]), ([0, 0, 2], [1]), ([1], [0])])
def test_gaps_and_repeats(numbers, faults):
    items = list(read_transcript([messages(seq=seq) for seq in numbers], 0))
    assert [at for at, item in enumerate(items) if isinstance(item, Fault)] == faults
    assert all(item.rule is Rule.SEQ for item in items if isinstance(item, Fault))


@pytest.mark.parametrize("minimum", [None, "0", 0.0, True, [], [0, "0"], 2**64, {}])
def test_minima_that_are_no_time(minimum):
    with pytest.raises(InvalidRequestError, match="CAP-TIME"):
        transcript_minimum(minimum)
    with pytest.raises(InvalidRequestError, match="CAP-TIME"):
        list(read_transcript([], minimum))


def test_minima():
    assert transcript_minimum(-(2**63)) == Time.of(-(2**63))
    assert transcript_minimum([0, 1]) == Time.of(0, 1)
