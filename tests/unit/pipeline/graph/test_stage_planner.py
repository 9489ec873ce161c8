"""Where a graph is cut, and how it is shown."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capstan.pipeline import GLOBAL, DagBuilder, Key, explain, mermaid, plan_stages
from capstan.pipeline.graph.errors import NodeNotFound
from capstan.pipeline.operators import (
    Filter,
    IntervalJoin,
    Project,
    TopN,
    Window,
    WindowJoin,
    count_rows,
)

BIDS = pa.schema([("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64())])


def count(*by, size=10, name="n"):
    return Window.tumbling(size, [count_rows(name)], by=by)


def stages(dag, sinks=None):
    return [(s.nodes, s.key and s.key.columns) for s in plan_stages(dag, sinks).stages]


def line(*specs):
    """A source, these operators one after another as n0, n1, ..., and a sink."""
    builder, before = DagBuilder().source("bids", BIDS), "bids"
    for number, spec in enumerate(specs):
        declare = builder.stateless_operator if spec.key is None else builder.operator
        declare(f"n{number}", spec)
        builder.connect(before, f"n{number}")
        before = f"n{number}"
    return builder.sink_for(before, "out").build()


DEAR = Filter(pc.field("price") > 5)


def test_without_state_there_is_one_stage():
    assert stages(line(DEAR)) == [(("bids", "n0", "out"), None)]


def test_operators_with_one_key_share_one_shuffle():
    assert stages(
        line(DEAR, count("auction"), TopN(1, (("n", "ascending"),), by=("auction",)))
    ) == [(("bids", "n0"), None), (("n1", "n2", "out"), (("auction",),))]


def test_rows_that_lie_by_some_of_the_key_columns_stay():
    top = TopN(1, (("n", "ascending"),), by=("auction", "window_start"))
    dag = line(count("auction"), top)
    assert [nodes for nodes, _ in stages(dag)] == [("bids",), ("n0", "n1", "out")]


def test_rows_that_lie_by_more_than_the_key_columns_move():
    dag = line(TopN(1, (("price", "ascending"),), by=("auction", "bidder")), count("auction"))
    assert [key for _, key in stages(dag)] == [None, (("auction", "bidder"),), (("auction",),)]


def test_all_rows_on_one_worker_go_apart_again():
    dag = line(count("auction"), TopN(9, (("n", "ascending"),)), count("auction", name="m"))
    assert [key for _, key in stages(dag)] == [None, (("auction",),), ((),), (("auction",),)]
    assert [key for _, key in stages(line(count(), count(name="m")))] == [None, ((),)]


@pytest.mark.parametrize(
    ("between", "cut"),
    [
        (Project({"auction": "auction", "price": pc.field("n") + 1}), False),
        (Project({"auction": pc.field("auction") / 2}), True),
        (Project({"auction": "n"}), True),
    ],
)
def test_a_key_that_is_computed_anew_is_another_key(between, cut):
    dag = line(count("auction"), between, count("auction", name="m"))
    assert len(plan_stages(dag).stages) == (3 if cut else 2)


def diamond():
    builder = DagBuilder().source("bids", BIDS)
    builder.operator("few", count("auction")).connect("bids", "few")
    top = TopN(1, (("price", "descending"),), by=("auction",), window=10)
    builder.operator("dear", top).connect("bids", "dear")
    builder.operator("both", WindowJoin(("auction",), ("auction",), 10))
    builder.connect("few", "both").connect("dear", "both")
    builder.operator("all", count(name="m")).connect("dear", "all")
    return builder.sink_for("both", "joined").sink_for("all", "counted").build()


def test_branches_by_one_key_and_their_join_are_one_stage():
    plan = plan_stages(diamond())
    assert [stage.nodes for stage in plan.stages] == [
        ("bids",),
        ("few", "dear", "both", "joined"),
        ("all", "counted"),
    ]
    keyed = plan.stage_of("both")
    assert keyed.key == Key.of("auction")
    (entry,) = keyed.inputs
    assert (entry.producer, entry.columns) == ("bids", ("auction",))
    assert entry.readers == (("few", 0), ("dear", 0))
    assert (keyed.outputs, keyed.sinks) == (("dear",), ("joined",))
    assert keyed.exits == {"dear": "dear.out"}
    assert [node.name for node in keyed.dag.nodes] == [
        "bids", "few", "dear", "both", "joined", "dear.out",
    ]  # fmt: skip
    assert plan.stages[2].inputs[0].columns == ()


def test_only_what_the_chosen_sinks_depend_on_is_planned():
    assert stages(diamond(), ["counted"]) == [
        (("bids",), None),
        (("dear",), (("auction",),)),
        (("all", "counted"), ((),)),
    ]
    with pytest.raises(NodeNotFound):
        plan_stages(diamond(), ["none"])


def test_a_self_join_reads_its_stream_by_two_keys():
    builder = DagBuilder().source("bids", BIDS).stateless_operator("dear", DEAR)
    join = IntervalJoin(("auction",), ("bidder",), 0, 5, prefix="r_")
    builder.operator("join", join).connect("bids", "dear")
    dag = builder.connect("bids", "join").connect("dear", "join").sink_for("join", "out").build()
    *_, last = plan_stages(dag).stages
    assert [(i.producer, i.columns, i.source) for i in last.inputs] == [
        ("bids", ("auction",), "bids"),
        ("dear", ("bidder",), "dear"),
    ]


def test_keyless_unions_have_their_own_stage():
    builder = DagBuilder().source("a", BIDS).source("b", BIDS).stateless_operator("union")
    dag = builder.connect("a", "union").connect("b", "union").sink_for("union", "out").build()
    plan = plan_stages(dag)
    assert [stage.nodes for stage in plan.stages] == [("a",), ("b",), ("union", "out")]
    assert [entry.columns for entry in plan.stages[2].inputs] == [None, None]


def test_an_operator_that_is_registered_later_keeps_its_key():
    dag = (
        DagBuilder()
        .source("bids", BIDS)
        .operator("sum", key=GLOBAL)
        .connect("bids", "sum")
        .sink_for("sum", "out")
        .build()
    )
    assert stages(dag) == [(("bids",), None), (("sum", "out"), ((),))]


def test_explain_shows_all_of_it():
    assert (
        explain(diamond())
        == """\
7 nodes, 7 edges
sources: bids
sinks: joined, counted
order: bids few dear both all joined counted

nodes
  bids (source)
  few (operator, by auction): tumbling window of 10: count(*)
  dear (operator, by auction): first 1 by price descending of each auction in each 10
  both (operator, by auction): inner join on auction in windows of 10
  all (operator, by all rows together): tumbling window of 10: count(*)
  joined (sink)
  counted (sink)

edges
  bids -> few (SPMC)
  bids -> dear (SPMC)
  few -> both (MPSC)
  dear -> both (MPSC)
  dear -> all (SPMC)
  both -> joined (SPSC)
  all -> counted (SPSC)

shared
  bids is read by few, dear
  dear is read by both, all

stages
  0: rows as they come: bids
  1: by auction: few, dear, both, joined
     reads bids (auction)
  2: by all rows together: all, counted
     reads dear (to one worker)
"""
    )


def test_mermaid_draws_stages_and_exchanges():
    dag = line(Project({"auction": "auction", "p": pc.field("price") > 5}), count("auction"))
    assert (
        mermaid(plan_stages(dag))
        == """\
flowchart LR
  subgraph s0["stage 0: rows as they come"]
    n0(["bids"])
    n1("n0<br/>project auction, p = (price &gt; 5)")
  end
  subgraph s1["stage 1: by auction"]
    n2["n1<br/>tumbling window of 10: count(*)"]
    n3[["out"]]
  end
  n0 --> n1
  n1 ==> n2
  n2 --> n3
"""
    )
