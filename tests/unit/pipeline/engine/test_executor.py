"""The executor where it does better than what it follows, and where it refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from capstan.pipeline import (
    END,
    GLOBAL,
    WEIGHT,
    CheckpointBarrier,
    DagBuilder,
    DagCheckpoint,
    Event,
    Operator,
    OutputKey,
    OutputKind,
)
from capstan.pipeline.graph.errors import (
    BackpressureFull,
    BarrierMismatch,
    CheckpointCorrupt,
    CheckpointInProgress,
    NodeNotFound,
    OperatorFailed,
    RestoreFailed,
    SchemaMismatch,
)
from tests.reference.checkpoint_coordinator import CheckpointCoordinator
from tests.reference.executor import ScenarioExecutor


def rows(*values):
    return pa.record_batch({"value": pa.array(values, pa.int64())})


def event(time, *values):
    return Event(time, rows(*values))


def shown(events):
    return [(e.time, *e.batch.column("value").to_pylist()) for e in events]


class Does(Operator):
    """Calls a function with each batch; counts them as its state."""

    def __init__(self, does=lambda batch, context: context.emit(batch), restorable=True):
        self.does, self.restorable, self.count = does, restorable, 0

    def process(self, batch, context):
        self.count += 1
        self.does(batch, context)

    def on_timer(self, timer, context):
        context.emit(rows(timer.time))

    def checkpoint(self):
        return str(self.count).encode()

    def restore(self, version, state):
        if not self.restorable:
            raise ValueError("boom")
        self.count = int(state)


def linear(*middle):
    builder = DagBuilder().source("src")
    before = "src"
    for name in middle or ("op",):
        builder.operator(name, key=GLOBAL).connect(before, name)
        before = name
    return builder.sink_for(before, "out").build()


def joined():
    builder = DagBuilder().source("a").source("b").operator("join", key=GLOBAL)
    return builder.connect("a", "join").connect("b", "join").sink_for("join", "out").build()


def running(dag, capacity=2048, worker=0, **operators):
    executor = ScenarioExecutor.from_dag(dag, capacity=capacity, worker=worker)
    for name, operator in operators.items():
        executor.register_operator(name, operator)
    return executor


def after(delay):
    return Does(lambda batch, context: context.set_timer(context.time + delay))


def failing(batch, context):
    raise KeyError("no such gate")


def test_unknown_nodes_are_errors_everywhere():
    executor = running(linear())
    calls = [
        lambda: executor.process_event("none", event(1, 1)),
        lambda: executor.process_event(17, event(1, 1)),
        lambda: executor.process_watermark("none", 1),
        lambda: executor.register_operator("none", Does()),
        lambda: executor.inject_events("none", []),
        lambda: executor.take_sink_outputs("none"),
        lambda: executor.node_metrics("none"),
        lambda: executor.input_count("none"),
        lambda: executor.watermark("none"),
        lambda: executor.effective_watermark("none"),
    ]
    for call in calls:
        with pytest.raises(NodeNotFound):
            call()


def test_nodes_are_named_by_id_or_name():
    executor = running(joined())
    assert executor.node_metrics("join") == executor.node_metrics(2)
    assert [executor.input_count(n) for n in ("a", "join", "out")] == [0, 2, 1]


def test_a_failing_operator_is_named_with_time_and_worker():
    executor = running(linear(), worker=3, op=Does(failing))
    with pytest.raises(OperatorFailed) as caught:
        executor.process_event("src", event(17, 1))
    assert caught.value.fields == {
        "node": "op",
        "time": 17,
        "worker": 3,
        "port": 0,
        "cause": "KeyError: 'no such gate'",
    }
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.exit_code == 5


def test_nothing_goes_on_after_a_failure_until_a_restore():
    executor = running(linear(), op=Does())
    saved = executor.checkpoint()
    executor.register_operator("op", Does(failing))
    with pytest.raises(OperatorFailed):
        executor.process_event("src", event(17, 1))
    for call in (
        lambda: executor.process_event("src", event(18, 1)),
        lambda: executor.process_watermark("src", 20),
        lambda: executor.fire_timers(20),
        executor.checkpoint,
    ):
        with pytest.raises(OperatorFailed, match="at time 17"):
            call()
    executor.register_operator("op", Does())
    executor.restore(saved)
    executor.process_event("src", event(18, 1))
    assert shown(executor.take_sink_outputs("out")) == [(18, 1)]


def test_a_timer_that_fails_is_named_with_its_own_time():
    class Late(Does):
        def on_timer(self, timer, context):
            raise ValueError("late")

    executor = running(linear(), op=Late(lambda batch, context: context.set_timer(50)))
    executor.process_event("src", event(1, 1))
    with pytest.raises(OperatorFailed) as caught:
        executor.process_watermark("src", 99)
    assert caught.value.fields["time"] == 50


def test_a_failing_reader_is_named_instead_of_its_writer():
    twice = Does(lambda batch, context: [context.emit(batch) for _ in range(3)])
    executor = running(linear("many", "bad"), capacity=1, many=twice, bad=Does(failing))
    with pytest.raises(OperatorFailed) as caught:
        executor.process_event("src", event(1, 1))
    assert caught.value.fields["node"] == "bad"


def test_timers_of_a_join_wait_for_the_joins_own_watermark():
    executor = running(joined(), join=after(10))
    executor.process_event("a", event(0, 1))
    executor.process_watermark("a", 100)
    assert executor.take_sink_outputs("out") == []
    executor.process_watermark("b", 9)
    assert executor.take_sink_outputs("out") == []
    executor.process_watermark("b", 10)
    assert shown(executor.take_sink_outputs("out")) == [(10, 10)]


def test_timers_fire_once_in_order_even_behind_the_watermark():
    several = Does(
        lambda batch, context: [context.set_timer(at) for at in (30, 10, 20, 10, context.time)]
    )
    executor = running(linear(), op=several)
    executor.process_event("src", event(25, 1))
    executor.process_watermark("src", 26)
    assert shown(executor.take_sink_outputs("out")) == [(10, 10), (20, 20), (25, 25)]
    executor.process_event("src", event(26, 1))
    assert [time for time, _ in shown(executor.take_sink_outputs("out"))] == [10, 20, 26]
    assert executor.node_metrics("op").timers_fired == 6


def test_a_timer_cannot_set_itself_again():
    class Again(Does):
        def on_timer(self, timer, context):
            context.set_timer(timer.time)

    executor = running(linear(), op=Again(lambda batch, context: context.set_timer(5)))
    executor.process_event("src", event(1, 1))
    with pytest.raises(OperatorFailed, match="while the one for 5 fires"):
        executor.process_watermark("src", 5)


def test_window_results_precede_the_watermark_that_closed_them():
    seen = []

    class Watching(Does):
        def process(self, batch, context):
            seen.append((context.time, context.watermark))

        def on_watermark(self, watermark, context):
            seen.append(watermark)

    executor = running(linear("op", "next"), op=after(10), next=Watching())
    executor.process_event("src", event(0, 1))
    executor.process_watermark("src", 10)
    assert seen == [(10, None), 10]


def test_a_full_queue_stalls_the_writer_and_loses_nothing():
    many = Does(lambda batch, context: [context.emit(rows(n)) for n in range(10)])
    executor = running(linear("many", "op"), capacity=4, many=many, op=Does())
    executor.process_event("src", event(1, 1))
    assert [value for _, value in shown(executor.take_sink_outputs("out"))] == list(range(10))
    # The queue of `op` is emptied before the 5th and the 9th, that of `out` as it fills up then.
    assert executor.metrics().backpressure_stalls == 4
    assert executor.metrics().events_processed == 22


def test_more_than_fits_cannot_be_injected():
    executor = running(linear(), capacity=2)
    executor.inject_events("op", [event(1, 1)])
    with pytest.raises(BackpressureFull) as caught:
        executor.inject_events("op", [event(2, 2), event(3, 3)])
    assert caught.value.fields == {"capacity": 2}
    executor.process_event("src", event(4, 4))
    assert shown(executor.take_sink_outputs("out")) == [(1, 1), (4, 4)]


def test_everything_put_aside_is_taken_with_its_name():
    def aside(batch, context):
        context.side("odd", batch)
        context.side("even", batch)
        context.late(batch)
        context.change(batch)
        context.replace(rows(1), rows(2))
        context.emit(batch)

    executor = running(linear(), op=Does(aside))
    executor.process_event("src", event(7, 5))
    taken = executor.take_all_sink_outputs()
    assert {key: shown(events) for key, events in taken.items()} == {
        OutputKey("op", OutputKind.LATE): [(7, 5)],
        OutputKey("op", OutputKind.SIDE, "even"): [(7, 5)],
        OutputKey("op", OutputKind.SIDE, "odd"): [(7, 5)],
        OutputKey("op", OutputKind.CHANGE): [(7, 5), (7, 1), (7, 2)],
        OutputKey("out"): [(7, 5)],
    }
    changes = taken[OutputKey("op", OutputKind.CHANGE)]
    assert [e.batch.column(WEIGHT)[0].as_py() for e in changes] == [1, -1, 1]
    assert executor.take_all_sink_outputs() == {}
    metrics = executor.node_metrics("op")
    assert (metrics.late_rows, metrics.side_rows, metrics.rows_out) == (1, 2, 1)


def test_a_full_changelog_fails_and_a_disabled_one_does_not():
    executor = running(linear(), op=Does(lambda batch, context: context.change(batch)))
    executor.changelog.switch("op", on=False)
    executor.process_event("src", event(1, 1))
    assert executor.take_sink_outputs("op") == []
    executor.changelog.switch("op", on=True)
    executor.changelog.capacity = 1
    executor.process_event("src", event(2, 2))
    with pytest.raises(OperatorFailed, match="BackpressureFull"):
        executor.process_event("src", event(3, 3))


def test_rows_with_other_columns_than_declared_are_refused():
    schema = pa.schema([("value", pa.int64())])
    builder = DagBuilder().source("src", schema).stateless_operator("op", schema=schema)
    executor = running(builder.connect("src", "op").sink_for("op", "out").build())
    with pytest.raises(SchemaMismatch, match="rows at src have column 0"):
        executor.process_event("src", Event(1, pa.record_batch({"other": [1]})))
    wrong = Does(lambda batch, context: context.emit(pa.record_batch({"value": ["text"]})))
    executor.register_operator("op", wrong)
    with pytest.raises(OperatorFailed, match="rows at op have column 0 is value string"):
        executor.process_event("src", event(1, 1))


def test_batches_without_rows_are_not_sent():
    executor = running(linear(), op=Does(lambda batch, context: context.emit(batch.slice(0, 0))))
    executor.process_event("src", event(1, 1))
    assert executor.take_sink_outputs("out") == []
    assert executor.node_metrics("op").events_out == 0


def test_a_checkpoint_has_timers_watermarks_queues_and_outputs():
    def does(batch, context):
        if context.time == 1:
            context.set_timer(50)
        context.emit(batch)
        context.late(batch)
        context.change(batch, -1)

    before = running(linear(), op=Does(does))
    before.process_event("src", event(1, 1))
    before.process_watermark("src", 40)
    before.inject_events("op", [event(41, 2)])
    saved = DagCheckpoint.from_bytes(before.checkpoint().to_bytes())
    again = running(linear(), op=Does(does))
    again.restore(saved)
    assert again.checkpoint_watermarks() == (40, 40, 40)
    assert again.process_watermark("src", 39) == []
    again.process_watermark("src", 50)
    taken = {key.kind.value: shown(v) for key, v in again.take_all_sink_outputs().items()}
    assert taken == {
        "late": [(1, 1), (41, 2)],
        "change": [(1, 1), (41, 2)],
        "data": [(1, 1), (41, 2), (50, 50)],
    }


def test_a_restore_is_all_or_nothing():
    dag = linear("one", "two")
    saved = running(dag, one=Does(), two=Does()).checkpoint()
    executor = running(dag, one=(one := Does()), two=(two := Does(restorable=False)))
    executor.process_event("src", event(5, 5))
    executor.process_watermark("src", 6)
    with pytest.raises(RestoreFailed) as caught:
        executor.restore(saved)
    assert caught.value.fields == {"node": "two", "reason": "boom"}
    assert (one.count, two.count) == (1, 1)
    assert executor.checkpoint_watermarks() == (6, 6, 6, 6)
    assert shown(executor.take_sink_outputs("out")) == [(5, 5)]


def test_a_restore_changes_nothing_where_it_could_not_be_undone():
    dag = linear("one", "two")
    saved = running(dag, one=Does(), two=Does()).checkpoint()
    executor = running(dag, one=(one := Does()), two=(two := Does()))
    executor.process_event("src", event(5, 5))

    def cannot():
        raise ValueError("boom")

    two.checkpoint = cannot
    with pytest.raises(RestoreFailed, match="two.*cannot be saved for an undo: boom"):
        executor.restore(saved)
    assert (one.count, two.count) == (1, 1)


@pytest.mark.parametrize(
    ("narrow", "reason"),
    [
        (lambda log: setattr(log, "enabled", False), "off, and 2 changes would be lost"),
        (lambda log: log.switch("op", on=False), "off, and 2 changes would be lost"),
        (lambda log: setattr(log, "capacity", 1), "holds 1 of 2 changes"),
    ],
)
def test_a_restore_loses_no_changes(narrow, reason):
    def fresh():
        made = running(linear(), op=Does(lambda batch, context: context.change(batch)))
        made.process_event("src", event(1, 1))
        return made

    before, executor = fresh(), fresh()
    before.process_event("src", event(2, 2))
    narrow(executor.changelog)
    with pytest.raises(RestoreFailed, match=reason):
        executor.restore(before.checkpoint())
    assert executor.checkpoint().operators["op"].data == b"1"
    assert shown(executor.take_sink_outputs("op")) == [(1, 1)]


@pytest.mark.parametrize(
    ("saved", "into", "reason"),
    [
        (("one", "two"), ("one",), "the graph has no such node"),
        (("one",), ("one", "two"), "the checkpoint has no such node"),
    ],
)
def test_another_graphs_checkpoint_is_refused(saved, into, reason):
    def fresh(names):
        return running(linear(*names), **{name: Does() for name in names})

    before = fresh(saved)
    before.process_event("src", event(1, 1))
    taken = before.checkpoint()
    executor = fresh(into)
    with pytest.raises(RestoreFailed) as caught:
        executor.restore(taken)
    assert caught.value.fields == {"node": "two", "reason": reason}


def test_state_needs_an_operator_and_an_operator_its_state():
    dag = linear()
    with_state, without = running(dag, op=Does()).checkpoint(), running(dag).checkpoint()
    with pytest.raises(RestoreFailed, match="no operator is registered"):
        running(dag).restore(with_state)
    with pytest.raises(RestoreFailed, match="no state for its operator"):
        running(dag, op=Does()).restore(without)


def test_a_damaged_checkpoint_is_refused():
    whole = running(linear(), op=Does()).checkpoint().to_bytes()
    for damaged in (whole[:-1], whole[:40] + b"x" + whole[41:], b"none" + whole[4:], b""):
        with pytest.raises(CheckpointCorrupt):
            DagCheckpoint.from_bytes(damaged)
    assert DagCheckpoint.from_bytes(whole).to_bytes() == whole


def test_watermarks_of_another_graph_are_refused():
    with pytest.raises(RestoreFailed, match="2 watermarks for 3 nodes"):
        running(linear()).restore_watermarks([1, 2])


def test_sources_behind_a_barrier_wait_in_the_order_of_arrival():
    executor = running(joined(), join=Does())
    barrier = CheckpointBarrier(1, 1)
    executor.process_event("a", event(10, 1))
    assert executor.process_checkpoint_barrier(barrier, "a") is None
    executor.process_event("a", event(20, 2))
    executor.process_watermark("a", 20)
    executor.process_event("a", event(15, 3))
    executor.process_event("b", event(11, 4))
    assert shown(executor.take_sink_outputs("out")) == [(10, 1), (11, 4)]
    with pytest.raises(CheckpointInProgress):
        executor.checkpoint()
    saved = executor.process_checkpoint_barrier(barrier, "b")
    assert saved.checkpoint_id == 1
    assert saved.operators["join"].data == b"2"
    assert saved.nodes["a"].watermark is None
    assert shown(executor.take_sink_outputs("out")) == [(20, 2), (15, 3)]
    assert executor.watermark("a") == 20


def test_barriers_that_do_not_belong_are_refused():
    executor = running(joined(), join=Does())
    executor.process_checkpoint_barrier(CheckpointBarrier(2, 1), "a")
    for barrier, source in (
        (CheckpointBarrier(3, 2), "b"),
        (CheckpointBarrier(2, 1), "a"),
        (CheckpointBarrier(2, 1), "join"),
    ):
        with pytest.raises(BarrierMismatch):
            executor.process_checkpoint_barrier(barrier, source)
    assert executor.process_checkpoint_barrier(CheckpointBarrier(2, 1)).checkpoint_id == 2
    with pytest.raises(BarrierMismatch) as caught:
        executor.process_checkpoint_barrier(CheckpointBarrier(2, 1))
    assert caught.value.fields == {"expected": 3, "found": 2}


def test_no_more_waits_behind_a_barrier_than_fits():
    executor = running(joined(), capacity=1)
    executor.process_checkpoint_barrier(CheckpointBarrier(1, 1), "a")
    executor.process_event("a", event(1, 1))
    with pytest.raises(BackpressureFull):
        executor.process_watermark("a", 5)


def test_a_hold_limits_the_watermark_of_readers():
    class Holding(Does):
        def hold(self):
            return 7 if self.count else None

    executor = running(linear(), op=Holding(lambda batch, context: None))
    executor.process_watermark("src", 5)
    assert executor.checkpoint_watermarks() == (5, 5, 5)
    executor.process_event("src", event(7, 1))
    executor.process_watermark("src", 20)
    assert executor.checkpoint_watermarks() == (20, 20, 7)
    again = running(linear(), op=Holding(lambda batch, context: None))
    again.restore(executor.checkpoint())
    again.process_watermark("src", 30)
    assert again.checkpoint_watermarks() == (30, 30, 7)


def test_the_end_reaches_all_nodes():
    executor = running(joined())
    moved = executor.finish()
    assert moved == [(0, END), (1, END), (2, END), (3, END)]


def test_a_checkpoint_needs_reports_of_all_workers():
    dag = linear()
    workers = {str(n): running(dag, worker=n, op=Does()) for n in range(2)}
    coordinator = CheckpointCoordinator(workers)
    barrier = coordinator.trigger()
    whole = []
    for number, (name, executor) in enumerate(workers.items()):
        for time in range(number + 1):
            executor.process_event("src", event(time, 1))
        saved = executor.process_checkpoint_barrier(barrier)
        whole.append(coordinator.on_node_snapshot_complete(name, saved.operators["op"]))
    assert whole == [False, True]
    states = coordinator.finalize().states
    assert {name: state.data for name, state in states.items()} == {"0": b"1", "1": b"2"}
