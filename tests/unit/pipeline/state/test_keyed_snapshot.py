"""Snapshots: what is refused, by name, and that a restore is all or nothing."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from capstan.pipeline import (
    END,
    GLOBAL,
    TIME,
    DagBuilder,
    DagCheckpoint,
    DagExecutor,
    Event,
    Key,
    KeyedAggregate,
    KeyedLogic,
    NodeCheckpoint,
    Operator,
    StatefulLogic,
    Timer,
    plan_stages,
)
from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.errors import OperatorFailed, RestoreFailed, StateChanged
from capstan.pipeline.operators import (
    Deduplicate,
    SessionWindow,
    TopN,
    Window,
    count_rows,
    last_of,
    sum_of,
)
from capstan.pipeline.state.chunk_rescale import Arrivals, merge_headers, rescale_chunk
from capstan.pipeline.state.chunks import assemble, split
from capstan.pipeline.state.codec import PLAIN, Encoded, codec_named, register_codec
from capstan.pipeline.state.errors import Misplaced, NotKeyed, NotWhole
from tests.reference.executor import ScenarioExecutor
from tests.reference.key_placement import Modulo, Rendezvous
from tests.reference.keyed_snapshot import KeyedSnapshot

SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64()), (TIME, pa.int64())])
TOTAL = pa.schema([("total", pa.int64())])


class Total(StatefulLogic):
    def on_data(self, message, state, output):
        state = (state or 0) + message.value
        output.emit(message.key, state, message.time)
        return state


class Later(Total):
    version = 2


class Migrated(Later):
    def migrate(self, version, state):
        return state * 1000


class Objects(StatefulLogic):
    def on_data(self, message, state, output):
        return object()


def logic(made):
    return KeyedLogic(made, ("key",), ("number",), TOTAL)


def graph(spec, schema=SCHEMA):
    builder = DagBuilder().source("in", schema).operator("op", spec).connect("in", "op")
    return builder.sink_for("op", "out").build()


def executor(spec, *rows):
    made = DagExecutor.from_dag(graph(spec))
    put(made, *rows)
    return made


def put(made, *rows):
    for key, number, time in rows:
        batch = pa.record_batch([pa.array([v]) for v in (key, number, time)], schema=SCHEMA)
        made.process_event("in", Event(time, batch))
        made.process_watermark("in", time + 1)


def taken(made):
    return [row for event in made.take_sink_outputs("out") for row in event.batch.to_pylist()]


def checkpoint_of(spec, *rows):
    made = executor(spec, *rows)
    made.take_all_sink_outputs()
    return made.checkpoint()


ROWS = (("a", 1, 1), ("b", 2, 2), ("a", 3, 3))


def test_states_of_other_versions_are_refused():
    made = executor(logic(Later()), ("z", 7, 3))
    before = made.checkpoint()
    with pytest.raises(RestoreFailed, match="op.*version 1.*has 2"):
        made.restore(checkpoint_of(logic(Total()), *ROWS))
    assert made.checkpoint() == before


def test_a_state_of_another_version_is_migrated():
    made = executor(logic(Migrated()))
    made.restore(checkpoint_of(logic(Total()), *ROWS))
    put(made, ("a", 5, 4))
    assert taken(made)[-1]["total"] == 4005


def test_a_state_that_cannot_be_written_stops_the_checkpoint():
    with pytest.raises(OperatorFailed, match="StateLost.*Objects.*'a'"):
        executor(logic(Objects()), *ROWS).checkpoint()


def test_a_state_that_cannot_be_read_back_stops_the_restore():
    known = checkpoint_of(logic(Total()), *ROWS)
    rows, kept, edge = tables_from_bytes(known.nodes["op"].state.data)
    at = kept.schema.get_field_index("#state")
    broken = kept.set_column(at, kept.schema.field(at), pa.array([b"1", b"{"], pa.binary()))
    with pytest.raises(RestoreFailed, match="op.*'b'.*cannot be decoded"):
        executor(logic(Total())).restore(with_state(known, [rows, broken, edge]))


def unsigned(checkpoint):
    """The checkpoint as one that says nothing of what its states depend on."""
    node = checkpoint.nodes["op"]
    state = replace(node.state, signature=None)
    return replace(checkpoint, nodes={**checkpoint.nodes, "op": replace(node, state=state)})


def with_state(checkpoint, tables):
    node = checkpoint.nodes["op"]
    state = replace(node.state, data=tables_to_bytes(tables))
    return replace(checkpoint, nodes={**checkpoint.nodes, "op": replace(node, state=state)})


def test_a_state_of_other_aggregates_is_refused():
    first = KeyedAggregate((sum_of("number"),), ("key",))
    other = KeyedAggregate((last_of("number"),), ("key",))
    kept = checkpoint_of(first, *ROWS)
    with pytest.raises(StateChanged, match="op has changed since.*aggregates was.*sum_number"):
        executor(other).restore(kept)
    with pytest.raises(RestoreFailed, match="other aggregates"):
        executor(other).restore(unsigned(kept))


def test_a_sum_that_does_not_fit_fails_and_never_wraps():
    made = executor(KeyedAggregate((sum_of("number"),), ("key",)), ("a", 2**63 - 1, 1))
    with pytest.raises(OperatorFailed):
        put(made, ("a", 1, 2))
        made.finish()


@pytest.mark.parametrize(
    "make",
    [
        lambda: KeyedAggregate((count_rows(),), ()),
        lambda: KeyedAggregate((count_rows(),), ("key",), every=0),
        lambda: KeyedLogic(Total(), (), ("number",), TOTAL),
        lambda: KeyedLogic(Total(), ("key",), ("number",), pa.schema([])),
    ],
)
def test_invalid_specs_are_refused(make):
    with pytest.raises(ValueError, match="key|step"):
        make()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (KeyedAggregate((sum_of("key"),), ("key",)), "no sum"),
        (KeyedAggregate((sum_of("gone"),), ("key",)), "no column gone"),
        (KeyedAggregate((count_rows("key"),), ("key",)), "duplicate output columns"),
        (KeyedLogic(Total(), ("key",), ("gone",), TOTAL), "no column gone"),
        (KeyedLogic(Total(), ("key",), ("number",), pa.schema([("key", pa.int64())])), "duplicate"),
    ],
)
def test_mismatched_columns_are_refused_at_build_time(spec, reason):
    with pytest.raises(Exception, match=reason) as caught:
        graph(spec)
    assert type(caught.value).__name__ == "SchemaMismatch"


def test_a_logic_without_times_out_is_refused():
    class Timeless(StatefulLogic):
        def on_data(self, message, state, output):
            output.emit(message.key, 1, None)

    with pytest.raises(OperatorFailed, match="without a time"):
        executor(logic(Timeless()), *ROWS)


def test_keys_of_several_columns_and_nulls():
    spec = KeyedLogic(Total(), ("key", "number"), ("number",), TOTAL)
    made = executor(spec, ("a", 1, 1), (None, 1, 2), ("a", 1, 3))
    assert [row["total"] for row in taken(made)] == [1, 1, 2]
    other = DagExecutor.from_dag(graph(spec))
    other.restore(DagCheckpoint.from_bytes(made.checkpoint().to_bytes()))
    put(other, (None, 1, 4))
    assert [row["total"] for row in taken(other)] == [2]


def test_the_end_is_an_epoch_of_its_own():
    class Last(StatefulLogic):
        def on_data(self, message, state, output):
            return message.value

        def on_epoch(self, epoch, states, output):
            if epoch == END:
                for key in sorted(states):
                    output.emit(key, states[key], epoch)

    made = executor(logic(Last()), *ROWS)
    assert taken(made) == []
    made.finish()
    assert [(row["key"], row["total"]) for row in taken(made)] == [("a", 3), ("b", 2)]


def test_a_restore_that_fails_changes_nothing():
    spec = logic(Total())
    whole = checkpoint_of(spec, *ROWS)
    rows, kept, edge = tables_from_bytes(whole.nodes["op"].state.data)
    broken = with_state(whole, [rows, kept.drop_columns(["#state"]), edge])
    made = executor(spec, ("z", 9, 5))
    before = made.checkpoint()
    with pytest.raises(RestoreFailed):
        made.restore(broken)
    assert made.checkpoint() == before
    made.restore(whole)
    assert made.checkpoint().nodes["op"] == whole.nodes["op"]


class Breaks(Operator):
    """Counts its rows, and fails when it is told to."""

    def __init__(self):
        self.count, self.broken, self.unkept = 0, False, False

    def process(self, batch, context):
        if self.broken:
            raise ValueError("boom")
        self.count += batch.num_rows

    def checkpoint(self):
        if self.unkept:
            raise ValueError("boom")
        return str(self.count).encode()

    def restore(self, version, state):
        self.count = int(state)


def with_a_row():
    """An executor with a row, its operator, and what it knew before it."""
    dag = DagBuilder().source("in", SCHEMA).operator("op", key=GLOBAL).connect("in", "op").build()
    made, operator = ScenarioExecutor.from_dag(dag), Breaks()
    made.register_operator("op", operator)
    before = made.checkpoint()
    made.process_event("in", ROW)
    return made, operator, before


ROW = Event(1, pa.record_batch([["a"], [1], [1]], schema=SCHEMA))


def test_an_executor_is_restored_after_it_failed():
    made, operator, before = with_a_row()
    operator.broken = True
    with pytest.raises(OperatorFailed):
        made.process_event("in", ROW)
    operator.broken = False
    made.restore(before)
    assert operator.count == 0
    made.process_event("in", ROW)
    assert operator.count == 1


def test_an_executor_is_unchanged_when_it_cannot_save_its_state():
    made, operator, before = with_a_row()
    operator.unkept = True
    with pytest.raises(RestoreFailed, match="cannot be saved"):
        made.restore(before)
    assert operator.count == 1


SUM = KeyedAggregate((sum_of("number"),), ("key",), every=10)


def stage_of(spec):
    return plan_stages(graph(spec)).stages[-1]


def rescaled(stage, checkpoints, after=3):
    """The checkpoints, split, and rescaled chunk by chunk to a number of workers."""
    before = len(checkpoints)
    parts = {worker: split(stage, worker, item) for worker, item in checkpoints.items()}
    header = merge_headers(stage, {worker: header for worker, (header, _) in parts.items()})
    chunks = [
        part
        for _, chunks in parts.values()
        for chunk in chunks
        for part in rescale_chunk(stage, chunk, before, after)
    ]
    made = {}
    for worker in range(after):
        mine, arrived = [c for c in chunks if c.worker == worker], Arrivals(stage, worker, after)
        for chunk in mine:
            arrived.add(chunk)
        made[worker] = assemble(stage, worker, after, arrived.header(header), mine)
    return made


def keys_on(stage, checkpoints):
    """The number of keys of the operator `op` on each worker."""
    return [split(stage, worker, item)[0].keys["op"] for worker, item in checkpoints.items()]


@pytest.mark.parametrize(
    ("spec", "workers", "held"),
    [
        (Window.tumbling(9, (count_rows(),)), 2, [1, 0]),
        (TopN(1, (("number", "ascending"),)), 1, [1]),
    ],
)
def test_global_state_goes_to_the_first_worker(spec, workers, held):
    whole = checkpoint_of(spec, *ROWS)
    empty = DagExecutor.from_dag(graph(spec))
    empty.process_watermark("in", 4)
    stage = stage_of(spec)
    assert keys_on(stage, rescaled(stage, {0: whole, 1: empty.checkpoint()}, workers)) == held


def test_partitioning_by_part_of_a_key_keeps_groups():
    builder = DagBuilder().source("in", SCHEMA).operator("first", Deduplicate(("key", "number")))
    both = KeyedAggregate((count_rows("rows"),), ("number", "key"), every=10)
    builder.operator("op", both).connect("in", "first").connect("first", "op")
    last = plan_stages(builder.sink_for("op", "out").build()).stages[-1]
    assert last.nodes == ("first", "op", "out")
    assert last.partitioning()["op"] == Key.of("key", "number")
    (entry,) = last.inputs
    assert last.dag.node("op").key == Key.of("number", "key")
    executor = DagExecutor.from_dag(last.dag)
    for n in range(30):
        batch = pa.record_batch([[f"k{n}"], [n], [n]], schema=SCHEMA)
        executor.process_event(entry.source, Event(n, batch))
        executor.process_watermark(entry.source, n)
    executor.take_all_sink_outputs()
    whole = {0: executor.checkpoint()}
    there = rescaled(last, whole)
    assert min(keys_on(last, there)) > 0
    back = rescaled(last, there, 1)
    assert sum(keys_on(last, there)) == sum(keys_on(last, back)) == 29


def test_rows_of_a_key_on_two_workers_are_refused():
    whole = checkpoint_of(SUM, *ROWS)
    with pytest.raises(Misplaced):
        rescaled(stage_of(SUM), {0: whole, 1: whole})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: replace(c, outputs={"x": ()}), "pending"),
        (lambda c: replace(c, nodes={}), "nodes"),
        (lambda c: node(c, "in", watermark=17), "17"),
        (lambda c: node(c, "out", queue=((0, Event(1, pa.record_batch({"a": [1]}))),)), "pending"),
        (lambda c: node(c, "op", state=replace(c.nodes["op"].state, version=5)), "versions"),
    ],
)
def test_workers_at_different_points_are_refused(change, reason):
    whole, stage = checkpoint_of(SUM), stage_of(SUM)
    assert rescaled(stage, {0: whole, 1: whole}).keys() == {0, 1, 2}
    with pytest.raises(NotWhole, match=reason):
        rescaled(stage, {0: whole, 1: change(whole)})


def node(checkpoint, name, **changes):
    nodes = {**checkpoint.nodes, name: replace(checkpoint.nodes[name], **changes)}
    return replace(checkpoint, nodes=nodes)


def test_the_least_watermark_counts_behind_a_hold():
    spec = KeyedAggregate((sum_of("number"),), ("key",))
    mine = {0: [], 1: []}
    for n in range(20):
        owner = Modulo().owner(f"k{n}", (0, 1))
        mine[owner].append((f"k{n}", n, len(mine[owner]) + 1 + 4 * owner))
    early, late = (executor(spec, *mine[worker]) for worker in (0, 1))
    for item in (early, late):
        item.process_watermark("in", 40)
    assert (early.watermark("out"), late.watermark("out")) == (1, 5)
    stage = stage_of(spec)
    dealt = rescaled(stage, {0: early.checkpoint(), 1: late.checkpoint()}, 1)
    assert dealt[0].nodes["out"].watermark == 1
    assert keys_on(stage, dealt) == [20]


def test_timers_that_differ_are_refused():
    whole = checkpoint_of(SUM)
    with pytest.raises(NotKeyed, match="timers"):
        rescaled(stage_of(SUM), {0: whole, 1: node(whole, "op", timers=(Timer(5),))})


def behind_a_holder(spec):
    """A graph whose window is at several points on workers that have rows of several times."""
    total = KeyedAggregate((sum_of("number"),), ("key",))
    builder = DagBuilder().source("in", SCHEMA).operator("total", total).connect("in", "total")
    return builder.operator("op", spec).connect("total", "op").sink_for("op", "out").build()


def test_readers_of_final_aggregates_see_the_end():
    made = DagExecutor.from_dag(
        behind_a_holder(Window.tumbling(10, (sum_of("sum_number", "sum"),), by=["key"]))
    )
    put(made, ("a", 1, 5), ("b", 2, 12), ("a", 3, 13))
    assert made.watermark("op") == 5
    made.finish()
    assert made.watermark("out") == END
    assert [(row["key"], row["sum"]) for row in taken(made)] == [("a", 4), ("b", 2)]


def test_windows_behind_a_hold_are_rescaled():
    dag = behind_a_holder(Window.tumbling(10, (count_rows("n"), sum_of("sum_number")), by=["key"]))
    rows = [(f"k{n}", n, 5 + 7 * n) for n in range(12)]
    through = DagExecutor.from_dag(dag)
    crew = {worker: DagExecutor.from_dag(dag, worker=worker) for worker in (0, 1)}
    for row in rows:
        put(through, row)
        owner = Modulo().owner(row[0], (0, 1))
        put(crew[owner], row)
    for item in (through, *crew.values()):
        item.process_watermark("in", 100)
    checkpoints = {worker: item.checkpoint() for worker, item in crew.items()}
    assert len({item.nodes["op"].watermark for item in checkpoints.values()}) == 2
    dealt = rescaled(plan_stages(dag).stages[-1], checkpoints)
    actual = []
    for worker, checkpoint in dealt.items():
        item = DagExecutor.from_dag(dag, worker=worker)
        item.restore(checkpoint)
        item.process_watermark("in", END)
        actual += taken(item)
    through.process_watermark("in", END)
    assert sorted(map(str, actual)) == sorted(map(str, taken(through)))
    assert len(actual) == len(rows)


def test_overlapping_windows_behind_a_hold_are_refused():
    dag = behind_a_holder(Window.sliding(10, 5, (count_rows(),), by=["key"]))
    crew = {worker: DagExecutor.from_dag(dag, worker=worker) for worker in (0, 1)}
    put(crew[Modulo().owner("a", (0, 1))], ("a", 1, 5))
    checkpoints = {}
    for worker, item in crew.items():
        item.process_watermark("in", 100)
        checkpoints[worker] = item.checkpoint()
    with pytest.raises(NotWhole, match="op is not at one point .* the same number of workers"):
        rescaled(plan_stages(dag).stages[-1], checkpoints)


def test_windows_that_closed_at_different_times_are_refused():
    spec = Window.sliding(4, 2, (count_rows(),), by=["key"])
    one = checkpoint_of(spec, ("a", 1, 1))
    other = node(checkpoint_of(spec, ("a", 1, 7)), "in", watermark=2)
    with pytest.raises(NotWhole, match="not at one point"):
        rescaled(stage_of(spec), {0: one, 1: other})


class Opaque(Operator):
    def process(self, batch, context):
        context.emit(batch)

    def checkpoint(self):
        return b"whatever"


class OpaqueSpec:
    key = GLOBAL

    def output_schema(self, inputs):
        return inputs[0]

    def preserves(self, inputs):
        return frozenset()

    def create(self, inputs):
        return Opaque()

    def describe(self):
        return "opaque"


def test_a_state_that_is_not_keyed_is_refused_by_name():
    whole = checkpoint_of(OpaqueSpec(), *ROWS)
    with pytest.raises(NotKeyed, match="op") as caught:
        rescaled(stage_of(OpaqueSpec()), {0: whole})
    assert caught.value.fields["operator"] == "op"


def test_a_session_goes_on_with_its_new_owner():
    spec = SessionWindow(5, (sum_of("number"),), by=("key",))
    whole = checkpoint_of(spec, ("a", 1, 1), ("b", 10, 2))
    dealt = rescaled(stage_of(spec), {0: whole})
    executors = {w: DagExecutor.from_dag(graph(spec)) for w in dealt}
    for worker, item in executors.items():
        item.restore(dealt[worker])
    put(executors[Modulo().owner("a", (0, 1, 2))], ("a", 2, 4))
    for item in executors.values():
        item.finish()
    actual = sorted((r["key"], r["sum_number"]) for e in executors.values() for r in taken(e))
    assert actual == [("a", 3), ("b", 10)]


def snapshot():
    states = {0: {7: {}}, 1: {7: {}}}
    for key in ("a", "b", "c"):
        owner = Rendezvous().owner(key, (0, 1))
        states[owner][7][key] = Encoded(PLAIN.name, 1, PLAIN.encode(1))
    return KeyedSnapshot(1, states, None, frozenset([7]))


@pytest.mark.parametrize("way", ["twice", "with another"])
def test_a_misplaced_or_duplicated_key_is_not_rescaled(way):
    whole = snapshot()
    owner = Rendezvous().owner("a", (0, 1))
    other = 1 - owner
    states = {worker: {7: dict(operators[7])} for worker, operators in whole.states.items()}
    actual = states[owner][7]["a"] if way == "twice" else states[owner][7].pop("a")
    states[other][7]["a"] = actual
    with pytest.raises(Misplaced):
        replace(whole, states=states).rescaled((0, 1, 2), Rendezvous())
    assert set(whole.rescaled((0, 1, 2), Rendezvous()).states) == {0, 1, 2}


def test_a_codec_has_its_name_for_itself():
    class Other:
        name = "plain"

    with pytest.raises(ValueError, match="plain"):
        register_codec(Other())
    register_codec(PLAIN)
    assert codec_named("plain") is PLAIN


@pytest.mark.parametrize("value", [object(), {1: object()}, [complex(1)], True.real + 1j])
def test_values_without_exact_encoding_are_refused(value):
    with pytest.raises(ValueError, match="plain value"):
        PLAIN.encode(value)


@pytest.mark.parametrize("data", [b"", b"{", b'{"f":1}', b'{"q":1}', b'{"f":"1","t":[]}', b"\xff"])
def test_invalid_bytes_are_not_decoded(data):
    with pytest.raises(ValueError):
        PLAIN.decode(data)


def test_a_node_without_operator_has_nothing_to_rescale():
    dag = DagBuilder().source("in", SCHEMA).sink_for("in", "out").build()
    checkpoint = DagExecutor.from_dag(dag).checkpoint()
    (stage,) = plan_stages(dag).stages
    made = rescaled(stage, {0: checkpoint}, 2)
    assert made[1].nodes == {"in": NodeCheckpoint(), "out": NodeCheckpoint()}
