"""Cost of keyed state per row: sums and sessions by key, compared with bytewax and Spark."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capstan.pipeline import (
    TIME,
    Dag,
    DagBuilder,
    DagExecutor,
    Event,
    KeyedAggregate,
    KeyedLogic,
    OperatorSpec,
    StatefulLogic,
)
from capstan.pipeline.keyed.stateful_functions import Data, LogicOutput
from capstan.pipeline.operators import SessionWindow, sum_of
from tests.bench.cpu_clock import Cost
from tests.bench.inputs import Bench
from tests.bench.measures import Line, rate, ratio
from tests.bench.spark_stateful import by_spark

_BATCH: Final = 10_000
_TICK: Final = timedelta(milliseconds=1)
Sums = Counter[tuple[str, int]]
"""Rows per key."""

_SCHEMA: Final = pa.schema([("key", pa.string()), ("number", pa.int64()), (TIME, pa.int64())])


class _Sum(StatefulLogic[int, int, int]):
    """Emits the running sum for each record."""

    def on_data(self, message: Data[int], state: int | None, output: LogicOutput[int]) -> int:
        total = (state or 0) + message.value
        output.emit(message.key, total, message.time)
        return total


@dataclass(frozen=True, slots=True)
class Work:
    """A workload.

    A row comes every millisecond, with a random key. A session ends when its key is silent for half
    as many milliseconds as there are keys, so the number of rows per session is constant.

    Attributes:
        rows: Number of rows.
        keys: Number of keys.
    """

    rows: int
    keys: int

    @property
    def gap(self) -> int:
        """Milliseconds of silence that end a session."""
        return self.keys // 2

    def made(self) -> pa.Table:
        """The rows, the same each time."""
        draw = np.random.default_rng(1)
        keys = pc.cast(pa.array(draw.integers(0, self.keys, self.rows)), pa.string())
        numbers = pa.array(draw.integers(0, 100, self.rows), pa.int64())
        return pa.table([keys, numbers, pa.array(np.arange(self.rows))], schema=_SCHEMA)


_WHOLE: Final = Work(10_000_000, 100_000)
_RECORDS: Final = Work(200_000, 100_000)
_VISITS: Final = Work(100_000, 1_000)
_MANY: Final = Work(20_000, 100_000)
"""Rows for bytewax: each row of windows costs it more the more rows and keys there are."""


def states(bench: Bench) -> list[Line]:
    """Cost per row of keyed sums and sessions, compared with other systems on the same rows.

    The comparison with bytewax, if installed, uses as many rows as the smaller size, or a fifth;
    another is with Spark's `transformWithState`. The batch forms are also measured alone, over many
    more rows.
    """
    theirs = find_spec("bytewax") is not None
    small = bench.options.small
    given = [
        ("keyed sum, batch form", in_batches, Work(small, 100_000), 0.1, "reduce_final"),
        ("keyed sum, by record", by_record, Work(small // 5, 100_000), 2 / 3, "stateful_map"),
        ("sessions, batch form", sessions, _VISITS, 0.1, "fold_window"),
        ("sessions of more keys, batch form", sessions, _MANY, 0.1, "fold_window"),
    ]
    lines = [_line(bench, *item, theirs=theirs) for item in given]
    bench.say(f"{_WHOLE.rows:,} rows of {_WHOLE.keys:,} keys")
    rows = _WHOLE.made()
    for name, spec in (("keyed sum", in_batches), ("sessions", sessions)):
        costs = [
            bench.clock.measure(partial(run, spec(_WHOLE), rows))
            for _ in range(bench.options.rounds)
        ]
        lines.append(rate(f"{name}, {_WHOLE.rows:,} rows", "rows/s", _WHOLE.rows, costs))
    del rows
    return [*lines, *_beside_spark(bench)]


def in_batches(_work: Work) -> OperatorSpec:
    """Sums by key, emitted at the end."""
    return KeyedAggregate((sum_of("number"),), ("key",))


def by_record(_work: Work) -> OperatorSpec:
    """Sums by key, emitted with each record."""
    return KeyedLogic(_Sum(), ("key",), ("number",), pa.schema([("total", pa.int64())]))


def sessions(work: Work) -> OperatorSpec:
    """Sums by session."""
    return SessionWindow(work.gap, (sum_of("number"),), ("key",))


def _beside_spark(bench: Bench) -> list[Line]:
    return [
        _by_spark(bench, "keyed sum, by record", by_record, _RECORDS, None),
        _by_spark(bench, "sessions, batch form", sessions, _VISITS, _VISITS.gap),
    ]


def _by_spark(
    bench: Bench, name: str, spec: Callable[[Work], OperatorSpec], work: Work, gap: int | None
) -> Line:
    """CPU seconds per row, compared with Spark's own operator on the same rows.

    Raises:
        AssertionError: The results differ.
    """
    against = "transformWithState"
    bench.say(f"{name}: {work.rows:,} rows of {work.keys:,} keys, compared with {against}")
    rows = work.made()
    ours = _per_row(bench, partial(run, spec(work), rows), work.rows)
    others, table = by_spark(bench, rows, _files(bench, name, rows), gap)
    mine, theirs = sums_of(run(spec(work), rows)), _sums_in(table, "total")
    if gap is None:
        # Spark does not promise the order of a key's rows in a batch: its last sum is the largest.
        same = _largest(mine) == _largest(theirs) and mine.total() == theirs.total()
    else:
        # In Spark, one session per key may still be open.
        same = theirs <= mine and mine.total() - theirs.total() <= work.keys
    assert same, f"{name}: {against} has another result"
    ratios = [one / other for one, other in zip(ours, others, strict=True)]
    detail: dict[str, object] = {
        "rows": work.rows,
        "keys": work.keys,
        "rows/s": 1 / median(ours),
        f"{against} rows/s": 1 / median(others),
    }
    return Line(name, against, median(ratios), None, rounds=tuple(ratios), detail=detail)


def _largest(sums: Sums) -> dict[str, int]:
    largest: dict[str, int] = {}
    for key, total in sums:
        largest[key] = max(total, largest.get(key, total))
    return largest


def _files(bench: Bench, name: str, rows: pa.Table) -> Path:
    """The rows in files, each of which is one batch of a stream."""
    folder = bench.folder / name.replace(",", "").replace(" ", "-")
    folder.mkdir()
    for number in range(4):
        part = rows.slice(number * rows.num_rows // 4, rows.num_rows // 4)
        pq.write_table(part, folder / f"part-{number}.parquet")
    return folder


def _line(
    bench: Bench,
    name: str,
    spec: Callable[[Work], OperatorSpec],
    work: Work,
    goal: float,
    operator: str,
    *,
    theirs: bool,
) -> Line:
    """CPU seconds per row compared with bytewax on the same rows, and both rates.

    Raises:
        AssertionError: The results differ.
    """
    bench.say(f"{name}: {work.rows:,} rows of {work.keys:,} keys")
    rows = work.made()
    ours = _per_row(bench, partial(run, spec(work), rows), work.rows)
    detail: dict[str, object] = {"rows": work.rows, "keys": work.keys, "rows/s": 1 / median(ours)}
    if not theirs:
        return Line(name, "", 1 / median(ours), None, "rows/s", detail=detail)
    pairs = pairs_of(rows)
    others = _per_row(bench, partial(run_bytewax, operator, pairs, work.gap), work.rows)
    same = sums_of(run(spec(work), rows)) == sums_of_bytewax(run_bytewax(operator, pairs, work.gap))
    assert same, f"{name}: bytewax has another result"
    ratios = [ratio(mine, other) for mine, other in zip(ours, others, strict=True)]
    detail |= {"bytewax rows": len(pairs), "bytewax rows/s": 1 / median(others)}
    return Line(
        name,
        f"bytewax {operator}",
        ratio(median(ours), median(others)),
        goal,
        rounds=tuple(value for value in ratios if value is not None),
        detail=detail,
    )


def _per_row(bench: Bench, work: Callable[[], object], rows: int) -> list[float]:
    costs: list[Cost] = [bench.clock.measure(work) for _ in range(bench.options.rounds)]
    return [cost.cpu / rows for cost in costs]


def pairs_of(rows: pa.Table) -> list[tuple[str, int]]:
    """Rows in the form for bytewax: keys and numbers."""
    columns = [rows.column(name).to_pylist() for name in ("key", "number")]
    return list(zip(*columns, strict=True))


def _graph(spec: OperatorSpec) -> Dag:
    builder = DagBuilder().source("in", _SCHEMA).operator("sum", spec).connect("in", "sum")
    return builder.sink_for("sum", "out").build()


def run(spec: OperatorSpec, rows: pa.Table) -> list[Event]:
    """The output of an operator for rows in batches."""
    executor = DagExecutor.from_dag(_graph(spec))
    events = []
    for batch in rows.to_batches(max_chunksize=_BATCH):
        first = batch.column(TIME)[0].as_py()
        executor.process_watermark("in", first)
        executor.process_event("in", Event(first, batch))
        events += executor.take_sink_outputs("out")
    executor.finish()
    events += executor.take_sink_outputs("out")
    return events


def run_bytewax(operator: str, pairs: list[tuple[str, int]], gap: int) -> list[Any]:
    """The same by bytewax, on one worker."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    def running(state: int | None, number: int) -> tuple[int, int]:
        total = (state or 0) + number
        return total, total

    flow = Dataflow("sum")
    stream = op.input("pairs", flow, TestingSource(pairs, batch_size=1_000))
    sums: Any
    if operator == "reduce_final":
        sums = op.reduce_final("sum", stream, lambda one, other: one + other)
    elif operator == "stateful_map":
        sums = op.stateful_map("sum", stream, running)
    else:
        sums = _sessions(stream, gap)
    results: list[Any] = []
    op.output("out", sums, TestingSink(results))
    run_main(flow)
    return results


def _sessions(stream: Any, gap: int) -> Any:
    """The sums of bytewax's sessions; the index of a pair is also its time."""
    import bytewax.operators as op
    from bytewax.operators.windowing import EventClock, SessionWindower, fold_window

    start = datetime(2024, 1, 1, tzinfo=UTC)
    counter = itertools.count()
    timed = op.map_value("timed", stream, lambda number: (next(counter), number))
    # By default, time passes between rows like on the wall clock, and some rows are late.
    clock = EventClock(lambda pair: start + pair[0] * _TICK, timedelta(0), lambda: start)
    windows = fold_window(
        "sum",
        timed,
        clock,
        # Rows exactly one gap apart belong to the same session in bytewax.
        SessionWindower((gap - 1) * _TICK),
        lambda: 0,
        lambda total, pair: total + pair[1],
        lambda one, other: one + other,
    )
    return windows.down


def sums_of(events: list[Event]) -> Sums:
    """The keys and sums in an operator's output."""
    table = pa.Table.from_batches([event.batch for event in events])
    return _sums_in(table, next(n for n in table.column_names if n in ("total", "sum_number")))


def _sums_in(table: pa.Table, sums: str) -> Sums:
    return Counter(zip(*(table.column(n).to_pylist() for n in ("key", sums)), strict=True))


def sums_of_bytewax(results: list[Any]) -> Sums:
    """The same for bytewax's output: beside a sum, a session has its number."""
    return Counter((key, value[1] if isinstance(value, tuple) else value) for key, value in results)
