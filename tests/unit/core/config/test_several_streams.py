"""Declared replays of several streams, and texts that name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.core.config import joined_streams, parse_streams, source_of, split_streams
from capstan.core.config.stream_names import keyed_streams, parse_pairs
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from tests.unit.core.config.loading.test_loader import EPOCHS, read, refused
from tests.unit.core.config.test_json_schema import problems

SHOP = """\
streams:
  orders:
    source: {format: delta, path: /data/orders}
    workers: {by: column, column: shop, labels: [oslo, rome]}
    time: {domain: event, column: at, every: 1 hour}
  payments:
    source: {format: delta, path: /data/payments}
    workers: {by: key, columns: [id], count: 4}
    time: {domain: event, column: at, every: 2 hours}
"""
PIPELINE = "pipelines: {paid: 'shop_pipelines:paid'}\n"


def replay(text: str) -> str:
    return f"{SHOP}{PIPELINE}replays:\n  joined: {{{text}, target: t}}\n"


def test_a_replay_names_a_stream_for_each_source(tmp_path: Path) -> None:
    text = replay("streams: {sold: orders, paid: payments}, pipeline: paid, follow: nightly")
    declared = read(tmp_path, text).replay("joined")
    assert declared.keyed == {"sold": "orders", "paid": "payments"}
    assert declared.stream == "payments+orders"
    assert declared.inputs == ("payments", "orders")
    request = Request.of_replay(declared, follow=declared.follow)
    assert (request.stream, request.streams) == (declared.stream, declared.keyed)
    merged = read(tmp_path, replay("streams: {sold: [orders, payments]}, pipeline: paid"))
    assert Request.of_replay(merged.replay("joined")).streams == {
        "sold/orders": "orders",
        "sold/payments": "payments",
    }
    assert merged.replay("joined").inputs == ("orders", "payments")
    single = read(tmp_path, replay("stream: orders")).replay("joined")
    assert (single.keyed, single.inputs) == ({}, ("orders",))


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("streams: {sold: orders}, pipeline: paid", "replays.joined", "streams names orders alone"),
        ("streams: {a: orders, b: payments}", "replays.joined", "has streams but no pipeline"),
        (
            "stream: orders, streams: {a: orders, b: payments}, pipeline: paid",
            "replays.joined",
            "has a stream and streams; remove one of them",
        ),
        (
            "streams: {a: orders, b: paymnts}, pipeline: paid",
            "replays.joined.streams",
            "no stream is declared as 'paymnts', did you mean 'payments'?",
        ),
        (
            "streams: {a: orders, b: payments}, pipeline: paid, since: '2024-01-01T01:00:00Z'",
            "replays.joined.since",
            "the times of payments",
        ),
        (
            "streams: {a: orders, b: payments}, pipeline: paid, workers: [nowhere]",
            "replays.joined.workers",
            "'nowhere' is not a worker of orders",
        ),
        (
            "streams: {a: orders, b: payments}, pipeline: paid, workers: oslo, workers_of: {b: 9}",
            "replays.joined",
            "chosen both by workers and by workers_of",
        ),
        (
            "streams: {a: orders, b: payments}, pipeline: paid, workers_of: {c: oslo}",
            "replays.joined",
            "workers_of names c, and the streams are those for a, b",
        ),
        ("stream: orders, workers_of: {orders: oslo}", "replays.joined", "is for several streams"),
        (
            "streams: {a: orders, b: payments}, pipeline: paid, workers_of: {a: [osla]}",
            "replays.joined.workers_of",
            "a: 'osla' is not a worker of orders, did you mean 'oslo'?",
        ),
        (
            "streams: {a: orders, b: payments}, pipeline: paid, workers_of: {a: []}",
            "replays.joined.workers_of.a",
            "is empty",
        ),
        ("streams: {a: [orders, orders]}, pipeline: paid", "replays.joined.streams.a", "twice"),
        ("streams: {a: []}, pipeline: paid", "replays.joined.streams.a", "is empty"),
        ("streams: {a/b: orders, c: payments}, pipeline: paid", "replays.joined", "'a/b' does not"),
        ("streams: [orders, payments], pipeline: paid", "replays.joined.streams", "a mapping"),
        ("pipeline: paid", "replays.joined.stream", "is missing"),
    ],
)
def test_what_cannot_be_replayed_together_is_refused(
    tmp_path: Path, text: str, key: str, said: str
) -> None:
    _, where, problem = refused(tmp_path, replay(text))
    assert where == key
    assert said in problem


def test_workers_are_chosen_stream_by_stream(tmp_path: Path) -> None:
    streams = "streams: {a: [orders, payments]}, pipeline: paid"
    text = replay(f"{streams}, workers_of: {{a/orders: oslo, a/payments: [1, 2]}}")
    declared = read(tmp_path, text).replay("joined")
    chosen = {"a/orders": ("oslo",), "a/payments": ("1", "2")}
    assert declared.workers_of == Request.of_replay(declared).workers_of == chosen
    assert declared.chosen == ("a/orders/oslo", "a/payments/1", "a/payments/2")


def test_streams_with_other_domains_of_time_are_refused(tmp_path: Path) -> None:
    text = replay("streams: {a: orders, b: clicks}, pipeline: paid")
    _, _, problem = refused(tmp_path, text.replace(PIPELINE, EPOCHS + PIPELINE))
    assert problem.startswith("orders has times of domain event, and clicks of domain epoch")


def test_the_schema_for_editors_takes_one_or_several() -> None:
    several = {"streams": {"a": "orders", "b": "payments"}, "pipeline": "paid", "target": "t"}
    assert problems({"replays": {"joined": several}}) == []
    assert problems({"replays": {"joined": {"stream": "orders", "target": "t"}}}) == []
    merged = {**several, "streams": {"a": ["orders", "sales"]}}
    assert problems({"replays": {"joined": merged}}) == []
    assert problems({"replays": {"joined": {"target": "t"}}})
    assert problems({"replays": {"joined": {**several, "stream": "orders"}}})


def test_joined_stream_names_follow_source_order() -> None:
    assert joined_streams({"b": "x", "a": "y"}) == "y+x"
    assert split_streams("y+x") == ("y", "x")
    assert split_streams("orders") == ("orders",)
    assert parse_streams("a=y, b = x") == {"a": "y", "b": "x"}
    assert parse_streams("orders") == {}
    several = parse_streams("a=y+z,b=x")
    assert (
        several
        == {"a/y": "y", "a/z": "z", "b": "x"}
        == keyed_streams({"a": ["y", "z"], "b": ["x"]})
    )
    assert joined_streams(several) == "y+z+x"
    assert [*map(source_of, several)] == ["a", "a", "b"]
    assert parse_pairs("a/y=3") == {"a/y": "3"}
    for text in ("a=", "=x", "a=x,", "a=x,a=y", "a=x,b"):
        with pytest.raises(InvalidRequestError, match="^CAP-STREAMS"):
            parse_streams(text)
