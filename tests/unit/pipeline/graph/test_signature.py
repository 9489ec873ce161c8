"""Signatures: what a state depends on, and that no other operator goes on from it."""

from __future__ import annotations

import importlib.util
import linecache
import textwrap
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from capstan.pipeline import (
    GLOBAL,
    TIME,
    DagBuilder,
    DagCheckpoint,
    DagExecutor,
    Event,
    KeyedAggregate,
    KeyedLogic,
    Operator,
    StatefulLogic,
    stateful_map,
)
from capstan.pipeline.graph import signature
from capstan.pipeline.graph.errors import StateChanged
from capstan.pipeline.graph.signature import require_unchanged
from capstan.pipeline.operators import (
    Deduplicate,
    Filter,
    IntervalJoin,
    MapBatch,
    Project,
    SessionWindow,
    Sql,
    SqlWindow,
    TopN,
    Window,
    WindowJoin,
    count_rows,
    last_of,
    sum_of,
)
from tests.reference.executor import ScenarioExecutor

SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64()), (TIME, pa.int64())])
OUT = pa.schema([("total", pa.int64())])


def graph(spec, *before, schema=SCHEMA):
    builder, last = DagBuilder().source("in", schema), "in"
    for number, item in enumerate(before):
        builder.stateless_operator(f"before{number}", item).connect(last, f"before{number}")
        last = f"before{number}"
    ports = 2 if isinstance(spec, IntervalJoin | WindowJoin) else 1
    builder.operator("op", spec).connect(last, "op")
    if ports == 2:
        builder.source("right", schema).connect("right", "op")
    return builder.sink_for("op", "out").build()


def changed(one, other):
    """Why one graph's state is not another's; None where it is."""
    try:
        require_unchanged(one.signatures, other.signatures, whole=True)
    except StateChanged as error:
        return error.fields["node"], error.fields["reason"]
    return None


class Total(StatefulLogic):
    def on_data(self, message, state, output):
        return (state or 0) + message.value


class Otherwise(StatefulLogic):
    def on_data(self, message, state, output):
        return (state or 0) - message.value


class OfAnotherForm(Otherwise):
    version = 2


class Above(Total):
    def __init__(self, limit):
        self.limit = limit


def logic(made, **more):
    settings = {"by": ("key",), "columns": ("number",), "output": OUT} | more
    return KeyedLogic(made, **settings)


SUM = (sum_of("number"),)
WINDOW = Window.tumbling(10, SUM, by=["key"])
SESSION = SessionWindow(3, SUM, by=("key",))
PAIRS = IntervalJoin(("key",), ("key",), 0, 5, prefix="r_")
SAME = WindowJoin(("key",), ("key",), 5, prefix="r_")
TOP = TopN(2, (("number", "ascending"),), by=("key",), window=10)
ONCE = Deduplicate(("key",), within=5)
QUERY = SqlWindow("SELECT key, sum(number) AS n FROM input GROUP BY key", 10, by=("key",))
TOTALS = KeyedAggregate(SUM, ("key",), every=5)


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        (WINDOW, {"size": 20}),
        (WINDOW, {"slide": 5}),
        (WINDOW, {"aggregates": (count_rows(),)}),
        (WINDOW, {"aggregates": (sum_of("number", "other"),)}),
        (WINDOW, {"ties": ("number",)}),
        (WINDOW, {"offset": 1}),
        (WINDOW, {"bounds": pa.timestamp("us")}),
        (SESSION, {"gap": 4}),
        (SESSION, {"aggregates": (last_of("number"),)}),
        (PAIRS, {"upper": 6}),
        (PAIRS, {"how": "left"}),
        (SAME, {"size": 6}),
        (TOP, {"n": 3}),
        (TOP, {"order": (("number", "descending"),)}),
        (ONCE, {"within": None}),
        (QUERY, {"query": "SELECT key, max(number) AS n FROM input GROUP BY key"}),
        (TOTALS, {"every": 6}),
        (logic(Total()), {"columns": (TIME,)}),
        (logic(Total()), {"ties": ("number",)}),
        (logic(Total()), {"output": pa.schema([("total", pa.float64())])}),
    ],
)
def test_a_state_is_of_one_setting(spec, settings):
    other = replace(spec, **settings)
    assert changed(graph(spec), graph(replace(spec))) is None
    node, reason = changed(graph(spec), graph(other))
    assert node == "op"
    assert reason.startswith(f"{next(iter(settings))} was ")
    kept = DagExecutor.from_dag(graph(spec)).checkpoint()
    with pytest.raises(StateChanged, match="op has changed since the state was saved"):
        DagExecutor.from_dag(graph(other)).restore(DagCheckpoint.from_bytes(kept.to_bytes()))
    DagExecutor.from_dag(graph(replace(spec))).restore(kept)


def test_a_changed_key_column_or_operator_is_another_state():
    node, reason = changed(graph(WINDOW), graph(replace(WINDOW, by=("number",))))
    assert (node, reason) == ("op", "key was key, and is number")
    assert changed(graph(WINDOW), graph(SESSION))[1] == "operator was Window, and is SessionWindow"
    wider = pa.schema([*SCHEMA, ("more", pa.int64())])
    assert changed(graph(WINDOW), graph(WINDOW, schema=wider))[1].startswith("inputs was in (key ")


def test_a_length_is_the_same_however_it_is_written():
    long, short = timedelta(seconds=1), timedelta(milliseconds=1)
    one, other = (replace(WINDOW, size=item, slide=item) for item in (long, 1_000_000))
    assert changed(graph(one), graph(other)) is None
    assert changed(graph(one), graph(replace(one, slide=short)))[1] == (
        "slide was 1000000, and is 1000"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Filter(pc.field("number") > 1), Filter(pc.field("number") > 2)),
        (Project({"key": "key", "number": "number"}), Project({"number": "number", "key": "key"})),
        (Sql("SELECT * FROM input"), Sql("SELECT * FROM input WHERE number > 1")),
        (
            Filter(lambda batch: pc.greater(batch["number"], 1)),
            Filter(lambda batch: pc.less(batch["number"], 1)),
        ),
    ],
)
def test_a_signature_covers_the_upstream_operators(one, other):
    node, _ = changed(graph(WINDOW, one), graph(WINDOW, other))
    assert node == "before0"
    assert changed(graph(WINDOW), graph(WINDOW, one)) == ("before0", "it is new")
    assert changed(graph(WINDOW, one), graph(WINDOW)) == ("before0", "it was removed")


def test_what_comes_after_all_states_may_change():
    def shown(*columns):
        builder = DagBuilder().source("in", SCHEMA).operator("op", WINDOW).connect("in", "op")
        shown = Project({name: name for name in columns})
        builder.stateless_operator("shown", shown).connect("op", "shown")
        return builder.sink_for("shown", "out").build()

    assert changed(shown("key"), shown("sum_number")) is None


def test_code_counts_by_its_text():
    def more_than(limit):
        return MapBatch(lambda batch: batch.filter(pc.greater(batch["number"], limit)))

    assert changed(graph(WINDOW, more_than(1)), graph(WINDOW, more_than(1))) is None
    assert changed(graph(WINDOW, more_than(1)), graph(WINDOW, more_than(2))) == (
        "before0",
        "its code has changed",
    )

    def above(limit, batch):
        return batch.filter(pc.greater(batch["number"], limit))

    parts = [MapBatch(partial(above, limit)) for limit in (1, 1, 2)]
    assert changed(graph(WINDOW, parts[0]), graph(WINDOW, parts[1])) is None
    assert changed(graph(WINDOW, parts[0]), graph(WINDOW, parts[2])) is not None


def module_of(folder, text):
    """A module with this text; each call makes another one."""
    path = folder / f"made{len(list(folder.iterdir()))}.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_comments_docstrings_and_layout_make_no_difference(tmp_path):
    plain = "def total(key, value, state):\n    return value, (state or 0) + value\n"
    reported = '''
        # What it does.
        def total(key, value,
                  state):
            """The sum so far."""
            return value, (state or 0) + value  # and the value
    '''
    otherwise = plain.replace("+ value", "- value")
    made = [module_of(tmp_path, text).total for text in (plain, reported, otherwise)]
    one, same, other = (graph(logic(stateful_map(item))) for item in made)
    assert changed(one, same) is None
    assert changed(one, other) == ("op", "its code has changed")


def test_a_logic_of_other_code_needs_another_version():
    total = graph(logic(Total()))
    assert changed(total, graph(logic(Total()))) is None
    assert changed(total, graph(logic(Otherwise()))) == ("op", "its code has changed")
    assert changed(total, graph(logic(OfAnotherForm()))) is None
    assert changed(graph(logic(Above(1))), graph(logic(Above(2)))) is not None


class Counts(Operator):
    """An operator of a user's own."""

    def process(self, batch, context):
        pass


class CountsMore(Counts):
    version = 2


class CountsOtherwise(Counts):
    def process(self, batch, context):
        context.emit(batch)


class Own:
    """Its description, which is no dataclass."""

    key = GLOBAL

    def __init__(self, limit, kind=Counts):
        self.limit, self.kind = limit, kind

    def output_schema(self, inputs):
        return SCHEMA

    def preserves(self, inputs):
        return frozenset()

    def create(self, inputs):
        return self.kind()

    def describe(self):
        return "own"


def test_operators_of_ones_own_have_signatures_as_well():
    assert changed(graph(Own(1)), graph(Own(1))) is None
    assert changed(graph(Own(1)), graph(Own(2)))[1] == "limit was 1, and is 2"
    assert changed(graph(Own(1)), graph(Own(1, CountsMore))) is None
    assert changed(graph(Own(1)), graph(Own(1, CountsOtherwise)))[1] == "its code has changed"


def test_a_registered_operator_has_no_signature():
    dag, other = graph(Own(1)), graph(Own(2))
    executor, taking = ScenarioExecutor.from_dag(dag), DagExecutor.from_dag(other)
    executor.register_operator("op", Counts())
    assert executor.checkpoint().operators["op"].signature is None
    taking.restore(executor.checkpoint())


def test_graphs_carry_requested_signatures(tmp_path):
    text = "def total(key, value, state):\n    return value, (state or 0) + value\n"
    requested, unasked = (graph(logic(stateful_map(module_of(tmp_path, text).total))) for _ in "ab")
    known = requested.signatures
    shipped = [cloudpickle.loads(cloudpickle.dumps(dag)) for dag in (requested, unasked)]
    for path in tmp_path.glob("*.py"):
        path.unlink()
    linecache.clearcache()
    signature._source.cache_clear()
    assert shipped[0].signatures == known
    assert shipped[1].signatures != known


def test_a_state_goes_on_under_the_same_settings():
    before, after = DagExecutor.from_dag(graph(WINDOW)), DagExecutor.from_dag(graph(WINDOW))
    row = pa.record_batch([["a"], [5], [7]], schema=SCHEMA)
    before.process_event("in", Event(7, row))
    after.restore(before.checkpoint())
    after.finish()
    (made,) = after.take_sink_outputs("out")
    assert made.batch.to_pylist()[0]["sum_number"] == 5
