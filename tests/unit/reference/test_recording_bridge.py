"""Recordings of timely's kind through graphs, and recordings of what comes out."""

from __future__ import annotations

import io
from collections import Counter

import pyarrow as pa
import pytest

from capstan.core.protocol import Messages
from capstan.core.times import Antichain, Time
from capstan.interop.timely import (
    EventLink,
    EventReader,
    EventTypes,
    EventWriter,
    Frames,
    capture_into,
    extract,
    replay_into,
)
from capstan.pipeline import TIME, DagBuilder, DagExecutor
from capstan.pipeline.graph.errors import LateOutput, SchemaMismatch
from capstan.pipeline.operators import Window, count_rows, sum_of
from tests.reference.recording_bridge import IntoExecutors, SinkCapture
from tests.support.reference_checker import check

ROWS = pa.schema([(TIME, pa.int64()), ("worker", pa.string()), ("n", pa.int64())])
FRAMES = Frames(EventTypes.of("u64", "(string, i64)"))


def counting(worker):
    """A worker of the book's example: 0 to 9, a number and a time at a time."""
    for n in range(10):
        yield Messages.of((n,), [(f"w{worker}", n)])
        yield Antichain.of([(n + 1,)])
    yield Antichain()


def recordings():
    """Five recordings, as files have them."""
    for worker in range(5):
        file = io.BytesIO()
        with EventWriter(file, FRAMES) as writer:
            capture_into(counting(worker), writer)
        file.seek(0)
        yield EventReader(file, FRAMES)


def summing():
    """Sums over four units of time, by worker."""
    return (
        DagBuilder()
        .source("numbers", ROWS)
        .operator("by_four", Window.tumbling(4, [sum_of("n"), count_rows()], by=["worker"]))
        .connect("numbers", "by_four")
        .sink_for("by_four", "sums")
        .build()
    )


@pytest.mark.parametrize("peers", [1, 3, 5, 7])
def test_a_graph_between_recordings(peers):
    executors = [DagExecutor.from_dag(summing(), worker=n) for n in range(peers)]
    links = [EventLink() for _ in range(peers)]
    readers = [link.reader() for link in links]
    sinks = [
        [SinkCapture(executor, "sums", link)]
        for executor, link in zip(executors, links, strict=True)
    ]

    received = replay_into(
        IntoExecutors(executors, "numbers", sinks), list(recordings()), peers=peers
    )

    assert (received.records, received.closed) == (50, True)
    actual = Counter()
    for (capture,), reader in zip(sinks, readers, strict=True):
        events = list(reader)
        verdict = check(events, Time.of(0))
        assert (verdict.valid, verdict.closed) == (True, True)
        assert capture.captured.closed
        assert capture.captured.records == verdict.records
        actual.update((t[0], record) for t, records in extract(events) for record in records)
    sums = [(0, 4, 0 + 1 + 2 + 3, 4), (4, 8, 4 + 5 + 6 + 7, 4), (8, 12, 8 + 9, 2)]
    expected = {(f"w{worker}", *row) for worker in range(5) for row in sums}
    assert {record for _, record in actual} == expected
    assert set(actual.values()) == {1}


def test_what_comes_out_is_told_while_it_goes_on():
    """Rows and watermarks of the sink follow those of the source, step by step."""
    executor = DagExecutor.from_dag(DagBuilder().source("in", ROWS).sink_for("in", "out").build())
    link = EventLink()
    reader = link.reader()
    capture = SinkCapture(executor, "out", link, minimum=2)
    into = IntoExecutors([executor], "in", [[capture]])
    into.messages(0, Messages.of((5,), [("a", 1), ("b", 2)]))
    into.messages(0, Messages.of((6,), []))
    into.advance(0, Antichain.of([(4,)]))
    events = list(reader)
    assert [type(event).__name__ for event in events] == ["Messages", "Progress"]
    assert (events[0].time, events[0].data) == ((5,), (("a", 1), ("b", 2)))
    assert check(events, Time.of(2)).frontier == Antichain.of([(4,)])
    assert not capture.captured.closed


def test_of_nested_times_a_graph_takes_one_coordinate():
    plain = pa.schema([("n", pa.int64())])
    executor = DagExecutor.from_dag(DagBuilder().source("in", plain).sink_for("in", "out").build())
    link = EventLink()
    reader = link.reader()
    into = IntoExecutors([executor], "in", [[SinkCapture(executor, "out", link)]], coordinate=1)
    recording = [
        Messages.of((0, 3), [7]),
        Antichain.of([(0, 5), (4, 2)]),
        Messages.of((4, 2), [8]),
        Antichain(),
    ]
    loops = EventLink()
    events = loops.reader()
    capture_into(recording, loops, (0, 0))
    assert replay_into(into, [list(events)], minimum=(0, 0)).closed
    reported = list(reader)
    assert check(reported, Time.of(0)).closed
    assert extract(reported) == [((2,), (8,)), ((3,), (7,))]


def test_what_does_not_fit_is_refused():
    executor = DagExecutor.from_dag(DagBuilder().source("in", ROWS).sink_for("in", "out").build())
    into = IntoExecutors([executor], "in", [[SinkCapture(executor, "out", EventLink(), 3)]])
    for wrong in (("a", "b"), ("a", 1, 2), "a"):
        with pytest.raises(SchemaMismatch, match="records at in"):
            into.messages(0, Messages.of((5,), [wrong]))
    with pytest.raises(LateOutput):
        into.messages(0, Messages.of((1,), [("a", 1)]))
