"""LaminarDB's behaviour, scenario by scenario, against our own classes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from capstan.errors import CapstanError
from capstan.pipeline import (
    GLOBAL,
    BarrierAligner,
    Change,
    Changelog,
    CheckpointBarrier,
    DagBuilder,
    Event,
    Operator,
    OutputKind,
)
from tests.reference.checkpoint_coordinator import CheckpointCoordinator
from tests.reference.executor import ScenarioExecutor
from tests.reference.multicast_buffer import MulticastBuffer

CASES = json.loads(
    (Path(__file__).parents[2] / "conformance" / "dag_state" / "cases.json").read_text()
)["cases"]
# The kinds of scenarios that are about keyed state, and those that are in words only.
OTHERS = {
    "stateful_op", "distributor", "router", "described", "input", "epochs", "protocol",
    "snapshot", "placement", "rescale", "restore_scaled",
}  # fmt: skip
TYPES = {"utf8": pa.string(), "timestamp": pa.timestamp("ms")}


def rows(*values):
    return pa.record_batch({"value": pa.array(values, pa.int64())})


def event(time, value):
    return Event(time, rows(value))


def shown(events):
    return [[e.time, value] for e in events for value in e.batch.column("value").to_pylist()]


class Each(Operator):
    def __init__(self, does):
        self.does = does

    def process(self, batch, context):
        self.does(batch.column("value")[0].as_py(), batch, context)


class RunningSum(Operator):
    def __init__(self):
        self.total = 0

    def process(self, batch, context):
        self.total += batch.column("value")[0].as_py()
        context.emit(rows(self.total))

    def checkpoint(self):
        return str(self.total).encode()

    def restore(self, version, state):
        self.total = int(state)


class TimerAfter(Operator):
    def __init__(self, after):
        self.after = after

    def process(self, batch, context):
        context.set_timer(context.time + self.after)

    def on_timer(self, timer, context):
        context.emit(rows(timer.time))


class TumblingCount(Operator):
    def __init__(self, size):
        self.size, self.counts = size, Counter()

    def process(self, batch, context):
        end = (context.time // self.size + 1) * self.size
        self.counts[end] += 1
        context.set_timer(end)

    def on_timer(self, timer, context):
        context.emit(rows(self.counts.pop(timer.time)), timer.time - 1)

    def checkpoint(self):
        return json.dumps(list(self.counts.items())).encode()

    def restore(self, version, state):
        self.counts = Counter(dict(json.loads(state)))


class FailRestore(Operator):
    def process(self, batch, context):
        context.emit(batch)

    def restore(self, version, state):
        raise ValueError("boom")


def operator(kind, n=0, size=0):
    simple = {
        "double": lambda value, batch, context: context.emit(rows(value * 2)),
        "add": lambda value, batch, context: context.emit(rows(value + n)),
        "filter_gt": lambda value, batch, context: context.emit(batch) if value > n else None,
        "repeat": lambda value, batch, context: [context.emit(batch) for _ in range(n)],
        "emit_watermark": lambda value, batch, context: context.advance_watermark(context.time),
        "emit_changelog": lambda value, batch, context: context.change(batch),
        "emit_side": lambda value, batch, context: context.side("side", batch),
        "emit_late": lambda value, batch, context: context.late(batch),
    }
    if kind in simple:
        return Each(simple[kind])
    others = {
        "running_sum": RunningSum,
        "timer_after": lambda: TimerAfter(n),
        "tumbling_count": lambda: TumblingCount(size),
        "fail_restore": FailRestore,
    }
    return others[kind]()


def schema_of(node):
    if len(node) < 3:
        return None
    return pa.schema([(f"f{i}", type_of(kind)) for i, kind in enumerate(node[2])])


def type_of(kind):
    return TYPES.get(kind) or pa.type_for_alias(kind)


def built(graph):
    builder = DagBuilder()
    for node in graph["nodes"]:
        name, kind, schema = node[0], node[1], schema_of(node)
        if kind == "source":
            builder.source(name, schema)
        elif kind == "sink":
            builder.sink(name, schema)
        elif kind == "view":
            builder.materialized_view(name, schema=schema)
        else:
            builder.operator(name, schema=schema, key=GLOBAL)
    for source, target in graph["edges"]:
        builder.connect(source, target)
    return builder.build()


def check_error(case, act):
    """Acts, and checks that it raises what the scenario says: its kind, and the facts of it."""
    expected = case.get("expect_error")
    if expected is None:
        return act()
    with pytest.raises((CapstanError, ValueError)) as caught:
        act()
    error = caught.value
    assert type(error).__name__ == expected["kind"]
    for name, fact in expected.items():
        if name != "kind":
            assert said(error.fields, name) == fact
    return None


def said(fields, name):
    """A fact of an error by LaminarDB's name or ours: it calls a node by `node` or by `name`."""
    other = {"node_id": "node", "node": "name", "name": "node", "max": "limit"}
    return fields[name if name in fields else other[name]]


def run_topology(case):
    dag = check_error(case, lambda: built(case["graph"]))
    expect = dict(case.get("expect", {}))
    assert ("expect_error" in case) != bool(expect)
    if dag is None:
        return
    names = [node.name for node in dag.nodes]
    actual = {
        "order": lambda: [names[n] for n in dag.execution_order],
        "sources": lambda: [names[n] for n in dag.sources],
        "sinks": lambda: [names[n] for n in dag.sinks],
        "shared": lambda: {names[n]: len(to) for n, to in dag.shared_stages.items()},
        "channels": lambda: {f"{names[e.source]}->{names[e.target]}": e.channel for e in dag.edges},
        "ports": lambda: {
            f"{names[e.source]}->{names[e.target]}": [e.source_port, e.target_port]
            for e in dag.edges
        },
        "ids": lambda: {node.name: node.id for node in dag.nodes},
        "node_count": lambda: len(dag.nodes),
        "edge_count": lambda: len(dag.edges),
    }
    for what, value in expect.items():
        given = actual[what]()
        if what in ("channels", "ports", "ids"):
            given = {name: given[name] for name in value}
        assert given == value, what


class Run:
    """One scenario of the executor, step by step."""

    def __init__(self, case):
        self.case = case
        self.dag = built(case["graph"])
        self.names = [node.name for node in self.dag.nodes]
        self.saved = {}
        self.do_new_executor({})

    def do_new_executor(self, step):
        self.executor = ScenarioExecutor.from_dag(self.dag)
        for name, described in self.case.get("operators", {}).items():
            self.executor.register_operator(name, operator(**described))

    def do_event(self, step):
        self.executor.process_event(step["at"], event(step["ts"], step["value"]))

    def do_watermark(self, step):
        moved = self.executor.process_watermark(step["at"], step["to"])
        if "expect_updated" in step:
            assert [[self.names[n], to] for n, to in moved] == step["expect_updated"]

    def do_fire_timers(self, step):
        self.executor.fire_timers(step["to"])

    def do_take(self, step):
        assert shown(self.executor.take_sink_outputs(step["at"])) == step["expect"]

    def do_take_all(self, step):
        taken = {}
        for key, events in self.executor.take_all_sink_outputs().items():
            label = key.node if key.kind is OutputKind.DATA else f"{key.node}/{key.kind}"
            taken[label] = shown(events)
        assert taken == step["expect"]

    def do_metrics(self, step):
        self.counted(self.executor.metrics(), step["expect"])

    def do_node_metrics(self, step):
        self.counted(self.executor.node_metrics(step["at"]), step["expect"])

    def counted(self, counters, expected):
        assert {name: getattr(counters, name) for name in expected} == expected

    def do_reset_metrics(self, step):
        self.executor.reset_metrics()

    def do_watermarks(self, step):
        actual = {name: self.executor.watermark(name) for name in step["expect"]}
        assert actual == step["expect"]

    def do_effective(self, step):
        actual = {name: self.executor.effective_watermark(name) for name in step["expect"]}
        assert actual == step["expect"]

    def do_checkpoint(self, step):
        taken = self.executor.checkpoint()
        self.saved[step["name"]] = taken
        if "expect_nodes" in step:
            assert sorted(taken.operators) == sorted(step["expect_nodes"])

    def do_restore(self, step):
        self.executor.restore(self.saved[step["name"]])

    def do_watermark_checkpoint(self, step):
        self.saved[step["name"]] = self.executor.checkpoint_watermarks()

    def do_watermark_restore(self, step):
        self.executor.restore_watermarks(self.saved[step["name"]])

    def do_inject(self, step):
        self.executor.inject_events(step["at"], [event(*e) for e in step["events"]])

    def do_input_count(self, step):
        assert self.executor.input_count(step["at"]) == step["expect"]


def run_steps(run, steps):
    for step in steps:
        check_error(step, lambda step=step: getattr(run, f"do_{step['do']}")(step))


def run_dag(case):
    run_steps(Run(case), case["steps"])


class Aligning:
    def __init__(self, case):
        self.aligner = BarrierAligner(case["inputs"])

    def do_barrier(self, step):
        barrier = CheckpointBarrier(step["checkpoint"], step["checkpoint"])
        aligned = self.aligner.process_barrier(step["at"], barrier)
        if "expect" in step:
            assert ("pending" if aligned is None else "aligned") == step["expect"]
        if "buffered" in step:
            assert shown(aligned.held) == step["buffered"]

    def do_buffer(self, step):
        assert self.aligner.buffer_if_aligned(step["at"], event(*step["event"])) is step["expect"]

    def do_complete(self, step):
        self.aligner.complete_checkpoint()


def run_aligner(case):
    run_steps(Aligning(case), case["steps"])


class Coordinating:
    def __init__(self, case):
        self.coordinator = CheckpointCoordinator(case["nodes"], case.get("max_retained", 3))

    def do_trigger(self, step):
        barrier = self.coordinator.trigger()
        for name, value in step.get("expect", {}).items():
            assert getattr(barrier, name) == value

    def do_report(self, step):
        assert self.coordinator.on_node_snapshot_complete(step["at"]) is step.get("expect", False)

    def do_finalize(self, step):
        result = self.coordinator.finalize()
        if "expect_id" in step:
            assert result.barrier.checkpoint_id == step["expect_id"]

    def do_completed(self, step):
        assert [r.barrier.checkpoint_id for r in self.coordinator.completed] == step["expect"]

    def do_latest(self, step):
        latest = self.coordinator.latest
        assert (latest and latest.barrier.checkpoint_id) == step["expect"]


def run_coordinator(case):
    run_steps(Coordinating(case), case["steps"])


def run_multicast(case):
    ring = check_error(case, lambda: MulticastBuffer(case["capacity"], case["consumers"]))
    for step in case["steps"]:
        if "publish" in step:
            check_error(step, lambda step=step: ring.publish(step["publish"]))
        elif "consume" in step:
            assert ring.consume(step["consume"]) == step["expect"]
        else:
            expected = step["positions"]
            assert {"write": ring.written, "read": list(ring.positions)} == expected


class Logging:
    def __init__(self, case):
        self.log = Changelog(["node"], case["capacity"])

    def do_insert(self, step):
        assert self.log.record("node", Change(event(0, 1), 1)) is step["expect"]

    def do_retraction(self, step):
        done = self.log.record_retraction("node", event(0, 1), event(0, 2))
        assert done is step["expect"]

    def do_drain(self, step):
        assert [change.weight for change in self.log.drain("node")] == step["expect"]

    def do_disable(self, step):
        self.log.enabled = False

    def do_enable(self, step):
        self.log.enabled = True


def run_changelog(case):
    run_steps(Logging(case), case["steps"])


RUNNERS = {
    "topology": run_topology,
    "dag": run_dag,
    "aligner": run_aligner,
    "coordinator": run_coordinator,
    "multicast": run_multicast,
    "changelog": run_changelog,
}
# At least so many of each; a file with more is run in full.
COUNTS = {
    "topology": 13, "dag": 32, "aligner": 5, "coordinator": 3, "multicast": 4, "changelog": 1,
}  # fmt: skip
MINE = [case for case in CASES if case["kind"] in RUNNERS]


# Scenarios that are in words only, each with the test that is about it; a file need not have all.
IN_WORDS = {
    "Q01": "spark/test_replay_state.py::test_a_pipeline_with_no_end_reads_each_record_once",
    "Q02": "unit/reference/test_live_cluster.py::test_the_end_waits_for_every_worker",
    "Q03": "unit/reference/test_live_cluster.py::test_a_joining_worker_learns_of_the_end",
    "Q04": "unit/reference/test_live_cluster.py::test_a_part_of_a_sink_goes_on_numbering_its_lines",
    "Q05": "unit/reference/test_live_cluster.py::test_two_operators_of_one_name_are_refused",
    "Q06": "unit/reference/test_live_cluster.py::test_one_thing_at_a_time",
    "Q07": "unit/pipeline/graph/test_stage_planner.py::test_explain_shows_all_of_it",
    "Q08": "unit/pipeline/graph/test_builder.py::"
    "test_views_read_tables_and_each_other_in_any_order",
    "Q09": "crash/test_state_killed.py::test_what_a_killed_attempt_has_kept_counts_for_nothing",
    "Q10": "unit/reference/test_live_cluster.py::test_a_key_that_comes_back_is_not_counted_twice",
}


def test_scenarios_in_words_have_tests_of_their_own():
    assert {case["id"] for case in CASES if case["kind"] == "described"} <= set(IN_WORDS)
    for test in IN_WORDS.values():
        path, _, name = test.partition("::")
        text = (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
        assert f"\ndef {name}(" in text


def test_no_scenario_is_left_out():
    actual = Counter(case["kind"] for case in MINE)
    assert {kind: actual[kind] >= count for kind, count in COUNTS.items()} == dict.fromkeys(
        COUNTS, True
    )
    assert {case["kind"] for case in CASES} <= {*RUNNERS, *OTHERS}
    assert len({case["id"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", MINE, ids=[case["id"] for case in MINE])
def test_scenario(case):
    RUNNERS[case["kind"]](case)


def test_a_scenario_that_expects_something_else_fails():
    case = next(case for case in MINE if case["id"] == "E04")
    wrong = json.loads(json.dumps(case))
    wrong["steps"][-1]["expect"].reverse()
    with pytest.raises(AssertionError):
        run_dag(wrong)
