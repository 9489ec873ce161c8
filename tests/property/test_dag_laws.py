"""Laws of pipelines: what comes out follows from the rows and their times alone."""

from __future__ import annotations

import zlib
from collections import defaultdict
from fractions import Fraction

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.core.protocol import Messages
from capstan.core.times import Antichain, Time, complete
from capstan.pipeline import END, TIME, DagBuilder, DagCheckpoint, DagExecutor, Event, plan_stages
from capstan.pipeline.graph.key_columns import key_columns
from capstan.pipeline.operators import (
    Deduplicate,
    DivertLate,
    Filter,
    IntervalJoin,
    Project,
    SessionWindow,
    Sql,
    SqlWindow,
    TopN,
    Window,
    WindowJoin,
    count_distinct,
    count_of,
    count_rows,
    first_of,
    last_of,
    max_of,
    mean_of,
    min_of,
    sum_of,
)
from tests.reference.sink_recorder import SinkRecorder, watermark_of
from tests.support.graph_samples import (
    batches,
    event_of,
    feed,
    feedings,
    graph_of,
    multiset,
    rows,
    run,
    schema_of,
    tuples,
)
from tests.support.reference_checker import check
from tests.support.strategies import times

EXACT = (
    count_rows("rows"),
    count_of("number"),
    sum_of("number"),
    min_of("number"),
    max_of("number"),
    mean_of("number"),
)
ALL = (
    *EXACT,
    count_distinct("number"),
    first_of("number"),
    last_of("number"),
    first_of("ratio"),
    last_of("ratio"),
    sum_of("ratio"),
    mean_of("ratio"),
    min_of("ratio"),
    max_of("ratio"),
)
ONE_INPUT = {
    "filter": Filter(pc.field("number") > 0),
    "project": Project({"key": "key", "twice": pc.field("number") * 2}),
    "divert-late": DivertLate(),
    "tumbling": Window.tumbling(4, EXACT, by=["key"]),
    "tumbling-raw": Window.tumbling(4, ALL, by=["key"], offset=1),
    "tumbling-global": Window.tumbling(5, EXACT),
    "sliding": Window.sliding(6, 4, EXACT, by=["key"]),
    "sliding-raw": Window.sliding(6, 4, ALL, by=["key"], ties=["number"]),
    "session": SessionWindow(2, EXACT, by=("key",)),
    "session-raw": SessionWindow(3, ALL, by=("key",)),
    "session-global": SessionWindow(2, EXACT),
    "first": Deduplicate(("key",)),
    "first-within": Deduplicate(("key", "number"), within=3, ties=("ratio",)),
    "first-of-all": Deduplicate((), within=4),
    "top": TopN(2, (("number", "descending"),), by=("key",), rank="rank"),
    "top-window": TopN(1, (("number", "ascending"),), window=4, with_ties=True),
    "sql-window": SqlWindow(
        "SELECT key, count(*) AS n, string_agg(number, ',') AS listed FROM input GROUP BY key "
        "ORDER BY key",
        4,
        by=("key",),
    ),
}
TWO_INPUTS = {
    "interval": IntervalJoin(("key",), ("key",), -1, 3, prefix="r_"),
    "interval-left": IntervalJoin(("key",), ("key",), 1, 2, how="left", prefix="r_"),
    "interval-before": IntervalJoin(("key",), ("key",), -3, -1, how="left", prefix="r_"),
    "interval-number": IntervalJoin(
        ("key", "number"), ("key", "number"), 0, 0, how="left", prefix="r_"
    ),
    "window-join": WindowJoin(("key",), ("key",), 4, prefix="r_"),
    "window-left": WindowJoin(("key",), ("key",), 4, how="left", prefix="r_", offset=1),
}
OPERATORS = [pytest.param(spec, 1, id=name) for name, spec in ONE_INPUT.items()] + [
    pytest.param(spec, 2, id=name) for name, spec in TWO_INPUTS.items()
]
SOURCES = ("left", "right")
# Each of these laws is tried on every operator.
few = settings(max_examples=max(1, settings.default.max_examples // 8))


def inputs_of(data, count):
    return {source: data.draw(rows()) for source in SOURCES[:count]}


@pytest.mark.parametrize("timed", [False, True], ids=["by event", "by row"])
@pytest.mark.parametrize(("spec", "count"), OPERATORS)
@few
@given(data=st.data())
def test_batches_and_watermarks_make_no_difference(spec, count, timed, data):
    dag = graph_of(spec, SOURCES[:count], timed=timed)
    inputs = inputs_of(data, count)
    one = run(dag, data.draw(feedings(inputs, timed=timed)))
    other = run(dag, data.draw(feedings(inputs, timed=timed)))
    assert one.late == 0
    assert one == other


@pytest.mark.parametrize(("spec", "count"), OPERATORS)
@few
@given(data=st.data())
def test_times_of_events_and_times_of_rows_give_the_same(spec, count, data):
    inputs = inputs_of(data, count)
    ran = [
        run(graph_of(spec, SOURCES[:count], timed=timed), data.draw(feedings(inputs, timed=timed)))
        for timed in (False, True)
    ]
    assert ran[0] == ran[1]


@pytest.mark.parametrize(("spec", "count"), OPERATORS)
@few
@given(data=st.data())
def test_rows_of_some_keys_are_made_of_rows_of_these_keys(spec, count, data):
    dag = graph_of(spec, SOURCES[:count], timed=True)
    names = key_columns(dag, "out")
    inputs = inputs_of(data, count)
    drawn = data.draw(st.sets(st.integers(0, 4)))
    keys = sorted(names["left"].keys() - {"ratio"})  # Results have floats as text.

    def of_keys(given, schema, own):
        columns = [TIME, *(name for name in schema.names if name != TIME)]
        places = [columns.index(own[key]) for key in keys]
        numbers = [zlib.crc32(repr([row[n] for n in places]).encode()) % 5 for row in given]
        return [row for row, number in zip(given, numbers, strict=True) if number in drawn]

    part = {
        name: of_keys(given, dag.node(name).schema, names[name]) for name, given in inputs.items()
    }
    whole, done = (
        run(dag, data.draw(feedings(given, timed=True))).rows for given in (inputs, part)
    )
    own = of_keys(whole, dag.node("out").schema, {key: key for key in keys})
    assert done == own


@pytest.mark.parametrize(("spec", "count"), OPERATORS)
@few
@given(data=st.data())
def test_a_restored_run_is_the_uninterrupted_one(spec, count, data):
    dag = graph_of(spec, SOURCES[:count], timed=True)
    steps = data.draw(feedings(inputs_of(data, count), timed=True))
    through = DagExecutor.from_dag(dag)
    feed(through, steps)
    place = data.draw(st.integers(0, len(steps)))
    before = DagExecutor.from_dag(dag)
    feed(before, steps[:place])
    taken = data.draw(st.booleans())
    first = before.take_sink_outputs("out") if taken else []
    saved = before.checkpoint().to_bytes()
    feed(before, steps[place:])
    after = DagExecutor.from_dag(dag)
    after.restore(DagCheckpoint.from_bytes(saved))
    assert after.checkpoint().nodes.keys() == before.checkpoint().nodes.keys()
    feed(after, steps[place:])
    assert after.checkpoint_watermarks() == through.checkpoint_watermarks()
    put_out = list(tuples([*first, *after.take_sink_outputs("out")]))
    assert put_out == list(tuples(through.take_sink_outputs("out")))


def whole(given, spec, timed=False):
    """What comes of rows that are all fed before anything is complete."""
    dag = graph_of(spec, ["left"], timed=timed)
    steps = [("left", event_of([row], timed=timed)) for row in given]
    return run(dag, [*steps, ("left", END)]).rows


def summed(group):
    numbers = [row[2] for row in group if row[2] is not None]
    mean = float(Fraction(sum(numbers), len(numbers))) if numbers else None
    return (
        len(group),
        len(numbers),
        sum(numbers) if numbers else None,
        min(numbers, default=None),
        max(numbers, default=None),
        None if mean is None else repr(mean),
    )


@given(rows(), st.integers(1, 7), st.integers(1, 7), st.integers(-3, 3))
def test_windows_are_what_their_definition_says(given, size, slide, offset):
    size, slide = max(size, slide), min(size, slide)
    groups = defaultdict(list)
    for row in given:
        for start in range(-20, 20):
            if (start - offset) % slide == 0 and start <= row[0] < start + size:
                groups[row[1], start].append(row)
    expected = [
        (start + size - 1, key, start, start + size, *summed(group))
        for (key, start), group in groups.items()
    ]
    spec = Window.sliding(size, slide, EXACT, by=["key"], offset=offset)
    assert whole(given, spec) == sorted(expected, key=repr)


@given(rows(), st.integers(1, 5))
def test_sessions_are_what_their_definition_says(given, gap):
    expected = []
    for key in {row[1] for row in given}:
        session = []
        for row in [*sorted((r for r in given if r[1] == key), key=lambda r: r[0]), None]:
            if session and (row is None or row[0] >= session[-1][0] + gap):
                start, end = session[0][0], session[-1][0] + gap
                expected.append((end - 1, key, start, end, *summed(session)))
                session = []
            session.append(row)
    assert whole(given, SessionWindow(gap, EXACT, by=("key",))) == sorted(expected, key=repr)


@given(rows(), st.none() | st.integers(1, 5))
def test_the_first_row_of_each_key_passes(given, within):
    seen, passed = {}, []
    # The law is about keys and times; which of several rows at one time passes is by value.
    for row in sorted(given, key=lambda row: row[0]):
        last = seen.get(row[1])
        if last is None or (within is not None and row[0] >= last + within):
            seen[row[1]] = row[0]
            passed.append((row[0], row[1]))
    actual = whole(given, Deduplicate(("key",), within=within))
    assert sorted(row[:2] for row in actual) == sorted(passed)
    assert {row[:3] for row in actual} <= {row[:3] for row in given}


@given(st.lists(st.integers(0, 400), max_size=300), st.integers(1, 60))
def test_many_rows_of_one_key_pass_one_after_another(times, within):
    expected = []
    for time in sorted(times):
        if not expected or time >= expected[-1] + within:
            expected.append(time)
    actual = whole([(time, "a", 0, 0.0) for time in times], Deduplicate(("key",), within=within))
    assert sorted(row[0] for row in actual) == expected


@given(rows(), st.integers(1, 4), st.booleans())
def test_the_first_rows_are_those_before_which_fewer_come(given, n, with_ties):
    spec = TopN(n, (("number", "ascending"),), by=("key",), with_ties=with_ties)
    expected = []
    for key in {row[1] for row in given}:
        # Nulls come last.
        group = sorted((r[2] is None, r[2] or 0) for r in given if r[1] == key)
        if with_ties:
            expected += [(key, value) for value in group if group.index(value) < n]
        else:
            expected += [(key, value) for value in group[:n]]
    actual = [(row[1], (row[2] is None, row[2] or 0)) for row in whole(given, spec)]
    assert sorted(actual) == sorted(expected)


@given(rows(8), rows(8), st.integers(-4, 4), st.integers(0, 4), st.booleans())
def test_interval_joins_pair_what_their_definition_says(left, right, lower, length, outer):
    upper = lower + length
    expected = []
    for one in left:
        pairs = [o for o in right if o[1] == one[1] and lower <= o[0] - one[0] <= upper]
        expected += [(max(one[0], o[0]), one[1], one[2], o[1], o[2]) for o in pairs]
        if outer and not pairs:
            expected.append((one[0] + max(upper, 0), one[1], one[2], None, None))
    spec = IntervalJoin(
        ("key",), ("key",), lower, upper, how="left" if outer else "inner", prefix="r_"
    )
    dag = graph_of(spec, SOURCES, timed=False)
    steps = [("left", event_of([row], timed=False)) for row in left]
    steps += [("right", event_of([row], timed=False)) for row in right]
    actual = run(dag, [*steps, ("left", END), ("right", END)]).rows
    short = [(row[0], row[1], row[2], row[4], row[5]) for row in actual]
    assert sorted(short, key=repr) == sorted(expected, key=repr)


@given(rows(8), rows(8), st.integers(1, 6))
def test_window_joins_pair_what_their_definition_says(left, right, size):
    expected = [
        ((one[0] // size + 1) * size - 1, one[1], one[2], other[2])
        for one in left
        for other in right
        if one[1] == other[1] and one[0] // size == other[0] // size
    ]
    dag = graph_of(WindowJoin(("key",), ("key",), size, prefix="r_"), SOURCES, timed=False)
    steps = [("left", event_of([row], timed=False)) for row in left]
    steps += [("right", event_of([row], timed=False)) for row in right]
    actual = run(dag, [*steps, ("left", END), ("right", END)]).rows
    short = [(row[0], row[1], row[2], row[5]) for row in actual]
    assert sorted(short, key=repr) == sorted(expected, key=repr)


@given(st.data())
def test_every_row_is_counted_or_late(data):
    given = data.draw(rows())
    order = data.draw(st.permutations(given))
    timed = data.draw(st.booleans())
    dag = graph_of(Window.tumbling(4, (count_rows("n"),)), ["left"], timed=timed)
    executor = DagExecutor.from_dag(dag)
    late, mark = 0, None
    for event in data.draw(batches(order, timed=timed)):
        times = event.batch.column("_time").to_pylist() if timed else None
        times = times or [event.time] * event.batch.num_rows
        late += sum(mark is not None and time < mark for time in times)
        executor.process_event("left", event)
        mark = max(data.draw(st.integers(0, 14)), mark or 0)
        executor.process_watermark("left", mark)
    executor.process_watermark("left", END)
    assert executor.node_metrics("op").late_rows == late
    aside = executor.take_sink_outputs("op")
    assert sum(event.batch.num_rows for event in aside) == late
    counted = sum(row[3] for row in tuples(executor.take_sink_outputs("out")))
    assert counted + late == len(given)


def cascade(timed):
    """Late rows aside; an hour's counts, and of them the greatest; the rows themselves."""
    builder = DagBuilder().source("left", schema_of(timed=timed))
    builder.stateless_operator("sieve", DivertLate()).connect("left", "sieve")
    builder.operator("count", Window.tumbling(3, EXACT, by=["key"])).connect("sieve", "count")
    builder.operator("most", TopN(1, (("rows", "descending"),), window=6)).connect("count", "most")
    builder.operator("last", TopN(1, (("number", "ascending"),))).connect("sieve", "last")
    builder.sink_for("sieve", "rows").sink_for("count", "counts").sink_for("most", "out")
    return builder.sink_for("last", "lasts").build()


@given(st.data())
def test_what_a_sink_puts_out_is_a_valid_recording(data):
    timed = data.draw(st.booleans())
    executor = DagExecutor.from_dag(cascade(timed))
    sinks = ("rows", "counts", "out", "lasts")
    recorders = {sink: SinkRecorder(sink) for sink in sinks}
    recorded = {sink: [] for sink in sinks}
    put_out = dict.fromkeys(sinks, 0)
    order = data.draw(st.permutations(data.draw(rows())))
    steps = [("left", event) for event in data.draw(batches(order, timed=timed))]
    steps += [("left", mark) for mark in data.draw(st.lists(st.integers(0, 15), max_size=5))]
    closing = [("left", END)] if data.draw(st.booleans()) else []
    for step in [*data.draw(st.permutations(steps)), *closing]:
        feed(executor, [step])
        if not data.draw(st.booleans()) and step is not closing:
            continue
        for sink in sinks:
            outputs = executor.take_sink_outputs(sink)
            put_out[sink] += sum(event.batch.num_rows for event in outputs)
            recorded[sink] += recorders[sink].record(outputs, executor.watermark(sink))
    for sink in sinks:
        outputs = executor.take_sink_outputs(sink)
        put_out[sink] += sum(event.batch.num_rows for event in outputs)
        recorded[sink] += recorders[sink].record(outputs, executor.watermark(sink))
        verdict = check([entry.event for entry in recorded[sink]], Time.of(0))
        assert verdict.valid, verdict.violation
        assert verdict.records == put_out[sink]
        assert verdict.closed == bool(closing)
        for entry in recorded[sink]:
            assert isinstance(entry.event, Messages) == (entry.rows is not None)


@given(st.data())
def test_a_cascade_does_not_depend_on_batches(data):
    given = data.draw(rows())
    actual = []
    for _ in range(2):
        executor = DagExecutor.from_dag(cascade(timed=True))
        feed(executor, data.draw(feedings({"left": given}, timed=True)))
        actual.append({k: multiset(v) for k, v in executor.take_all_sink_outputs().items()})
    assert actual[0] == actual[1]


@pytest.mark.parametrize("query", ["SELECT key, number * 2 AS twice, _time FROM input"])
@few
@given(data=st.data())
def test_sql_row_by_row_does_not_depend_on_batches(query, data):
    given = data.draw(rows())
    actual = whole(given, Sql(query), timed=True)
    expected = [(row[0], row[1], None if row[2] is None else row[2] * 2) for row in given]
    assert actual == sorted(expected, key=repr)


def staged(plan, inputs, peers):
    """The stages one after another, each on `peers` workers, its rows shuffled by its key."""
    lying = {source: [[] for _ in range(peers)] for source in inputs}
    for source, fed in inputs.items():
        for place, row in enumerate(fed):
            lying[source][place % peers].append(event_of([row], timed=True))
    for stage in plan.stages:
        executors = [DagExecutor.from_dag(stage.dag, worker=n) for n in range(peers)]
        feeding = {
            entry.source: moved(lying[entry.producer], entry.columns) for entry in stage.inputs
        }
        feeding |= {name: lying[name] for name in stage.nodes if name in inputs}
        for worker, executor in enumerate(executors):
            for source, parts in feeding.items():
                for event in parts[worker]:
                    executor.process_event(source, event)
            executor.finish()
        collected = dict(stage.exits) | {sink: sink for sink in stage.sinks}
        for name, sink in collected.items():
            lying[name] = [executor.take_sink_outputs(sink) for executor in executors]
    return {
        name: multiset([event for part in lying[name] for event in part])
        for stage in plan.stages
        for name in stage.sinks
    }


def moved(parts, columns):
    """Rows where a shuffle by these columns brings them."""
    if columns is None:
        return parts
    arrived = [[] for _ in parts]
    for event in (event for part in parts for event in part):
        for place in range(event.batch.num_rows):
            row = event.batch.slice(place, 1)
            key = tuple(row.column(name)[0].as_py() for name in columns)
            worker = zlib.crc32(repr(key).encode()) % len(parts) if columns else 0
            arrived[worker].append(Event(row.column("_time")[0].as_py(), row))
    return arrived


def graph_with_shuffles():
    schema = schema_of(timed=True)
    builder = DagBuilder().source("left", schema).source("right", schema)
    builder.stateless_operator("some", Filter(pc.field("number") > -2)).connect("left", "some")
    builder.operator("count", Window.tumbling(3, EXACT, by=["key"])).connect("some", "count")
    builder.operator("first", Deduplicate(("key", "number"))).connect("some", "first")
    builder.operator("most", TopN(1, (("rows", "descending"),), window=6)).connect("count", "most")
    builder.operator("again", Window.tumbling(6, [count_rows()], by=["key"]))
    builder.connect("count", "again")
    builder.operator("near", IntervalJoin(("key",), ("key",), -1, 1, prefix="r_"))
    builder.connect("first", "near").connect("right", "near")
    for name in ("most", "again", "near", "first"):
        builder.sink_for(name, f"{name}_out")
    return builder.build()


@given(rows(10), rows(6), st.sampled_from([1, 2, 3, 8]), st.data())
def test_stages_on_many_workers_give_what_one_executor_gives(left, right, peers, data):
    inputs = {"left": left, "right": right}
    dag = graph_with_shuffles()
    executor = DagExecutor.from_dag(dag)
    feed(executor, data.draw(feedings(inputs, timed=True)))
    whole = {dag.nodes[n].name: multiset(executor.take_sink_outputs(n)) for n in dag.sinks}
    assert staged(plan_stages(dag), inputs, peers) == whole
    some = data.draw(st.sampled_from(sorted(whole)))
    part = plan_stages(dag, [some])
    needed = {
        name: given for name, given in inputs.items() if name in {n.name for n in part.dag.nodes}
    }
    assert staged(part, needed, peers) == {some: whole[some]}


@given(st.lists(times(2), max_size=4), st.integers(0, 1), times(2))
def test_what_is_before_the_watermark_of_a_frontier_is_complete(elements, coordinate, time):
    frontier = Antichain.of(elements)
    mark = watermark_of(frontier, coordinate)
    if time[coordinate] < mark:
        assert complete(frontier, time)
    # And the watermark is the greatest of which that is so.
    assert mark == END or not complete(
        frontier, next(type(t)(map(max, t, time)) for t in frontier if t[coordinate] == mark)
    )
