"""Random streams with stamps of one coordinate, and pipelines over them with what they must give.

Tasks import this module, since functions of operators are sent to them by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from capstan.core.protocol import Event, Messages, Progress, Release
from capstan.interop.timely import EventTypes, encode_event
from capstan.interop.transfer.import_files import import_recordings
from capstan.interop.transfer.recording_format import Form, Format, find_recordings
from capstan.pipeline import STAMP, TIME, DagBuilder, KeyedLogic, Sink, pipeline, stateful_map
from capstan.pipeline.operators import (
    Filter,
    IntervalJoin,
    SessionWindow,
    Sql,
    SqlWindow,
    Window,
    count_rows,
    sum_of,
)
from capstan.storage.lake import Lake

TYPES: Final = EventTypes.of("u64", "(string,i64)")
"""Of the streams: a time is a number, and a record a key and a number."""

SIZE, GAP, APART = 4, 2, 3
"""Of windows, between sessions, and between the sides of a join."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record, as a worker has sent it."""

    worker: int
    stamp: tuple[int, ...]
    key: str
    number: int

    @property
    def time(self) -> int:
        """The least of its times, at which work for it may start."""
        return min(self.stamp)


def recording(random: Random, worker: int, steps: int = 24) -> tuple[list[Event], list[Sent]]:
    """Events of a worker that closes in the end, and its records, numbered through."""
    events: list[Event] = []
    sent: list[Sent] = []
    held = 0
    for _ in range(steps):
        if random.random() < 0.3:
            later = held + random.randrange(1, 4)
            events.append(Progress.of([((later,), 1), ((held,), -1)]))
            held = later
            continue
        size = random.choice([0, 1, 1, 2, 2, 3])
        stamp = tuple(sorted(held + random.randrange(8) for _ in range(size)))
        records = [(random.choice("ab"), random.randrange(3)) for _ in range(random.randrange(4))]
        events.append(Messages.under([(time,) for time in stamp], records))
        sent += [Sent(worker, stamp, key, number) for key, number in records]
    return [*events, Progress.of([((held,), -1)])], sent


def frames(events: Iterable[Event]) -> bytes:
    """Events as timely 0.32 writes them."""
    return b"".join(encode_event(TYPES, event, Release.V032) for event in events)


def form() -> Form:
    """The form of these recordings."""
    return Form.from_options(
        Format.TIMELY, time_type="u64", record_type="(string,i64)", timely=Release.V032
    )


def recordings(seed: int) -> tuple[list[list[Event]], list[Sent]]:
    """The events of two workers, and the records of both."""
    random = Random(seed)
    both = [recording(random, worker) for worker in range(2)]
    return [events for events, _ in both], [each for _, sent in both for each in sent]


def put(spark: SparkSession, lake: Lake, name: str, folder: Path, seed: int) -> list[Sent]:
    """Import a stream; returns its records."""
    recorded, everything = recordings(seed)
    folder.mkdir()
    for worker, events in enumerate(recorded):
        (folder / f"worker-{worker}.bin").write_bytes(frames(events))
    import_recordings(spark, lake, name, find_recordings(folder, Format.TIMELY), form())
    return everything


_ROWS = pa.schema([(TIME, pa.int64()), ("f0", pa.string()), ("f1", pa.int64())])
_STAMPED = _ROWS.insert(1, pa.field(STAMP, pa.list_(pa.int64())))


@pipeline(name="stamp_windows", sinks=[Sink("out", keys=("f0",))], lookback=SIZE)
def stamp_windows() -> DagBuilder:
    """Counts of each key by windows."""
    window = Window.tumbling(SIZE, [count_rows(), sum_of("f1")], by=["f0"])
    return _through("windows", window, _ROWS)


@pipeline(name="stamp_sessions", sinks=[Sink("out")], lookahead=GAP, unbounded=True)
def stamp_sessions() -> DagBuilder:
    """Sessions of each key."""
    return _through("sessions", SessionWindow(GAP, (count_rows(),), ("f0",)), _ROWS)


@pipeline(name="stamp_sizes", sinks=[Sink("out")])
def stamp_sizes() -> DagBuilder:
    """The records with several times, with these."""
    return (
        DagBuilder()
        .source("records", _STAMPED)
        .stateless_operator("several", Filter(pc.list_value_length(pc.field(STAMP)) > 1))
        .connect("records", "several")
        .sink_for("several", "out")
    )


@pipeline(name="stamp_pairs", sinks=[Sink("out")], lookback=APART)
def stamp_pairs() -> DagBuilder:
    """Each record of a, with those of b at its time or soon after that have its number."""
    return (
        DagBuilder()
        .source("records", _STAMPED)
        .stateless_operator("a", Filter(pc.field("f0") == "a"))
        .connect("records", "a")
        .stateless_operator("b", Filter(pc.field("f0") == "b"))
        .connect("records", "b")
        .operator("pairs", IntervalJoin(("f1",), ("f1",), 0, APART, prefix="o_"))
        .connect("a", "pairs")
        .connect("b", "pairs")
        .sink_for("pairs", "out")
    )


def latest(_: Hashable, stamp: Any, state: int | None) -> tuple[tuple[int, int], int]:
    """The number of times of a record, and the greatest one that any of its key had up to now."""
    last = max([state or 0, *stamp])
    return (len(stamp), last), last


@pipeline(name="stamp_states", sinks=[Sink("out")], unbounded=True)
def stamp_states() -> DagBuilder:
    """What `latest` says of each record, of each key in the order of time."""
    output = pa.schema([("size", pa.int64()), ("last", pa.int64())])
    logic = KeyedLogic(stateful_map(latest), ("f0",), (STAMP,), output)
    return _through("states", logic, _STAMPED)


@pipeline(name="stamp_sql", sinks=[Sink("out")], lookback=SIZE)
def stamp_sql() -> DagBuilder:
    """How many records each key has in a window, and how many times, of those with several."""
    window = (
        "SELECT f0, count(*) AS n, CAST(sum(len(_stamp)) AS BIGINT) AS times FROM input GROUP BY f0"
    )
    return (
        DagBuilder()
        .source("records", _STAMPED)
        .stateless_operator("several", Sql("SELECT * FROM input WHERE len(_stamp) > 1"))
        .connect("records", "several")
        .operator("windows", SqlWindow(window, SIZE, ("f0",)))
        .connect("several", "windows")
        .sink_for("windows", "out")
    )


def _through(name: str, operator: Any, schema: pa.Schema) -> DagBuilder:
    return (
        DagBuilder()
        .source("records", schema)
        .operator(name, operator)
        .connect("records", name)
        .sink_for(name, "out")
    )


Rows = Counter[tuple[object, ...]]


def windows(sent: Sequence[Sent]) -> Rows:
    """The key, count, sum and beginning of each window, by looking at each record."""
    rows: Rows = Counter()
    for key in "ab":
        for start in range(0, 200, SIZE):
            own = [s for s in sent if s.key == key and start <= s.time < start + SIZE]
            if own:
                rows[key, len(own), sum(s.number for s in own), start] += 1
    return rows


def sessions(sent: Sequence[Sent]) -> Rows:
    """The key, count and beginning of each session."""
    rows: Rows = Counter()
    for key in "ab":
        times = sorted(s.time for s in sent if s.key == key)
        while times:
            count = next(
                (n for n in range(1, len(times)) if times[n] >= times[n - 1] + GAP), len(times)
            )
            rows[key, count, times[0]] += 1
            times = times[count:]
    return rows


def sizes(sent: Sequence[Sent]) -> Rows:
    """The time, stamp, key and number of each record with several times."""
    return Counter((s.time, s.stamp, s.key, s.number) for s in sent if len(s.stamp) > 1)


def pairs(sent: Sequence[Sent]) -> Rows:
    """The stamps and the number of each pair, and its time."""
    return Counter(
        (max(a.time, b.time), a.stamp, b.stamp, a.number)
        for a in sent
        for b in sent
        if (a.key, b.key) == ("a", "b") and a.number == b.number and 0 <= b.time - a.time <= APART
    )


def states(sent: Sequence[Sent]) -> Rows:
    """The time, key, number of times and greatest time up to then, of each record in order."""
    rows: Rows = Counter()
    for key in "ab":
        last = 0
        for each in sorted((s for s in sent if s.key == key), key=lambda s: (s.time, s.stamp)):
            last = max(last, *each.stamp)
            rows[each.time, key, len(each.stamp), last] += 1
    return rows


def several(sent: Sequence[Sent]) -> Rows:
    """The last time, key, count and number of times of each window."""
    rows: Rows = Counter()
    for key in "ab":
        for start in range(0, 200, SIZE):
            own = [s for s in sent if s.key == key and start <= s.time < start + SIZE]
            sizes_of = [len(s.stamp) for s in own if len(s.stamp) > 1]
            if sizes_of:
                rows[start + SIZE - 1, key, len(sizes_of), sum(sizes_of)] += 1
    return rows


MODELS: Final[dict[str, tuple[Callable[[Sequence[Sent]], Rows], tuple[str, ...]]]] = {
    "stamp_windows": (windows, ("f0", "count", "sum_f1", "window_start")),
    "stamp_sessions": (sessions, ("f0", "count", "window_start")),
    "stamp_sizes": (sizes, (TIME, STAMP, "f0", "f1")),
    "stamp_pairs": (pairs, (TIME, STAMP, f"o_{STAMP}", "f1")),
    "stamp_sql": (several, (TIME, "f0", "n", "times")),
    "stamp_states": (states, (TIME, "f0", "size", "last")),
}
"""What each pipeline must give of records with times, and the columns in which it does."""


def expected(name: str, sent: Iterable[Sent]) -> Rows:
    """What a pipeline must give of some records: those without times are left out."""
    return MODELS[name][0]([each for each in sent if each.stamp])


def shown(name: str, rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Rows of a pipeline's sink in the form of its model."""

    def plain(value: Any) -> object:
        if isinstance(value, Mapping):  # A time as a struct.
            [value] = value.values()
        return tuple(value) if isinstance(value, list) else value

    return Counter(tuple(plain(row[column]) for column in MODELS[name][1]) for row in rows)
