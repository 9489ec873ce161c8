"""Rows at times, all ways of feeding them to a graph, and its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from hypothesis import strategies as st

from capstan.pipeline import END, TIME, Dag, DagBuilder, DagExecutor, Event, OperatorSpec

Row = tuple[int, str, int | None, float | None]
"""The time of a row, its key, a number and a float."""

SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64()), ("ratio", pa.float64())])

# Small, so that rows meet in keys, times and windows; the sum of the floats depends on the order.
_KEYS = "ab"
_RATIOS = [0.1, 0.2, 0.3, 1e16, -1e16, -0.0, 0.0, None]

Step = tuple[str, Event | int]
"""A source, and an event or a watermark for it."""


def rows(max_size: int = 14) -> st.SearchStrategy[list[Row]]:
    """Rows with few keys at few times."""
    values = st.none() | st.integers(-3, 3)
    row = st.tuples(st.integers(0, 12), st.sampled_from(_KEYS), values, st.sampled_from(_RATIOS))
    return st.lists(row, max_size=max_size)


@st.composite
def feedings(draw: st.DrawFn, inputs: Mapping[str, Sequence[Row]], *, timed: bool) -> list[Step]:
    """A way to feed rows to sources: any batches, in any order that leaves none late.

    Args:
        draw: Hypothesis's function.
        inputs: The rows of each source.
        timed: Whether rows have their own times, and a batch has rows of several times.
    """
    edges = sorted({*draw(st.lists(st.integers(0, 14), max_size=3)), END})
    steps: list[Step] = []
    before = -1
    for edge in edges:
        part: list[Step] = []
        for source, given in inputs.items():
            due = draw(st.permutations([row for row in given if before <= row[0] < edge]))
            part += [(source, event) for event in draw(batches(due, timed=timed))]
        steps += draw(st.permutations(part))
        steps += [(source, edge) for source in inputs]
        before = edge
    return steps


@st.composite
def batches(draw: st.DrawFn, given: Sequence[Row], *, timed: bool) -> list[Event]:
    """The rows, cut into batches in their order."""
    cuts = {0, len(given), *draw(st.lists(st.integers(0, len(given)), max_size=4))}
    if not timed:
        cuts |= {n for n in range(1, len(given)) if given[n][0] != given[n - 1][0]}
    places = sorted(cuts)
    return [event_of(given[start:end], timed=timed) for start, end in pairwise(places)]


def event_of(given: Sequence[Row], *, timed: bool) -> Event:
    """An event with these rows, at one time unless they have their own."""
    times, keys, numbers, ratios = zip(*given, strict=True)
    columns = [pa.array(keys), pa.array(numbers, pa.int64()), pa.array(ratios, pa.float64())]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    if timed:
        batch = batch.append_column(pa.field(TIME, pa.int64()), pa.array(times, pa.int64()))
    return Event(min(times), batch)


def schema_of(*, timed: bool) -> pa.Schema:
    """The columns of `event_of`."""
    return SCHEMA.append(pa.field(TIME, pa.int64())) if timed else SCHEMA


def graph_of(spec: OperatorSpec, sources: Sequence[str], *, timed: bool) -> Dag:
    """A graph of sources, one operator and a sink `out`."""
    builder = DagBuilder()
    for source in sources:
        builder.source(source, schema_of(timed=timed))
    if spec.key is None:
        builder.stateless_operator("op", spec)
    else:
        builder.operator("op", spec)
    for source in sources:
        builder.connect(source, "op")
    return builder.sink_for("op", "out").build()


def feed(executor: DagExecutor, steps: Sequence[Step]) -> None:
    """Feed events and watermarks to an executor."""
    for source, item in steps:
        if isinstance(item, Event):
            executor.process_event(source, item)
        else:
            executor.process_watermark(source, item)


def tuples(outputs: Sequence[Event]) -> Iterator[tuple[object, ...]]:
    """The rows of events, each with its time first; floats as text, which distinguishes all."""
    for output in outputs:
        names = [name for name in output.batch.schema.names if name != TIME]
        columns = [output.batch.column(name).to_pylist() for name in names]
        timed = TIME in output.batch.schema.names
        count = output.batch.num_rows
        times = output.batch.column(TIME).to_pylist() if timed else [output.time] * count
        for row in zip(times, *columns, strict=True):
            yield tuple(repr(value) if isinstance(value, float) else value for value in row)


def multiset(outputs: Sequence[Event]) -> list[tuple[object, ...]]:
    """The rows of events in an order independent of theirs."""
    return sorted(tuples(outputs), key=repr)


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of feeding a graph.

    Attributes:
        rows: The output at `out`, as a multiset.
        late: Number of rows set aside as late.
    """

    rows: list[tuple[object, ...]]
    late: int


def run(dag: Dag, steps: Sequence[Step]) -> Ran:
    """Feed a graph of `graph_of`."""
    executor = DagExecutor.from_dag(dag)
    feed(executor, steps)
    late = executor.node_metrics("op").late_rows
    return Ran(multiset(executor.take_sink_outputs("out")), late)
