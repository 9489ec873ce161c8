"""Topics of recordings: how they are named, and what stands at their head."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest

from capstan.core.protocol import Release
from capstan.core.times import PAIR, Kind, TimeType
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.interop.kafka.topic_layout import FORMATS, TopicHeader, Topics, newest_header

HEAD = TopicHeader(
    "little", "a1b2", 3, TimeType.of(event=Kind.TIMESTAMP), '{"type": "struct"}', {0: "a"}
)


@pytest.mark.parametrize(
    ("place", "servers", "prefix"),
    [
        ("kafka://localhost:9092/orders", "localhost:9092", "orders"),
        ("kafka://10.0.0.1:1,b-2.example:65535/a.b_c-d", "10.0.0.1:1,b-2.example:65535", "a.b_c-d"),
    ],
)
def test_a_place_is_read_and_written(place: str, servers: str, prefix: str) -> None:
    actual = Topics.parse(place)
    assert (actual, actual.url) == (Topics(servers, prefix), place)


@pytest.mark.parametrize(
    "place",
    [
        "kafka://localhost/orders",
        "kafka://localhost:9092",
        "kafka://localhost:9092/",
        "kafka://localhost:9092/a/b",
        "kafka://localhost:9092/../x",
        "kafka://localhost:9092/a b",
        "kafka://localhost:9092/" + "x" * 201,
        "kafka://user@localhost:9092/x",
        "kafka:localhost",
    ],
)
def test_another_place_is_refused(place: str) -> None:
    assert Topics.is_url(place)
    with pytest.raises(InvalidRequestError, match="CAP-TOPIC: not a URL of topics"):
        Topics.parse(place)


def test_folders_are_no_topics() -> None:
    assert not any(map(Topics.is_url, ("recordings/", "/kafka", "./kafka:", "s3a://kafka/x")))


def test_topic_patterns_match_one_stream_s_workers() -> None:
    topics = Topics("h:1", "a.b")
    assert topics.topic(12) == "a.b-12"
    assert re.fullmatch(topics.pattern, topics.topic(12))
    for other in ("a.b", "axb-1", "a.b-c-1", "a.b-1x"):
        assert not re.fullmatch(topics.pattern, other)


def test_a_head_comes_back() -> None:
    assert TopicHeader.from_text(HEAD.to_text(), "t") == HEAD


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"format": 1}', "no"])
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidRequestError, match="CAP-TOPIC: topic t has no header of a recording"
    ):
        TopicHeader.from_text(text, "t")


def test_pairs_are_in_the_newer_format_alone() -> None:
    time_type = TimeType(TimeType.of(a=Kind.BIGINT, b=Kind.BIGINT).coordinates, PAIR)
    made = replace(HEAD, time_type=time_type, release=Release.V032)
    assert TopicHeader.from_text(made.to_text(), "t") == made
    wrong = json.dumps({**json.loads(made.to_text()), "format": 1})
    with pytest.raises(InvalidRequestError, match="has no header of a recording"):
        TopicHeader.from_text(wrong, "t")


def test_a_newer_format_is_refused() -> None:
    newer = json.dumps({**json.loads(HEAD.to_text()), "format": max(FORMATS) + 1})
    with pytest.raises(InvalidRequestError, match="CAP-TOPIC: topic t is in format 3"):
        TopicHeader.from_text(newer, "t")


def test_the_newest_head_counts_and_two_recordings_are_refused() -> None:
    older = TopicHeader("little", "a1b2", 1, HEAD.time_type, HEAD.columns, {})
    assert newest_header([HEAD.to_text(), older.to_text(), HEAD.to_text()], "t") == HEAD
    other = TopicHeader("little", "ffff", 1, HEAD.time_type, HEAD.columns, {})
    with pytest.raises(
        CheckFailedError, match="CAP-TOPIC: topic t holds messages of two recordings"
    ):
        newest_header([HEAD.to_text(), other.to_text()], "t")
    with pytest.raises(InvalidRequestError, match="CAP-TOPIC: topic t does not exist"):
        newest_header([], "t")


def test_heads_written_singly_name_all_workers() -> None:
    heads = [
        replace(HEAD, commit=commit, workers={worker: label})
        for commit, worker, label in [(3, 2, "c"), (5, 0, "a"), (5, 1, "b")]
    ]
    for order in itertools.permutations(heads):
        actual = newest_header([head.to_text() for head in order], "t")
        assert actual == replace(HEAD, commit=5, workers={0: "a", 1: "b", 2: "c"})


def test_the_format_of_topics_is_the_form_of_their_messages() -> None:
    for release, number in ((Release.V031, 1), (Release.V032, 2)):
        made = replace(HEAD, release=release)
        assert json.loads(made.to_text())["format"] == number
        assert TopicHeader.from_text(made.to_text(), "t") == made
    both = [HEAD.to_text(), replace(HEAD, release=Release.V032).to_text()]
    with pytest.raises(CheckFailedError, match="holds messages of two recordings"):
        newest_header(both, "t")
