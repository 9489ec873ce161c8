"""Laws of keyed state: batches, watermarks, restores and rescales make no difference."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.pipeline import (
    END,
    TIME,
    DagCheckpoint,
    DagExecutor,
    Event,
    KeyedAggregate,
    KeyedLogic,
    StatefulLogic,
    plan_stages,
    ttl_map,
)
from capstan.pipeline.graph.arrow_ipc import tables_from_bytes
from capstan.pipeline.operators import (
    Deduplicate,
    IntervalJoin,
    SessionWindow,
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
from capstan.pipeline.state.chunk_rescale import (
    Arrivals,
    merge_headers,
    require_none_lost,
    rescale_chunk,
)
from capstan.pipeline.state.chunks import StateHeader, assemble, split
from capstan.pipeline.state.codec import PLAIN, Encoded
from capstan.pipeline.state.errors import Misplaced
from capstan.pipeline.state.key_hash import key_hashes
from tests.reference.key_hash import key_hash
from tests.reference.key_placement import Modulo, Rendezvous
from tests.reference.keyed_snapshot import KeyedSnapshot, prove
from tests.support.graph_samples import (
    event_of,
    feed,
    feedings,
    graph_of,
    multiset,
    rows,
    run,
    tuples,
)

# Each of these laws is tried on several operators; a rescale of one with two sources costs most.
few = settings(max_examples=max(1, settings.default.max_examples // 8))
rare = settings(max_examples=max(1, settings.default.max_examples // 16))
EXACT = (
    count_rows("rows"), count_of("number"), sum_of("number"), min_of("number"), max_of("number"),
    mean_of("number"),
)  # fmt: skip
ALL = (
    *EXACT, count_distinct("number"), count_distinct("ratio"), first_of("number"),
    last_of("number"), first_of("ratio"), last_of("ratio"), sum_of("ratio"), mean_of("ratio"),
    min_of("ratio"), max_of("ratio"),
)  # fmt: skip
NAMES = [aggregate.name for aggregate in ALL]
TYPES = [aggregate.result_type(graph_of(KeyedAggregate(ALL, ("key",)), ["left"], timed=True)
         .node("left").schema) for aggregate in ALL]  # fmt: skip


class Aggregates(StatefulLogic):
    """What `KeyedAggregate` computes, one row at a time, in plain Python."""

    version = 3

    def __init__(self, every=None):
        self.every = every

    def on_data(self, message, state, output):
        number, ratio, time = message.value
        state = state or {"rows": 0, "numbers": [], "ratios": [], "first": (number, ratio)}
        state["rows"] += 1
        state["numbers"] += [] if number is None else [number]
        state["ratios"] += [] if ratio is None else [ratio]
        return {**state, "last": (number, ratio), "time": time}

    def on_epoch(self, epoch, states, output):
        if epoch == END:
            for key, state in states.items():
                output.emit(key, self.results(state), epoch)

    def results(self, state):
        numbers, ratios = state["numbers"], state["ratios"]
        total = 0.0
        for ratio in ratios:
            total += ratio
        return (
            state["rows"], len(numbers), sum(numbers) if numbers else None,
            min(numbers, default=None), max(numbers, default=None),
            sum(numbers) / len(numbers) if numbers else None,
            len(set(numbers)), len(set(ratios)),
            state["first"][0], state["last"][0], state["first"][1], state["last"][1],
            total if ratios else None, total / len(ratios) if ratios else None,
            # -0.0 and 0.0 are one value, shown as the latter.
            None if not ratios else min(ratios) + 0.0, None if not ratios else max(ratios) + 0.0,
        )  # fmt: skip


class Running(StatefulLogic):
    """The sum of each key so far, forgotten when it is a multiple of five."""

    def on_data(self, message, state, output):
        total = (state or 0) + (message.value or 0)
        output.emit(message.key, total, message.time)
        return total if total % 5 else None


class Quiet(StatefulLogic):
    """How many rows of a key came less than two units apart, when it has been quiet."""

    def on_data(self, message, state, output):
        return (0 if state is None else state[0]) + 1, message.time

    def on_epoch(self, epoch, states, output):
        for key, (count, last) in list(states.items()):
            if last + 2 <= epoch:
                output.emit(key, count, last + 2)
                del states[key]


def seen(key, value, time, entries):
    """What a key has seen in the last three units, as text, and `value` among it from now on."""
    known = sorted(repr(item) for item, _ in entries.values())
    return " ".join(known), {**entries, (time, repr(value)): (value, time + 3)}


PER_RECORD = KeyedLogic(
    Aggregates(),
    ("key",),
    ("number", "ratio", TIME),
    pa.schema(list(zip(NAMES, TYPES, strict=True))),
)
MINE = {
    "aggregate": KeyedAggregate(ALL, ("key",)),
    "aggregate-exact": KeyedAggregate(EXACT, ("key", "number")),
    "aggregate-steps": KeyedAggregate(ALL, ("key",), every=3, ties=("number",)),
    "per-record": PER_RECORD,
    "running": KeyedLogic(Running(), ("key",), ("number",), pa.schema([("total", pa.int64())])),
    "expiring": KeyedLogic(ttl_map(seen), ("key",), ("number",), pa.schema([("s", pa.string())])),
    "quiet": KeyedLogic(Quiet(), ("key", "number"), ("ratio",), pa.schema([("n", pa.int64())])),
}
OTHERS = {
    "tumbling": Window.tumbling(4, EXACT, by=["key"]),
    "sliding-raw": Window.sliding(6, 4, ALL, by=["key"], ties=["number"]),
    "tumbling-global": Window.tumbling(5, EXACT),
    "session": SessionWindow(3, ALL, by=("key",)),
    "first-within": Deduplicate(("key", "number"), within=3, ties=("ratio",)),
    "first-of-all": Deduplicate((), within=4),
    "top": TopN(2, (("number", "descending"),), by=("key",), rank="rank"),
    "sql-window": SqlWindow(
        "SELECT key, count(*) AS n FROM input GROUP BY key ORDER BY key", 4, by=("key",)
    ),
}
JOINS = {
    "interval-left": IntervalJoin(("key",), ("key",), -1, 3, how="left", prefix="r_"),
    "window-left": WindowJoin(("key",), ("key",), 4, how="left", prefix="r_", offset=1),
}
STATEFUL = [
    *(pytest.param(spec, 1, id=name) for name, spec in (MINE | OTHERS).items()),
    *(pytest.param(spec, 2, id=name) for name, spec in JOINS.items()),
]
SOURCES = ("left", "right")


def inputs_of(data, count=1):
    return {source: data.draw(rows()) for source in SOURCES[:count]}


@pytest.mark.parametrize("timed", [False, True], ids=["by event", "by row"])
@pytest.mark.parametrize("name", MINE)
@few
@given(data=st.data())
def test_batches_and_watermarks_make_no_difference(name, timed, data):
    dag = graph_of(MINE[name], ["left"], timed=timed)
    inputs = inputs_of(data)
    one = run(dag, data.draw(feedings(inputs, timed=timed)))
    other = run(dag, data.draw(feedings(inputs, timed=timed)))
    assert one.late == 0
    assert one == other


@pytest.mark.parametrize("timed", [False, True], ids=["by event", "by row"])
@few
@given(data=st.data())
def test_the_batch_form_is_the_per_record_form(timed, data):
    inputs = inputs_of(data)
    ran = [
        run(graph_of(spec, ["left"], timed=timed), data.draw(feedings(inputs, timed=timed)))
        for spec in (MINE["aggregate"], PER_RECORD)
    ]
    # Only the times differ: a logic may not put out what is before its last epoch.
    assert sorted(row[1:] for row in ran[0].rows) == sorted(row[1:] for row in ran[1].rows)


@few
@given(rows(), st.integers(1, 5))
def test_steps_show_changed_keys_with_all_rows_so_far(given_rows, every):
    dag = graph_of(KeyedAggregate(EXACT, ("key",), every=every), ["left"], timed=True)
    actual = run(
        dag, [("left", event_of([row], timed=True)) for row in given_rows] + [("left", END)]
    )
    expected, so_far = [], defaultdict(list)
    for row in sorted(given_rows, key=lambda row: row[0]):
        so_far[row[1]].append(row)
    for key, group in so_far.items():
        for end in {row[0] // every * every + every for row in group}:
            part = [row for row in group if row[0] < end]
            numbers = [row[2] for row in part if row[2] is not None]
            mean = repr(sum(numbers) / len(numbers)) if numbers else None
            total = sum(numbers) if numbers else None
            least, most = min(numbers, default=None), max(numbers, default=None)
            expected.append((end - 1, key, len(part), len(numbers), total, least, most, mean))
    assert actual.rows == sorted(expected, key=repr)


@pytest.mark.parametrize("name", MINE)
@few
@given(data=st.data())
def test_a_restored_run_is_the_uninterrupted_one(name, data):
    dag = graph_of(MINE[name], ["left"], timed=True)
    steps = data.draw(feedings(inputs_of(data), timed=True))
    place = data.draw(st.integers(0, len(steps)))
    through, before, after = (DagExecutor.from_dag(dag) for _ in range(3))
    feed(through, steps)
    feed(before, steps[:place])
    first = before.take_sink_outputs("out")
    after.restore(DagCheckpoint.from_bytes(before.checkpoint().to_bytes()))
    feed(after, steps[place:])
    actual = [*first, *after.take_sink_outputs("out")]
    assert multiset(actual) == multiset(through.take_sink_outputs("out"))
    assert after.checkpoint_watermarks() == through.checkpoint_watermarks()


def shared(event, key, workers):
    """The part of an event that each worker gets."""
    hashes = key_hashes([event.batch.column(name) for name in key])
    owners = Modulo().owners(hashes, workers) if key else None
    for worker in workers:
        mine = event.batch
        if owners is not None:
            mine = mine.filter(pc.equal(owners, worker))
        elif worker != min(workers):
            continue
        if mine.num_rows:
            least = pc.min(mine.column(TIME)).as_py()
            yield worker, Event(least, mine)


class Crew:
    """Executors of one graph, each fed the rows of its keys and all watermarks."""

    def __init__(self, dag, workers, checkpoints=None):
        self.dag = dag
        self.executors = {worker: DagExecutor.from_dag(dag, worker=worker) for worker in workers}
        for worker, checkpoint in (checkpoints or {}).items():
            self.executors[worker].restore(checkpoint)
        self.out = []

    def feed(self, steps):
        key = self.dag.node("op").key
        workers = tuple(self.executors)
        for source, item in steps:
            if isinstance(item, Event):
                columns = key.on(SOURCES.index(source))
                for worker, event in shared(item, columns, workers):
                    self.executors[worker].process_event(source, event)
            else:
                for executor in self.executors.values():
                    executor.process_watermark(source, item)
        for executor in self.executors.values():
            self.out += executor.take_sink_outputs("out")
            executor.take_all_sink_outputs()

    def checkpoints(self):
        return {worker: item.checkpoint() for worker, item in self.executors.items()}


def by_chunks(data, stage, checkpoints, after):
    """Checkpoints cut up, dealt chunk by chunk, and put together from chunks in any order."""
    size, before = data.draw(st.integers(1, 4)), len(checkpoints)
    cut = {worker: split(stage, worker, item, size) for worker, item in checkpoints.items()}
    heads = {worker: StateHeader.from_json(head.to_json()) for worker, (head, _) in cut.items()}
    for worker, checkpoint in checkpoints.items():
        own = data.draw(st.permutations(cut[worker][1]))
        back = assemble(stage, worker, before, heads[worker], own)
        assert same_rows(back, checkpoint)
    dealt = [part for _, chunks in cut.values() for chunk in data.draw(st.permutations(chunks))
             for part in rescale_chunk(stage, chunk, before, after)]  # fmt: skip
    before_all, made, heads_after = merge_headers(stage, heads), {}, []
    for worker in range(after):
        mine, arrived = [c for c in dealt if c.worker == worker], Arrivals(stage, worker, after)
        for chunk in mine:
            arrived.add(chunk)
        heads_after.append(arrived.header(before_all))
        made[worker] = assemble(stage, worker, after, heads_after[-1], mine)
    require_none_lost(stage, before_all, heads_after)
    return made


def same_rows(one, other):
    """Whether checkpoints are the same but for the order of rows in states."""

    def plain(checkpoint):
        return {name: (replace(node, state=None), node.state and [
            sorted(map(repr, table.to_pylist())) for table in tables_from_bytes(node.state.data)
        ]) for name, node in checkpoint.nodes.items()}  # fmt: skip

    return plain(one) == plain(other)


@pytest.mark.parametrize(("spec", "count"), STATEFUL)
@rare
@given(data=st.data())
def test_a_rescaled_run_is_the_uninterrupted_one(spec, count, data):
    sizes = st.integers(1, 4).map(range)
    before, between, after = data.draw(sizes), data.draw(sizes), data.draw(sizes)
    stage = plan_stages(graph_of(spec, SOURCES[:count], timed=True)).stages[-1]
    dag = stage.dag
    steps = data.draw(feedings(inputs_of(data, count), timed=True))
    one, two = sorted(data.draw(st.tuples(*[st.integers(0, len(steps))] * 2)))
    crew = Crew(dag, before)
    crew.feed(steps[:one])
    out = crew.out
    for workers, part in ((between, steps[one:two]), (after, steps[two:])):
        dealt = by_chunks(data, stage, crew.checkpoints(), len(workers))
        crew = Crew(dag, workers, dealt)
        crew.feed(part)
        out = out + crew.out
    through = DagExecutor.from_dag(dag)
    feed(through, steps)
    assert multiset(out) == multiset(through.take_sink_outputs("out"))


@few
@given(data=st.data())
def test_a_rescale_and_back_changes_nothing(data):
    stage = plan_stages(graph_of(MINE["aggregate"], ["left"], timed=True)).stages[-1]
    crew = Crew(stage.dag, (0, 1))
    crew.feed(data.draw(feedings(inputs_of(data), timed=True))[:-1])
    first = crew.checkpoints()
    there = by_chunks(data, stage, first, 3)
    back = by_chunks(data, stage, there, 2)
    assert set(there) == {0, 1, 2}
    for worker in (0, 1):
        assert same_state(stage.dag, back[worker], first[worker])


def same_state(dag, one, other):
    def known(checkpoint):
        executor = DagExecutor.from_dag(dag)
        executor.restore(checkpoint)
        executor.process_watermark("left", END)
        return list(tuples(executor.take_sink_outputs("out")))

    return sorted(known(one), key=repr) == sorted(known(other), key=repr)


KEYS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=70),
    st.binary(max_size=70), st.dates(),
    st.datetimes(timezones=st.just(UTC)), st.tuples(st.integers(-5, 5), st.text(max_size=9)),
)  # fmt: skip
WORKERS = st.lists(st.integers(0, 50), min_size=1, max_size=6, unique=True)


@given(KEYS, WORKERS, st.integers(51, 60))
def test_an_added_worker_moves_no_keys_between_others(key, workers, more):
    before = Rendezvous().owner(key, workers)
    after = Rendezvous().owner(key, [*workers, more])
    assert after in (before, more)


@given(st.lists(KEYS, unique_by=repr, max_size=40), WORKERS)
def test_placement_does_not_depend_on_the_order_of_workers(keys, workers):
    for placement in (Rendezvous(), Modulo()):
        owners = [placement.owner(key, workers) for key in keys]
        assert owners == [placement.owner(key, workers[::-1]) for key in keys]
        assert set(owners) <= {*workers}


COLUMNS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=70),
    pa.large_binary(): st.binary(max_size=70),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.decimal128(38, 2): st.decimals(-(10**9), 10**9, places=2),
    pa.decimal128(9, 0): st.sampled_from([Decimal(n) for n in (-129, -128, -1, 0, 127, 128, 255)]),
}


@given(data=st.data())
def test_columns_and_values_have_the_same_hashes_and_owners(data):
    kinds = data.draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3))
    drawn = st.tuples(*(st.none() | COLUMNS[kind] for kind in kinds))
    keys = data.draw(st.lists(drawn, max_size=12))
    # A slice: arrays that do not begin at their buffer's beginning.
    padded = [*keys[:1], *keys]
    columns = [
        pa.array([key[n] for key in padded], kind).slice(len(padded) - len(keys))
        for n, kind in enumerate(kinds)
    ]
    hashes = key_hashes(columns)
    assert hashes.to_pylist() == [key_hash(key) for key in keys]
    workers = data.draw(WORKERS)
    for placement in (Rendezvous(), Modulo()):
        owners = placement.owners(hashes, workers).to_pylist()
        assert owners == [placement.owner(key, workers) for key in keys]


PLAIN_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(),
        st.binary(), st.dates(), st.datetimes(), st.decimals(allow_nan=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text() | st.integers() | st.dates(), inner, max_size=3),
        st.sets(st.text() | st.integers(), max_size=3),
        st.frozensets(st.binary(), max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip


def typed(value):
    """A value with the types of all its parts, which `==` does not compare."""
    if isinstance(value, dict):
        return dict, [(typed(k), typed(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, value))
    return type(value), repr(value)


@given(PLAIN_VALUES)
def test_plain_values_come_back_as_they_were(value):
    assert typed(PLAIN.decode(PLAIN.encode(value))) == typed(value)


STATES = st.dictionaries(
    KEYS, st.builds(Encoded, st.just("plain"), st.integers(1, 3), st.binary()), max_size=20
)


def snapshot_of(states, workers, placement):
    actual = {worker: {7: {}} for worker in workers}
    for key, state in states.items():
        actual[placement.owner(key, workers)][7][key] = state
    return KeyedSnapshot(4, actual, 9, frozenset([7]))


@given(STATES, WORKERS, WORKERS, st.sampled_from([Rendezvous(), Modulo()]))
def test_a_snapshot_keeps_every_key_however_it_is_dealt(states, before, after, placement):
    snapshot = snapshot_of(states, before, placement)
    dealt = snapshot.rescaled(after, placement)
    assert dealt.workers == tuple(sorted(after))
    proof = prove(snapshot.states, dealt.states, placement, after)
    assert proof.keys == len(states) == sum(proof.held.values())
    back = dealt.rescaled(before, placement)
    assert prove(dealt.states, back.states, placement, before).keys == len(states)
    kept = {k: s for ops in back.states.values() for keys in ops.values() for k, s in keys.items()}
    assert kept == states
    assert (back.number, back.epoch, back.placed) == (4, 9, frozenset([7]))


@given(STATES.filter(bool), st.data())
def test_proofs_reject_lost_doubled_new_and_misplaced_keys(states, data):
    workers, placement = (0, 1, 2), Rendezvous()
    before = snapshot_of(states, workers, placement).states
    key = data.draw(st.sampled_from(list(states)))
    owner = placement.owner(key, workers)
    what = data.draw(st.sampled_from(["lost", "twice", "misplaced", "new"]))
    after = {w: {op: dict(keys) for op, keys in ops.items()} for w, ops in before.items()}
    other = (owner + 1) % 3
    if what == "twice":
        after[other][7][key] = states[key]
    elif what == "misplaced":
        after[other][7][key] = after[owner][7].pop(key)
    elif what == "lost":
        del after[owner][7][key]
    else:
        del before[owner][7][key]
    with pytest.raises(Misplaced) as caught:
        prove(before, after, placement, workers)
    assert caught.value.fields[what]


@given(st.dates(), st.datetimes())
def test_a_date_and_a_time_are_other_keys(day, moment):
    assert key_hash(day) == key_hash((day - date(1970, 1, 1)).days)
    aware = moment.replace(tzinfo=UTC)
    micros = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)
    assert key_hash(aware) == key_hash(micros) == key_hash(moment)
