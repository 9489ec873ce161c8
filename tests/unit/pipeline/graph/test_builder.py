"""Graphs: what a build refuses, and what it works out."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capstan.errors import InvalidRequestError
from capstan.pipeline import GLOBAL, MAX_FAN_OUT, DagBuilder, Key
from capstan.pipeline.graph.errors import (
    CycleDetected,
    DisconnectedNode,
    DuplicateEdge,
    DuplicateNode,
    EmptyDag,
    FanOutLimitExceeded,
    KeyNotDeclared,
    NodeNotFound,
    SchemaMismatch,
    WrongWay,
)
from capstan.pipeline.graph.graph import operator_id
from capstan.pipeline.operators import Filter, IntervalJoin, Project, Window, count_rows, sum_of
from tests.reference.errors import BaseTableSchemaNotFound
from tests.reference.materialized_views import View, from_views

FLIGHTS = pa.schema([("carrier", pa.string()), ("delay", pa.int64()), ("ratio", pa.float64())])
WEATHER = pa.schema([("airport", pa.string()), ("wind", pa.float64())])


def chain(*names):
    builder = DagBuilder().source(names[0])
    for name, before in zip(names[1:], names, strict=False):
        builder.stateless_operator(name).connect(before, name)
    return builder.sink_for(names[-1], "out")


def names(dag, ids):
    return {dag.nodes[number].name for number in ids}


def test_a_build_without_nodes_is_refused():
    with pytest.raises(EmptyDag) as caught:
        DagBuilder().build()
    assert caught.value.code == "CAP-DAG-EMPTY"
    assert caught.value.exit_code == 2


def test_a_node_that_reads_itself_is_refused_at_once():
    with pytest.raises(CycleDetected) as caught:
        DagBuilder().stateless_operator("a").connect("a", "a")
    assert caught.value.fields == {"name": "a"}


def test_a_cycle_behind_a_source_is_refused():
    builder = chain("src", "a", "b").connect("b", "a")
    with pytest.raises(CycleDetected) as caught:
        builder.build()
    assert caught.value.fields == {"name": "a"}


def test_more_readers_than_the_limit_are_refused():
    builder = DagBuilder().source("src")
    for number in range(MAX_FAN_OUT + 1):
        builder.sink_for("src", f"sink{number}")
    with pytest.raises(FanOutLimitExceeded) as caught:
        builder.build()
    assert caught.value.fields == {"name": "src", "count": 9, "limit": 8}


def test_edges_into_sources_and_out_of_sinks_are_refused():
    with pytest.raises(WrongWay) as caught:
        chain("src", "a").source("other").sink_for("other", "x").connect("a", "other").build()
    assert caught.value.fields == {"source": "a", "target": "other"}
    with pytest.raises(WrongWay) as caught:
        chain("src", "a").stateless_operator("b").connect("out", "b").build()
    assert caught.value.fields == {"source": "out", "target": "b"}


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(DuplicateNode) as caught:
        chain("src", "a").source("a")
    assert caught.value.code == "CAP-DAG-DUPLICATE-NODE"
    assert caught.value.fields == {"name": "a"}


def test_errors_keep_their_class_over_pickle():
    with pytest.raises(DuplicateEdge) as caught:
        chain("src", "a").connect("src", "a").build()
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is DuplicateEdge
    assert again.fields == {"source": "src", "target": "a"}
    assert isinstance(again, InvalidRequestError)


def test_a_lone_operator_is_refused():
    with pytest.raises(DisconnectedNode) as caught:
        chain("src", "a").stateless_operator("alone").build()
    assert caught.value.fields == {"name": "alone"}


def test_state_without_a_key_is_refused():
    with pytest.raises(KeyNotDeclared) as caught:
        DagBuilder().source("src").operator("sum").connect("src", "sum").build()
    assert caught.value.fields == {"name": "sum"}


def test_an_operator_declared_without_state_must_have_none():
    window = Window.tumbling(10, [count_rows()], by=["carrier"])
    builder = DagBuilder().source("src", FLIGHTS).stateless_operator("w", window)
    with pytest.raises(KeyNotDeclared, match="declared stateless"):
        builder.connect("src", "w").build()


def test_a_key_other_than_the_operators_own_is_refused():
    window = Window.tumbling(10, [count_rows()], by=["carrier"])
    builder = DagBuilder().source("src", FLIGHTS).operator("w", window, key=GLOBAL)
    with pytest.raises(KeyNotDeclared, match="its operator has the key carrier"):
        builder.connect("src", "w").build()


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (Key.of("gate"), "no key column gate among carrier, delay, ratio"),
        (Key.of("ratio"), "key column ratio has the type double, which cannot be hashed exactly"),
        (Key.of_ports(["carrier"], ["delay"]), "1 inputs, but key columns for 2"),
    ],
)
def test_a_key_has_to_be_in_the_rows(key, reason):
    builder = DagBuilder().source("src", FLIGHTS).operator("sum", key=key).connect("src", "sum")
    with pytest.raises(SchemaMismatch, match=reason):
        builder.build()


def test_the_keys_of_two_inputs_have_one_type():
    join = IntervalJoin(("delay",), ("airport",), 0, 1)
    builder = DagBuilder().source("a", FLIGHTS).source("b", WEATHER).operator("join", join)
    with pytest.raises(SchemaMismatch, match="types") as caught:
        builder.connect("a", "join").connect("b", "join").build()
    assert caught.value.fields["target"] == "join"


@pytest.mark.parametrize(
    ("sink", "reason"),
    [
        (WEATHER, "3 columns (carrier, delay, ratio) instead of 2"),
        (FLIGHTS.set(1, pa.field("delay", pa.int32())), "column 1 is delay int64 instead of delay"),
        (FLIGHTS.set(1, pa.field("wait", pa.int64())), "column 1 is delay int64 instead of wait"),
    ],
)
def test_columns_that_do_not_fit_are_refused(sink, reason):
    with pytest.raises(SchemaMismatch) as caught:
        DagBuilder().source("src", FLIGHTS).sink_for("src", "out", sink).build()
    assert caught.value.fields["reason"].startswith(reason)


def test_branches_with_other_columns_cannot_merge():
    builder = DagBuilder().source("a", FLIGHTS).source("b", WEATHER).stateless_operator("both")
    with pytest.raises(SchemaMismatch) as caught:
        builder.connect("a", "both").connect("b", "both").sink_for("both", "out").build()
    assert (caught.value.fields["source"], caught.value.fields["target"]) == ("b", "both")


def test_columns_follow_from_operators():
    hours = pc.field("delay").cast("double") / 60.0
    dag = (
        DagBuilder()
        .source("src", FLIGHTS)
        .stateless_operator("long", Filter(pc.field("delay") > 15))
        .stateless_operator("hours", Project({"by": "carrier", "h": hours}))
        .operator("sums", Window.tumbling(10, [sum_of("h", "total")], by=["by"]))
        .connect("src", "long")
        .connect("long", "hours")
        .connect("hours", "sums")
        .build()
    )
    assert dag.node("long").schema == FLIGHTS
    assert dag.node("hours").schema == pa.schema([("by", pa.string()), ("h", pa.float64())])
    assert dag.node("sums").schema.names == ["by", "window_start", "window_end", "total"]
    assert dag.node("sums").key == Key.of("by")


def test_a_projection_that_would_lose_bits_is_refused():
    project = Project({"hours": pc.field("delay") / 60.0})
    builder = DagBuilder().source("src", FLIGHTS).stateless_operator("p", project)
    with pytest.raises(SchemaMismatch, match="hours would be computed in 32 bits"):
        builder.connect("src", "p").build()


def test_an_operator_that_lacks_a_column_is_refused():
    builder = DagBuilder().source("src", FLIGHTS).stateless_operator("p", Project({"x": "gate"}))
    with pytest.raises(SchemaMismatch, match="no column gate") as caught:
        builder.connect("src", "p").build()
    assert (caught.value.fields["source"], caught.value.fields["target"]) == ("src", "p")


def test_readers_of_one_node_share_it():
    dag = (
        DagBuilder()
        .source("src")
        .operator("sum", key=GLOBAL)
        .stateless_operator("pass")
        .connect("src", "sum")
        .connect("src", "pass")
        .build()
    )
    assert dag.shared_stages == {0: (1, 2)}
    assert [edge.source_port for edge in dag.outputs("src")] == [0, 1]


def test_a_graph_can_be_restricted_to_sinks():
    dag = (
        DagBuilder()
        .source("a")
        .source("b")
        .stateless_operator("left")
        .stateless_operator("both")
        .connect("a", "left")
        .connect("left", "both")
        .connect("b", "both")
        .sink_for("both", "all")
        .sink_for("left", "some")
        .build()
    )
    assert names(dag, dag.ancestors("some")) == {"a", "left", "some"}
    assert names(dag, dag.ancestors("all")) == {"a", "b", "left", "both", "all"}
    part = dag.restricted_to(["some"])
    assert [node.name for node in part.nodes] == ["a", "left", "some"]
    assert [(e.source, e.target) for e in part.edges] == [(0, 1), (1, 2)]
    with pytest.raises(NodeNotFound):
        dag.restricted_to(["none"])


def test_the_identity_of_state_follows_from_the_name_alone():
    assert operator_id("hourly") == 0x069E9528F0ADB8A1


def test_views_read_tables_and_each_other_in_any_order():
    dag = from_views(
        {"trades": FLIGHTS, "unread": WEATHER},
        {"minutes": View(["seconds"]), "seconds": View(["trades"])},
    )
    order = [dag.nodes[number].name for number in dag.execution_order]
    assert order == ["trades", "seconds", "minutes"]
    assert names(dag, dag.sources) == {"trades"}
    assert names(dag, dag.sinks) == {"minutes"}
    assert [node.kind.value for node in dag.nodes] == ["source"] + ["materialized_view"] * 2
    assert len(dag.edges) == 2


def test_a_view_of_nothing_known_is_refused():
    with pytest.raises(BaseTableSchemaNotFound) as caught:
        from_views({}, {"seconds": View(["trades"])})
    assert caught.value.fields == {"name": "trades"}
    with pytest.raises(EmptyDag):
        from_views({"trades": FLIGHTS}, {})
