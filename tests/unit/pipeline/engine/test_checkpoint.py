"""Coordinators, aligners, rings and logs where no scenario of others speaks of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from capstan.pipeline import (
    BarrierAligner,
    Change,
    Changelog,
    CheckpointBarrier,
    DagBuilder,
    Event,
    OperatorState,
    WatermarkTracker,
)
from capstan.pipeline.graph.errors import (
    BackpressureFull,
    BarrierMismatch,
    CheckpointInProgress,
    LateOutput,
    NodeNotFound,
)
from capstan.pipeline.graph.events import END, TIME
from tests.reference.checkpoint_coordinator import CheckpointCoordinator
from tests.reference.errors import CheckpointIncomplete, CheckpointNotFound, NoCheckpointInProgress
from tests.reference.multicast_buffer import MulticastBuffer
from tests.reference.sink_recorder import SinkRecorder


def event(time, value=0):
    return Event(time, pa.record_batch({"value": [value]}))


def finished(coordinator):
    coordinator.trigger()
    for node in coordinator.nodes:
        coordinator.on_node_snapshot_complete(node, OperatorState(1, 1, node.encode()))
    return coordinator.finalize()


def test_one_checkpoint_at_a_time():
    coordinator = CheckpointCoordinator(["a", "b"])
    barrier = coordinator.trigger()
    with pytest.raises(CheckpointInProgress) as caught:
        coordinator.trigger()
    assert caught.value.fields == {"epoch": 1}
    assert coordinator.pending == barrier
    coordinator.abandon()
    with pytest.raises(NoCheckpointInProgress):
        coordinator.finalize()
    assert coordinator.trigger() == CheckpointBarrier(2, 2)


def test_a_checkpoint_that_lacks_some_goes_on():
    coordinator = CheckpointCoordinator(["a", "b"])
    coordinator.trigger()
    coordinator.on_node_snapshot_complete("b")
    with pytest.raises(CheckpointIncomplete) as caught:
        coordinator.finalize()
    assert caught.value.fields == {"pending": ["a"]}
    assert coordinator.on_node_snapshot_complete("a")
    assert coordinator.finalize().states == {"a": None, "b": None}


def test_the_newest_checkpoints_are_kept_and_found_by_id():
    coordinator = CheckpointCoordinator(["a"], max_retained=2)
    assert coordinator.latest is None
    results = [finished(coordinator) for _ in range(3)]
    assert coordinator.completed == tuple(results[1:])
    assert coordinator.latest == coordinator.checkpoint(3) == results[2]
    assert results[2].states["a"].data == b"a"
    with pytest.raises(CheckpointNotFound) as caught:
        coordinator.checkpoint(1)
    assert caught.value.fields == {"checkpoint": 1}


def test_first_reports_count_and_strangers_are_refused():
    coordinator = CheckpointCoordinator(["a"])
    coordinator.trigger()
    coordinator.on_node_snapshot_complete("a", OperatorState(1, 1, b"first"))
    coordinator.on_node_snapshot_complete("a", OperatorState(1, 1, b"second"))
    with pytest.raises(NodeNotFound):
        coordinator.on_node_snapshot_complete("stranger")
    assert coordinator.finalize().states["a"].data == b"first"


def test_held_items_survive_an_abandoned_checkpoint():
    aligner = BarrierAligner(2)
    aligner.process_barrier("x", CheckpointBarrier(1, 1))
    later, sooner = event(9), event(3)
    assert aligner.buffer_if_aligned("x", later)
    assert aligner.buffer_if_aligned("x", sooner)
    assert aligner.complete_checkpoint() == (sooner, later)
    assert aligner.pending is None
    assert not aligner.behind("x")


def test_a_source_cannot_reach_one_barrier_twice():
    aligner = BarrierAligner(2)
    aligner.process_barrier("x", CheckpointBarrier(1, 1))
    with pytest.raises(BarrierMismatch):
        aligner.process_barrier("x", CheckpointBarrier(1, 1))


def test_rings_need_readers_and_free_read_slots():
    with pytest.raises(ValueError, match="at least one reader"):
        MulticastBuffer(2, 0)
    ring = MulticastBuffer(1, 2)
    ring.publish("first")
    with pytest.raises(BackpressureFull) as caught:
        ring.publish("second")
    assert caught.value.fields == {"capacity": 1}
    assert (ring.consume(0), ring.free, ring.consume(1), ring.free) == ("first", 0, "first", 1)


def test_logs_are_switched_as_a_whole_and_by_node():
    log = Changelog(["a", "b"])
    log.switch("a", on=False)
    assert [log.record(node, Change(event(1), 1)) for node in "ab"] == [False, True]
    log.enabled = False
    assert not log.record("b", Change(event(2), 1))
    log.enabled = True
    log.switch("a", on=True)
    assert log.record_retraction("a", event(3), event(4))
    assert [change.event.time for change in log.peek("a")] == [3, 4]
    assert [change.weight for change in log.drain("a")] == [-1, 1]
    assert [len(log.drain(node)) for node in "ab"] == [0, 1]
    for call in (log.drain, log.recording, lambda node: log.record(node, Change(event(1), 1))):
        with pytest.raises(NodeNotFound):
            call("none")
    with pytest.raises(ValueError, match="at least 1"):
        Changelog(["a"], 0)


def test_a_tracker_alone_moves_all_that_follow():
    builder = DagBuilder().source("a").source("b").stateless_operator("join")
    dag = builder.connect("a", "join").connect("b", "join").sink_for("join", "out").build()
    tracker = WatermarkTracker(dag)

    def moved():
        return [node for node in dag.execution_order if tracker.follow(node)]

    assert (tracker.raise_to(0, 10), tracker.raise_to(0, 9), moved()) == (True, False, [])
    assert (tracker.raise_to(1, 4), moved(), tracker.get("out")) == (True, [2, 3], 4)
    tracker.hold(1, 5)
    assert (tracker.raise_to(1, 12), moved(), tracker.get("out")) == (True, [2, 3], 5)
    assert tracker.effective_watermark("join") == 5
    tracker.hold(1, None)
    assert tracker.effective_watermark("join") == 10


def recorded(recorder, outputs, watermark):
    return [entry.event for entry in recorder.record(outputs, watermark)]


def test_a_sink_that_goes_back_is_not_recorded():
    recorder = SinkRecorder("out", minimum=5)
    with pytest.raises(LateOutput) as caught:
        recorded(recorder, [event(4)], None)
    assert caught.value.fields == {"node": "out", "time": 4}
    assert recorded(recorder, [event(5)], 3) == recorded(SinkRecorder("x", 5), [event(5)], None)
    recorded(recorder, [], 9)
    with pytest.raises(LateOutput, match="was at 9"):
        recorded(recorder, [event(8)], 9)
    (closing,) = recorded(recorder, [], END)
    assert closing.updates == (((9,), -1),)
    assert recorded(recorder, [], END) == []
    with pytest.raises(LateOutput, match="has ended"):
        recorded(recorder, [event(10)], END)


def test_a_batch_of_several_times_is_several_messages():
    batch = pa.record_batch({"value": [1, 2, 3], TIME: [7, 5, 7]})
    entries = list(SinkRecorder("out").record([Event(5, batch)], 6))
    assert [(e.event.time, e.rows.column("value").to_pylist()) for e in entries[:2]] == [
        ((5,), [2]),
        ((7,), [1, 3]),
    ]
    assert entries[2].event.updates == (((6,), 1), ((0,), -1))
