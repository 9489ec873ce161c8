"""Laws of pipelines, over stages in memory: any workers, any batches, any pieces of a range."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, MutableMapping, Sequence
from dataclasses import replace
from itertools import count, pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.pipeline import (
    TIME,
    DagBuilder,
    DagExecutor,
    Event,
    Key,
    KeyedLogic,
    Operator,
    OperatorContext,
    Pipeline,
    Reach,
    Sink,
    StatefulLogic,
    Stateless,
    Timer,
    reach_of,
    ttl_map,
)
from capstan.pipeline.definition import register
from capstan.pipeline.graph.errors import LateOutput, OperatorFailed, RestoreFailed, StateChanged
from capstan.pipeline.input_range import resuming
from capstan.pipeline.keyed.stateful_functions import Data, LogicOutput
from capstan.pipeline.operators import (
    Deduplicate,
    DivertLate,
    Filter,
    IntervalJoin,
    Project,
    SessionWindow,
    TopN,
    Window,
    WindowJoin,
    count_rows,
    last_of,
    sum_of,
)
from capstan.pipeline.spark.rescale import Rescaling, headers_of
from capstan.pipeline.spark.state_rows import StateKind, StateRow
from capstan.pipeline.spark.wire_format import NoteKind
from capstan.pipeline.state.errors import Misplaced, NotWhole, SnapshotCorrupt
from tests.support.graph_samples import Row, multiset, rows, schema_of
from tests.support.local_runner import LocalRun, run_locally

TIMES = TimeType.of(t=Kind.BIGINT)
LARGEST = 13
_numbers = count()


def pipeline(build: DagBuilder, sinks: str = "out", **settings: object) -> Pipeline:
    """A pipeline with this graph; sinks by commas."""
    reference = f"laws:p{next(_numbers)}"
    register(reference, build.build)
    return Pipeline("law", reference, tuple(map(Sink, sinks.split(","))), **settings)  # type: ignore[arg-type]


def table(given_rows: list[Row]) -> pa.Table:
    times, keys, numbers, ratios = zip(*given_rows, strict=True) if given_rows else ([],) * 4
    columns = [
        pa.array(keys, pa.string()),
        pa.array(numbers, pa.int64()),
        pa.array(ratios, pa.float64()),
        pa.array(times, pa.int64()),
    ]
    return pa.table(columns, schema=schema_of(timed=True))


def between(given_rows: list[Row], reach: Reach) -> pa.Table:
    """The rows that a run reads, as a tape would give them."""
    since, until = reach.reads.since[0], reach.reads.until[0]
    low = -1 if since is None else since
    high = reach.last if until is None else min(until, reach.last)
    return table([row for row in given_rows if low <= row[0] < high])


def chain(*specs: tuple[str, object], timed: bool = True) -> DagBuilder:
    """A graph of operators one after another, from `in` to `out`."""
    builder = DagBuilder().source("in", schema_of(timed=timed))
    before = "in"
    for name, spec in specs:
        if spec.key is None:  # type: ignore[attr-defined]
            builder.stateless_operator(name, spec)  # type: ignore[arg-type]
        else:
            builder.operator(name, spec)  # type: ignore[arg-type]
        builder.connect(before, name)
        before = name
    return builder.sink_for(before, "out")


def halves(join: object, **after: object) -> DagBuilder:
    """A graph that joins the rows with even numbers to those with odd ones, and nulls."""
    left = Filter(lambda b: pc.equal(pc.bit_wise_and(b.column("number"), 1), 0))
    right = Filter(
        lambda b: pc.fill_null(pc.equal(pc.bit_wise_and(b.column("number"), 1), 1), True)
    )
    builder = (
        DagBuilder()
        .source("in", schema_of(timed=True))
        .stateless_operator("left", left)
        .stateless_operator("right", right)
        .connect("in", "left")
        .connect("in", "right")
        .operator("join", join)  # type: ignore[arg-type]
        .connect("left", "join")
        .connect("right", "join")
    )
    before = "join"
    for name, spec in after.items():
        builder.operator(name, spec).connect(before, name)  # type: ignore[arg-type]
        before = name
    return builder.sink_for(before, "out")


def sums(size: int, slide: int, *by: str) -> Window:
    return Window.sliding(size, slide, [sum_of("number"), sum_of("ratio"), count_rows()], by=by)


def diamond() -> DagBuilder:
    """A window by key, and one over all, joined by their ends: three stages, two sinks."""
    return (
        DagBuilder()
        .source("in", schema_of(timed=True))
        .operator("by_key", Window.tumbling(3, [sum_of("number")], by=["key"]))
        .operator("over_all", Window.tumbling(3, [count_rows("rows")]))
        .connect("in", "by_key")
        .connect("in", "over_all")
        .operator("share", WindowJoin(("window_end",), ("window_end",), 3, prefix="all_"))
        .connect("by_key", "share")
        .connect("over_all", "share")
        .sink_for("share", "out")
        .sink_for("by_key", "keys")
    )


def looking_ahead() -> DagBuilder:
    """Each even row with the odd ones that follow soon, at the time of the even one."""
    own = Project({"key": "key", "number": "number", "at": TIME})
    left = Filter(lambda b: pc.equal(pc.bit_wise_and(b.column("number"), 1), 0))
    right = Filter(lambda b: pc.equal(pc.bit_wise_and(b.column("number"), 1), 1))
    join = IntervalJoin(("key",), ("key",), 0, 2, how="left", prefix="right_")
    shown = Project({"key": "key", "next": "right_number", TIME: "at"})
    return (
        DagBuilder()
        .source("in", schema_of(timed=True))
        .stateless_operator("own", own)
        .stateless_operator("left", left)
        .stateless_operator("right", right)
        .connect("in", "own")
        .connect("own", "left")
        .connect("in", "right")
        .operator("join", join)
        .connect("left", "join")
        .connect("right", "join")
        .stateless_operator("shown", shown)
        .connect("join", "shown")
        .sink_for("shown", "out")
    )


class _Recent(Operator):
    """Counts for each row those of its key until three units later, when its timer fires."""

    state_ports = None

    def __init__(self) -> None:
        self.times: dict[str | None, list[int]] = {}

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        times = (
            batch.column(TIME).to_pylist()
            if TIME in batch.schema.names
            else [context.time] * batch.num_rows
        )
        for key, time in zip(batch.column("key").to_pylist(), times, strict=True):
            self.times.setdefault(key, []).append(time)
            context.set_timer(time + 3, "null" if key is None else f"key {key}")

    def on_timer(self, timer: Timer, context: OperatorContext) -> None:
        key = None if timer.tag == "null" else timer.tag.removeprefix("key ")
        self.times[key] = [time for time in self.times[key] if time >= timer.time - 3]
        made = {"key": [key], "rows": [len(self.times[key])], TIME: [timer.time]}
        context.emit(pa.RecordBatch.from_pydict(made, schema=RECENT))

    def checkpoint(self) -> bytes:
        return json.dumps(list(self.times.items())).encode()

    def restore(self, version: int, state: bytes) -> None:
        self.times = dict(json.loads(state))


RECENT = pa.schema([("key", pa.string()), ("rows", pa.int64()), (TIME, pa.int64())])


class Recent:
    """The description of `_Recent`."""

    key = Key.of("key")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return RECENT

    def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
        return frozenset({"key"})

    def create(self, inputs: Sequence[pa.Schema]) -> Operator:
        return _Recent()

    def describe(self) -> str:
        return "recent rows"


def _seen(
    key: object, value: object, time: int, entries: dict[object, tuple[object, int]]
) -> tuple[str, dict[object, tuple[object, int]]]:
    """What a key has seen in the last three units, as text, with `value`."""
    first = sorted([*(repr(item) for item, _ in entries.values()), repr(value)])
    return " ".join(first), {**entries, (time, repr(value)): (value, time + 3)}


class Quiet(StatefulLogic[int, tuple[int, int], int]):
    """The sum of the rows of a key that come less than two units apart, when it has been quiet."""

    def on_data(
        self, message: Data[int], state: tuple[int, int] | None, output: LogicOutput[int]
    ) -> tuple[int, int]:
        assert message.time is not None
        return (state or (0, 0))[0] + (message.value or 0), message.time

    def on_epoch(
        self,
        epoch: int,
        states: MutableMapping[Hashable, tuple[int, int]],
        output: LogicOutput[int],
    ) -> None:
        for key, (total, last) in list(states.items()):
            if last + 2 <= epoch:
                output.emit(key, total, last + 2)
                del states[key]


TTL = KeyedLogic(ttl_map(_seen), ("key",), ("number",), pa.schema([("seen", pa.string())]))
QUIET = KeyedLogic(Quiet(), ("key",), ("number",), pa.schema([("total", pa.int64())]))
SESSION = SessionWindow(2, (count_rows(), last_of("number"), sum_of("ratio")), by=("key",))
FIRST = TopN(2, (("number", "descending"),), by=("key",), window=4, rank="rank")
FIRST_OF_ALL = TopN(1, (("number", "descending"),), by=("key",))
PAIRS = IntervalJoin(("key",), ("key",), -2, 1, how="left", prefix="right_")
SAME_WINDOW = WindowJoin(("key",), ("key",), 3, how="left", prefix="right_")
NARROW = Project({"key": "key", "number": "number"})

# By name: the graph, how far back and ahead outputs depend on records, None for to the beginning.
GRAPHS = {
    "tumbling": (lambda: chain(("w", sums(3, 3, "key"))), 2, 0),
    "sliding": (
        lambda: chain(("narrow", NARROW), ("w", Window.sliding(5, 2, [count_rows()]))), 4, 0
    ),
    "session": (lambda: chain(("s", SESSION)), None, 0),
    "two windows": (
        lambda: chain(("w", sums(2, 2, "key")), ("v", Window.tumbling(6, [sum_of("count")]))), 6, 0
    ),
    "interval join": (lambda: halves(PAIRS), 3, 0),
    "window join": (lambda: halves(SAME_WINDOW), 2, 0),
    "joined and counted": (
        lambda: halves(SAME_WINDOW, w=Window.tumbling(6, [count_rows()], by=["number"])), 6, 0
    ),
    "first of a window": (lambda: chain(("t", FIRST)), 3, 0),
    "deduplicated": (lambda: chain(("d", Deduplicate(("key",)))), None, 0),
    "diamond": (diamond, 2, 0),
    "row by row": (lambda: chain(("narrow", NARROW)), 0, 0),
    "looking ahead": (looking_ahead, 0, 2),
    "entries that expire": (lambda: chain(("op", TTL)), 3, 0),
    "at epochs": (lambda: chain(("op", QUIET)), None, 0),
    "timers": (lambda: chain(("op", Recent())), 3, 0),
}  # fmt: skip
# Timers of one worker are not those of another.
KEYED = [name for name in GRAPHS if name != "timers"]
UNTIMED = {
    "tumbling": lambda: chain(("w", sums(3, 3, "key")), timed=False),
    "session": lambda: chain(("s", SESSION), timed=False),
    "row by row": lambda: chain(("narrow", NARROW), timed=False),
    "entries that expire": lambda: chain(("op", TTL), timed=False),
    "timers": lambda: chain(("op", Recent()), timed=False),
}


def made(name: str) -> Pipeline:
    build, back, ahead = GRAPHS[name]
    sinks = "out,keys" if name == "diamond" else "out"
    reach = {"unbounded": True} if back is None else {"lookback": back}
    return pipeline(build(), sinks, lookahead=ahead, **reach)


def contents(ran: LocalRun) -> dict[str, list[tuple[object, ...]]]:
    return {
        name: multiset([Event(0, batch) for batch in actual.to_batches()])
        for name, actual in ran.sinks.items()
    }


def run(
    law: Pipeline, given_rows: list[Row], reach: Reach, *, peers: int = 1, size: int = 10_000
) -> dict[str, list[tuple[object, ...]]]:
    return contents(
        run_locally(between(given_rows, reach), law, reach, peers=peers, rows_per_batch=size)
    )


def reach_at(law: Pipeline, since: int | None, until: int | None, frontier: int | None) -> Reach:
    at = Antichain() if frontier is None else Antichain.of([(frontier,)])
    return reach_of(law, TIMES, Box((since,), (until,)), at)


ends = st.none() | st.integers(0, LARGEST)


@pytest.mark.parametrize("name", GRAPHS)
@settings(max_examples=25, deadline=None)
@given(rows(), st.integers(1, 4), st.integers(1, 5), ends)
def test_stages_on_many_workers_give_what_one_executor_gives(
    name: str, given_rows: list[Row], peers: int, size: int, frontier: int | None
) -> None:
    law = made(name)
    reach = reach_at(law, None, None, frontier)
    whole = DagExecutor.from_dag(law.dag())
    fed = between(sorted(given_rows, key=lambda row: row[0]), reach)
    for time in sorted(set(fed.column(TIME).to_pylist())):
        (batch,) = fed.filter(pc.equal(fed.column(TIME), time)).combine_chunks().to_batches()
        whole.process_watermark("in", time)
        whole.process_event("in", Event(time, batch))
    whole.process_watermark("in", reach.last)
    expected = {sink.node: multiset(whole.take_sink_outputs(sink.node)) for sink in law.sinks}
    if reach.until is not None:
        # What later records could change is not given out.
        expected = {n: [row for row in f if row[0] < reach.until] for n, f in expected.items()}
    assert run(law, given_rows, reach, peers=peers, size=size) == expected


@pytest.mark.parametrize("name", GRAPHS)
@settings(max_examples=25, deadline=None)
@given(rows(), st.lists(st.integers(0, LARGEST), max_size=4), st.integers(1, 3))
def test_a_run_over_a_range_is_the_runs_over_its_pieces(
    name: str, given_rows: list[Row], cuts: list[int], peers: int
) -> None:
    law = made(name)
    edges = [None, *sorted(set(cuts)), None]
    whole = run(law, given_rows, reach_at(law, None, None, None))
    pieces: dict[str, list[tuple[object, ...]]] = {node: [] for node in whole}
    for since, until in pairwise(edges):
        piece = run(law, given_rows, reach_at(law, since, until, None), peers=peers)
        for node, actual in piece.items():
            pieces[node] += actual
    assert {node: sorted(actual, key=repr) for node, actual in pieces.items()} == whole


def resumed(reach: Reach, before: Reach) -> Reach:
    """What is left of a reach after a run with another one."""
    rest = Box((before.until,), (reach.until,))
    return resuming(replace(reach, writes=rest), before.last)


def rescaled(law: Pipeline, state: tuple[StateRow, ...], before: int, after: int) -> list[StateRow]:
    """State dealt to other workers, each row for itself."""
    rescaling = Rescaling.create(law.plan(), headers_of(state), before, after)
    dealt = [*rescaling.seeds(), *(made for row in state for made in rescaling.split([row]))]
    actual: list[StateRow] = []
    for worker in range(after):
        actual += rescaling.arrive(row for row in dealt if row.worker == worker)
    rescaling.require_none_lost(headers_of(actual))
    return actual


@pytest.mark.parametrize("name", KEYED)
@settings(max_examples=25, deadline=None)
@given(rows(), st.lists(st.integers(0, LARGEST), max_size=4), st.data())
def test_resumed_runs_on_any_workers_equal_one_run(
    name: str, given_rows: list[Row], cuts: list[int], data: st.DataObject
) -> None:
    law = made(name)
    whole = run(law, given_rows, reach_at(law, None, None, None))
    pieces: dict[str, list[tuple[object, ...]]] = {node: [] for node in whole}
    state: list[StateRow] | None = None
    before: Reach | None = None
    peers = data.draw(st.integers(1, 3))
    for frontier in [*sorted(set(cuts)), None]:
        reach = reach_at(law, None, None, frontier)
        if before is not None and state is not None:
            reach = resumed(reach, before)
            now = data.draw(st.integers(1, 3))
            if now != peers:
                state, peers = rescaled(law, tuple(state), peers, now), now
        ran = run_locally(
            between(given_rows, reach), law, reach, peers=peers, state=state, keeps=True
        )
        assert trimmed(ran) == []
        state, before = data.draw(st.permutations(ran.state)), reach
        for node, actual in contents(ran).items():
            pieces[node] += actual
    assert {node: sorted(actual, key=repr) for node, actual in pieces.items()} == whole


def test_rows_beyond_the_lookahead_stop_the_run() -> None:
    law = pipeline(looking_ahead(), lookahead=1)
    given_rows: list[Row] = [(3, "a", 2, None), (7, "a", 4, None)]
    first = reach_at(law, None, None, 5)
    ran = run_locally(between(given_rows, first), law, first, keeps=True)
    # The row at 3 waits for others until 5, when 4 is written.
    assert ran.sinks["out"].num_rows == 0
    reach = resumed(reach_at(law, None, None, None), first)
    with pytest.raises(LateOutput, match="out emitted a row at 3, but all times before 4"):
        run_locally(between(given_rows, reach), law, reach, state=ran.state)


def test_a_resumed_run_writes_only_later_output() -> None:
    law = made("looking ahead")
    given_rows: list[Row] = [(0, "a", 0, None), (0, "a", 1, None)]
    state: list[StateRow] | None = None
    before: Reach | None = None
    actual: list[tuple[object, ...]] = []
    for frontier in (0, 1, None):
        reach = reach_at(law, None, None, frontier)
        reach = reach if before is None else resumed(reach, before)
        ran = run_locally(between(given_rows, reach), law, reach, state=state, keeps=True)
        state, before = list(ran.state), reach
        actual += contents(ran)["out"]
    whole = run(law, given_rows, reach_at(law, None, None, None))
    assert sorted(actual, key=repr) == whole["out"]
    assert actual


def test_a_state_that_is_not_all_there_stops_the_run() -> None:
    law = made("tumbling")
    given_rows: list[Row] = [(t, key, 1, None) for t in range(6) for key in "abcdef"]
    first = reach_at(law, None, None, 5)
    state = run_locally(between(given_rows, first), law, first, peers=2, keeps=True).state
    reach = resumed(reach_at(law, None, None, None), first)

    def again(known: list[StateRow], peers: int = 2) -> LocalRun:
        return run_locally(between(given_rows, reach), law, reach, peers=peers, state=known)

    assert again(list(state)).sinks["out"].num_rows > 0
    for number, row in enumerate(state):
        with pytest.raises(NotWhole):
            again([*state[:number], *state[number + 1 :]])
        if row.kind is StateKind.HEAD or (row.part_of and row.rows):
            with pytest.raises(NotWhole):
                again([*state, row])
        if row.data is not None:
            with pytest.raises(SnapshotCorrupt):
                again([*state[:number], replace(row, data=b"x" + row.data), *state[number + 1 :]])
    with pytest.raises((NotWhole, Misplaced)):
        again(list(state), peers=3)
    swapped = [replace(row, worker=1 - row.worker) for row in state]
    with pytest.raises(Misplaced):
        again(swapped)


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        (lambda: chain(("w", sums(3, 3, "key"))), lambda: chain(("w", sums(6, 6, "key"))), "size"),
        (lambda: chain(("w", SESSION)), lambda: chain(("w", sums(3, 3, "key"))), "operator"),
        (lambda: halves(PAIRS), lambda: halves(replace(PAIRS, upper=2)), "upper"),
        (
            lambda: chain(("w", TTL)),
            lambda: chain(("w", replace(TTL, columns=("ratio",)))),
            "columns",
        ),
    ],
)
def test_no_run_goes_on_from_the_state_of_another_operator(
    first: Callable[[], DagBuilder], then: Callable[[], DagBuilder], reason: str
) -> None:
    given_rows: list[Row] = [(t, key, t, None) for t in range(6) for key in "abc"]
    before, after = pipeline(first(), unbounded=True), pipeline(then(), unbounded=True)
    played = reach_at(before, None, None, 4)
    ran = run_locally(between(given_rows, played), before, played, peers=2, keeps=True)
    reach = resumed(reach_at(after, None, None, None), played)
    fed = between(given_rows, reach)
    with pytest.raises(StateChanged, match=f"has changed since.* {reason} was"):
        run_locally(fed, after, reach, peers=2, state=ran.state)
    with pytest.raises(StateChanged, match=f"has changed since.* {reason} was"):
        Rescaling.create(after.plan(), headers_of(ran.state), 2, 3)
    run_locally(fed, pipeline(first(), unbounded=True), reach, peers=2, state=ran.state)


class Sums(StatefulLogic[int, int, int]):
    """The sum of each key so far."""

    def on_data(self, message: Data[int], state: int | None, output: LogicOutput[int]) -> int:
        total = (state or 0) + message.value
        output.emit(message.key, total, message.time)
        return total


class SumsInPairs(StatefulLogic[int, tuple[int, int], int]):
    """The same with another form of state: sum and number of records."""

    version = 2

    def on_data(
        self, message: Data[int], state: tuple[int, int] | None, output: LogicOutput[int]
    ) -> tuple[int, int]:
        total, count = state or (0, 0)
        output.emit(message.key, total + message.value, message.time)
        return total + message.value, count + 1

    def migrate(self, version: int, state: object) -> tuple[int, int]:
        assert version == 1
        return int(str(state)), 0


def test_a_logic_of_another_version_goes_on_through_a_rescale() -> None:
    total = pa.schema([("total", pa.int64())])
    laws = [
        pipeline(chain(("s", KeyedLogic(logic, ("key",), ("number",), total))), unbounded=True)
        for logic in (Sums(), SumsInPairs())
    ]
    given_rows: list[Row] = [(t, key, t, None) for t in range(6) for key in "abcdef"]
    first = reach_at(laws[0], None, None, 3)
    ran = run_locally(between(given_rows, first), laws[0], first, peers=2, keeps=True)
    reach = resumed(reach_at(laws[0], None, None, None), first)
    fed = between(given_rows, reach)
    assert contents(run_locally(fed, laws[1], reach, peers=2, state=ran.state)) == contents(
        run_locally(fed, laws[0], reach, peers=2, state=ran.state)
    )
    dealt = rescaled(laws[1], ran.state, 2, 3)
    again = run_locally(fed, laws[1], reach, peers=3, state=dealt, keeps=True)
    assert contents(again) == contents(run_locally(fed, laws[0], reach, peers=2, state=ran.state))
    # There is no way back: what it keeps is of the other version.
    more = resumed(reach_at(laws[0], None, None, None), reach)
    with pytest.raises(RestoreFailed, match="state has version 2, the logic has 1"):
        run_locally(table([]), laws[0], more, peers=3, state=again.state)


@pytest.mark.parametrize("name", UNTIMED)
@settings(max_examples=25, deadline=None)
@given(rows(), st.integers(1, 3), st.integers(1, 5))
def test_rows_without_times_of_their_own_come_time_by_time(
    name: str, given_rows: list[Row], peers: int, size: int
) -> None:
    law = pipeline(UNTIMED[name]())
    timed = pipeline(GRAPHS[name][0]())  # type: ignore[operator]
    expected = run(timed, given_rows, reach_at(timed, None, None, None))
    assert run(law, given_rows, reach_at(law, None, None, None), peers=peers, size=size) == expected


@settings(max_examples=40, deadline=None)
@given(rows(), st.integers(1, 3), st.integers(1, LARGEST))
def test_stages_respect_earlier_holds(given_rows: list[Row], peers: int, frontier: int) -> None:
    # The first of all rows leaves at the end alone, and is joined to what comes all the time.
    left = Window.tumbling(2, [count_rows("rows")], by=["number"])
    join = WindowJoin(("number",), ("number",), 4, how="left", prefix="first_")
    build = (
        DagBuilder()
        .source("in", schema_of(timed=True))
        .operator("counts", left)
        .operator("first", FIRST_OF_ALL)
        .operator("both", join)
        .connect("in", "counts")
        .connect("in", "first")
        .connect("counts", "both")
        .connect("first", "both")
        .sink_for("both", "out")
    )
    law = pipeline(build)
    reach = reach_at(law, None, None, frontier)
    actual = run(law, given_rows, reach, peers=peers)["out"]
    least = min((row[0] for row in given_rows if row[0] < frontier), default=frontier)
    # Nothing of a window that the held rows could still be in.
    assert all(row[0] < least // 4 * 4 for row in actual)


def test_results_outside_the_range_are_left_out_and_counted() -> None:
    law = made("tumbling")
    given_rows: list[Row] = [(t, "a", 1, None) for t in range(12)]
    reach = reach_at(law, 5, 10, 100)
    ran = run_locally(between(given_rows, reach), law, reach, peers=2)
    assert ran.sinks["out"].column(TIME).to_pylist() == [5, 8]
    # Reading from 3 on, the window from 3 to 6 is whole, and the one from 9 stays open.
    assert trimmed(ran) == []
    reach = reach_at(law, 6, 10, 100)
    ran = run_locally(between(given_rows, reach), law, reach, peers=2)
    assert ran.sinks["out"].column(TIME).to_pylist() == [8]
    assert trimmed(ran) == ['{"node": "out", "rows": 1}']


def test_results_after_the_range_are_left_out_too() -> None:
    law = made("looking ahead")
    given_rows: list[Row] = [(3, "a", 2, None), (4, "a", 4, None), (4, "a", 5, None)]
    reach = reach_at(law, 0, 4, 100)
    ran = run_locally(between(given_rows, reach), law, reach)
    assert ran.sinks["out"].to_pylist() == [{TIME: 3, "key": "a", "next": 5}]
    assert trimmed(ran) == ['{"node": "out", "rows": 1}']


def trimmed(ran: LocalRun) -> list[str]:
    kind = pc.equal(ran.notes.column("kind"), NoteKind.TRIMMED.value)
    return ran.notes.filter(kind).column("note").to_pylist()


class _Divert(Operator):
    """Puts rows of key `b` aside by name, and passes the others."""

    def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
        other = pc.equal(batch.column("key"), "b")
        context.side("bees", batch.filter(other))
        context.late(batch.filter(pc.equal(batch.column("number"), 3)))
        context.emit(batch.filter(pc.invert(other)))


class Divert(Stateless):
    """See `_Divert`."""

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def preserves(self, inputs: list[pa.Schema]) -> frozenset[str]:
        return frozenset(inputs[0].names)

    def create(self, inputs: list[pa.Schema]) -> Operator:
        return _Divert()

    def describe(self) -> str:
        return "divert"


def test_diverted_rows_are_returned_row_by_row() -> None:
    law = pipeline(chain(("d", Divert()), ("w", sums(3, 3, "key"))))
    given_rows: list[Row] = [(1, "a", 1, 0.5), (2, "b", 2, float("nan")), (2, "b", 3, None)]
    ran = run_locally(table(given_rows), law, reach_at(law, None, None, None))
    kind = pc.equal(ran.notes.column("kind"), NoteKind.ASIDE.value)
    notes = sorted(ran.notes.filter(kind).column("note").to_pylist())
    assert len(notes) == 3
    assert '"output": "late"' in notes[0]
    assert '"name": "bees"' in notes[1]
    assert [note.count('\\"ratio\\": \\"nan\\"') for note in notes] == [0, 1, 0]
    assert all('"node": "d"' in note and '"time": 2' in note for note in notes)


def test_an_operator_that_fails_says_where() -> None:
    def fail(batch: pa.RecordBatch) -> pa.Array:
        if "b" in batch.column("key").to_pylist():
            message = "no b"
            raise ValueError(message)
        return pc.equal(batch.column("key"), "a")

    law = pipeline(chain(("w", sums(3, 3, "key")), ("f", Filter(fail))))
    with pytest.raises(OperatorFailed, match="no b") as failed:
        run_locally(table([(4, "b", 1, None)]), law, reach_at(law, None, None, None), peers=3)
    assert failed.value.fields["node"] == "f"
    assert failed.value.fields["time"] == 5
    assert failed.value.fields["worker"] in (0, 1, 2)


def test_sorted_rows_are_never_late() -> None:
    law = pipeline(chain(("w", sums(3, 3, "key")), ("d", DivertLate())))
    given_rows: list[Row] = [(t, "ab"[t % 2], t, None) for t in (5, 1, 9, 3, 3, 0)]
    ran = run_locally(table(given_rows), law, reach_at(law, None, None, None), rows_per_batch=1)
    assert ran.sinks["out"].num_rows == 4
    kinds = set(ran.notes.column("kind").to_pylist())
    assert NoteKind.ASIDE.value not in kinds
