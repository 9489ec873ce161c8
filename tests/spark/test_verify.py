"""Verification on Spark against the reference, and its answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from capstan.core.protocol import Fault, Messages, Progress, Rule, read_transcript
from capstan.core.protocol.transcript import transcript_minimum
from capstan.core.times import Coordinate, Kind, Time, TimeType
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.storage.delta import delta
from capstan.storage.lake import Lake, delete_folder, is_table
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Cut, append_events, create_tape, newest_cut
from capstan.telemetry.instrumentation import subscribe
from capstan.verify import event_columns, run, verify
from capstan.verify.violations_ledger import known_violations
from tests.bench.counters import own_jobs
from tests.support.reference_checker import check
from tests.support.strategies import any_events, recordings

pytestmark = pytest.mark.spark

TIMELY = Path(__file__).parents[1] / "conformance" / "timely"
PAYLOAD = StructType([StructField("n", LongType()), StructField("s", StringType())])
FULL = {"h1": 1, "h2": 2}
TYPES = {
    1: TimeType((Coordinate.of("event", Kind.TIMESTAMP, 0),)),
    2: TimeType((Coordinate.of("epoch", Kind.BIGINT), Coordinate.of("event", Kind.TIMESTAMP, 0))),
    3: TimeType(
        (
            Coordinate.of("epoch", Kind.BIGINT),
            Coordinate.of("day", Kind.DATE, 0),
            Coordinate.of("event", Kind.TIMESTAMP, 0),
        )
    ),
}
_ARROW = {
    Kind.BIGINT: pa.int64(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
}


@pytest.fixture(autouse=True)
def on_spark(monkeypatch):
    """Few events would be judged in this process; all but one of these tests are of Spark's way."""
    monkeypatch.setattr(event_columns, "MAX_EVENTS", -1)


@dataclass(frozen=True)
class Row:
    """A row of `events`; `misshapen` says that its maker has spoilt it."""

    seq: int | None
    kind: str | None
    time: tuple[int | None, ...] | None = None
    updates: list | None = None
    records: int | None = None
    fingerprint: dict | None = None
    batch: int = 0
    misshapen: bool = False


def row_of(seq, event):
    if isinstance(event, Messages):
        return Row(seq, "messages", tuple(event.time), None, event.records, FULL)
    return Row(seq, "progress", None, [(tuple(time), diff) for time, diff in event.updates])


def rows_of(events):
    return [row_of(seq, event) for seq, event in enumerate(events)]


def items_of(rows):
    """What the rows of one worker are to the reference; later copies of a seq come later."""
    listed = sorted(rows, key=lambda row: -1 if row.seq is None else row.seq)
    for position, row in enumerate(listed):
        if row.misshapen:
            yield Fault(Rule.SHAPE, "")
        elif row.seq != position:
            yield Fault(Rule.SEQ, "")
        elif row.kind == "messages":
            yield Messages((Time(row.time),), row.records)
        else:
            yield Progress.of(row.updates)


def new_tape(spark, lake, time_type, name="s"):
    return create_tape(spark, lake, name, time_type, PAYLOAD, TapeSettings())


def open_workers(spark, tape, labels, commit=0):
    rows = pa.table(
        {
            "worker": pa.array(list(labels), pa.int32()),
            "label": pa.array(list(labels.values()), pa.string()),
            "opened_commit": pa.array([commit] * len(labels), pa.int64()),
        }
    )
    delta.append(spark.createDataFrame(rows).coalesce(1), tape.paths.workers)


def append(spark, tape, commit, rows, files=1):
    """Append `(worker, Row)` as one commit."""
    if rows:
        # Not the order in which they are read: the verifier has to sort.
        rows = sorted(rows, key=lambda pair: (pair[1].seq or 0) * 7919 % 101, reverse=True)
    columns = {"worker": pa.array([worker for worker, _ in rows], pa.int32())}
    for name, kind in _types(tape.time_type).items():
        columns[name] = pa.array([_cell(tape.time_type, row, name) for _, row in rows], kind)
    columns["commit"] = pa.array([commit] * len(rows), pa.int64())
    frame = spark.createDataFrame(pa.table(columns)).repartition(files)
    append_events(tape, frame, commit, {})


def _types(time_type):
    time = pa.struct([(c.name, _ARROW[c.kind]) for c in time_type.coordinates])
    return {
        "seq": pa.int64(),
        "kind": pa.string(),
        "time": time,
        "updates": pa.list_(pa.struct([("time", time), ("diff", pa.int64())])),
        "batch": pa.int64(),
        "records": pa.int64(),
        "fingerprint": pa.struct([("h1", pa.int64()), ("h2", pa.int64())]),
    }


def _cell(time_type, row, name):
    value = getattr(row, name)
    if name == "time":
        return _time(time_type, value)
    if name == "updates" and value is not None:
        return [
            None if update is None else {"time": _time(time_type, update[0]), "diff": update[1]}
            for update in value
        ]
    return value


def _time(time_type, time):
    return None if time is None else dict(zip(time_type.names, time, strict=True))


def drawn(strategy, count):
    """Values of a strategy, so that one Spark job can check hundreds of them."""
    actual = []

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value):
        actual.append(value)

    collect()
    return actual


@st.composite
def written(draw, width):
    """Rows of a worker: a sound recording, any events at all, or a sound one with a blemish."""
    source = draw(st.sampled_from(["sound", "any", "blemished"]))
    if source == "any":
        return rows_of(draw(any_events(width)))
    rows = rows_of(draw(recordings(width)))
    if source == "blemished" and rows:
        at = draw(st.integers(0, len(rows) - 1))
        rows = draw(st.sampled_from(BLEMISHES))(rows, at)
    return rows


def _changed(rows, at, **fields):
    return [*rows[:at], replace(rows[at], **fields), *rows[at + 1 :]]


def _lose(rows, at):
    return rows[:at] + rows[at + 1 :]


def _repeat(rows, at):
    return [*rows[: at + 1], *rows[at:]]


def _lose_and_number_again(rows, at):
    return [replace(row, seq=seq) for seq, row in enumerate(_lose(rows, at))]


def _swap(rows, at):
    numbers = [row.seq for row in rows]
    numbers[at], numbers[0] = numbers[0], numbers[at]
    return [replace(row, seq=seq) for row, seq in zip(rows, numbers, strict=True)]


def _no_seq(rows, at):
    return _changed(rows, at, seq=None, misshapen=True)


def _no_kind(rows, at):
    return _changed(rows, at, kind=None, misshapen=True)


def _other_kind(rows, at):
    kind = "progress" if rows[at].kind == "messages" else "messages"
    return _changed(rows, at, kind=kind, misshapen=True)


def _hole(rows, at):
    row = rows[at]
    if row.kind == "messages":
        return _changed(rows, at, time=(*row.time[:-1], None), misshapen=True)
    return _changed(rows, at, updates=[*row.updates, None], misshapen=True)


def _go_back(rows, at):
    """Late in the recording, take up the minimum again."""
    width = len(next((r.time or r.updates[0][0] for r in rows if r.time or r.updates), (0,)))
    return [*rows, row_of(len(rows), Progress.of([((0,) * width, 1)]))]


BLEMISHES = [
    _go_back,
    _lose,
    _repeat,
    _lose_and_number_again,
    _swap,
    _no_seq,
    _no_kind,
    _other_kind,
    _hole,
]


def figures(verdict):
    """What the reference and the Spark verifier must agree on; words may differ."""
    actual = verdict.violation
    return {
        "valid": verdict.valid,
        "events": verdict.events,
        "records": verdict.records,
        "holdings": verdict.holdings,
        "frontier": verdict.frontier,
        "closed": verdict.closed,
        "violation": actual and (actual.seq, actual.rule, actual.time, actual.held, actual.count),
    }


def assert_as_reference(verification, recorded, minimum):
    assert [verdict.worker for verdict in verification.workers] == list(range(len(recorded)))
    for verdict, items in zip(verification.workers, recorded, strict=True):
        assert figures(verdict) == figures(check(items, minimum)), items


def tape_of(spark, lake, time_type, recorded, name="s"):
    """A tape of one commit with a worker for each list of rows."""
    tape = new_tape(spark, lake, time_type, name)
    open_workers(spark, tape, {worker: f"w{worker}" for worker in range(len(recorded))})
    rows = [(worker, row) for worker, rows in enumerate(recorded) for row in rows]
    append(spark, tape, 0, rows, files=3)
    return tape


def one_of_each(width):
    """Recordings that break a rule each, so that none is left to chance."""
    zero, one, two = (Time([value] * width) for value in range(3))
    step = Progress.of([(zero, -1), (one, 1)])
    return [
        [step, Progress.of([(zero, 1)])],
        [step, Progress.of([(one, -2), (two, 1)])],
        [step, Messages((zero,), 0)],
    ]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_agrees_with_the_reference_on_any_sequence(spark, lake, width):
    recorded = drawn(written(width), 250) + [rows_of(events) for events in one_of_each(width)]
    tape = tape_of(spark, lake, TYPES[width], recorded)
    verification = verify(spark, lake, tape)
    items = [list(items_of(rows)) for rows in recorded]
    assert_as_reference(verification, items, TYPES[width].minimum)
    rules = {v.violation.rule for v in verification.workers if v.violation}
    assert rules == {Rule.SHAPE, Rule.SEQ, Rule.INCREMENT, Rule.NEGATIVE, Rule.MESSAGE}
    assert any(v.valid and v.events for v in verification.workers)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_few_events_are_judged_alike_without_spark(spark, lake, monkeypatch, width):
    recorded = drawn(written(width), 250) + [rows_of(events) for events in one_of_each(width)]
    tape = tape_of(spark, lake, TYPES[width], recorded)
    # Of two events with one seq Spark tells which comes first.
    single = [w for w, rows in enumerate(recorded) if len({r.seq for r in rows}) == len(rows)]
    assert len(single) < len(recorded)
    monkeypatch.undo()
    begun = []

    def session():
        begun.append(True)
        return spark

    verification = verify(session, lake, tape, workers=single, remember=False)
    assert not begun
    minimum = TYPES[width].minimum
    for worker, verdict in zip(single, verification.workers, strict=True):
        assert figures(verdict) == figures(check(list(items_of(recorded[worker])), minimum))
    assert {v.violation.rule for v in verification.workers if v.violation} >= {
        Rule.SHAPE,
        Rule.INCREMENT,
        Rule.MESSAGE,
    }
    verify(session, lake, tape, remember=False)
    assert begun


def test_a_recording_may_span_arrow_batches(spark, lake):
    recorded = drawn(written(2), 60)
    tape = tape_of(spark, lake, TYPES[2], recorded)
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "3")
    try:
        verification = verify(spark, lake, tape, remember=False)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)
    assert_as_reference(verification, [list(items_of(r)) for r in recorded], TYPES[2].minimum)


def conformance():
    """The items of every recording and variant, by its minimum."""
    actual = {}
    for path in sorted(TIMELY.glob("*/expected.json")):
        expected = json.loads(path.read_text(encoding="utf-8"))
        if path.parent.name == "mutants":
            sources = [(path.parent / m["file"], m["minimum"]) for m in expected["mutants"]]
        else:
            sources = [
                (path.parent / f"worker-{s['worker']}.jsonl", expected["minimum"])
                for s in expected["streams"]
            ]
        for source, minimum in sources:
            if source.stat().st_size > 300_000:
                continue
            with source.open("rb") as lines:
                items = list(read_transcript(lines, minimum))
            if fits(items):
                actual.setdefault(tuple(transcript_minimum(minimum)), []).append(items)
    return actual


def fits(items):
    """Whether all times are ones that a column can hold."""
    times = [
        time
        for item in items
        for time in (
            [item.time]
            if isinstance(item, Messages)
            else [t for t, _ in item.updates]
            if isinstance(item, Progress)
            else []
        )
    ]
    widths = {len(time) for time in times}
    return len(widths) <= 1 and all(part < 2**63 for time in times for part in time)


def as_rows(items):
    """Items as rows: a fault of the numbering is a gap, and another one a row without kind."""
    gap = 0
    for seq, item in enumerate(items):
        if isinstance(item, Fault):
            gap += item.rule is Rule.SEQ
            yield Row(seq + gap, None if item.rule is Rule.SHAPE else "progress", updates=[])
        else:
            yield row_of(seq + gap, item)


def test_agrees_with_the_reference_on_what_timely_recorded(spark, lake):
    groups = conformance()
    assert sum(len(recorded) for recorded in groups.values()) > 120
    for index, (minimum, recorded) in enumerate(groups.items()):
        coordinates = [
            Coordinate.of(f"t{index}", Kind.BIGINT, least) for index, least in enumerate(minimum)
        ]
        time_type = TimeType(tuple(coordinates))
        rows = [list(as_rows(items)) for items in recorded]
        tape = tape_of(spark, lake, time_type, rows, f"s{index}")
        assert_as_reference(verify(spark, lake, tape, remember=False), recorded, Time(minimum))


def test_times_reach_from_one_end_to_the_other(spark, lake):
    kinds = TimeType.of(n=Kind.BIGINT, day=Kind.DATE, at=Kind.TIMESTAMP)
    least = kinds.minimum
    greatest = kinds.parse([2**63 - 1, "9999-12-31", "9999-12-31T23:59:59.999999Z"])
    events = [Progress.of([(least, -1), (greatest, 2**62)]), Messages((greatest,), 1)]
    verification = verify(spark, lake, tape_of(spark, lake, kinds, [rows_of(events)]))
    assert_as_reference(verification, [events], least)
    assert verification.valid
    assert verification.workers[0].holdings == ((greatest, 2**62),)


def test_what_is_wrong_with_the_shape_of_an_event_is_named(spark, lake):
    progress = partial(Row, 1, "progress", updates=[])
    messages = partial(Row, 1, "messages", (0, 0), None, 1, FULL)
    wrong = {
        "neither a progress nor a messages event": Row(1, "other"),
        "a progress event with a time": progress(time=(0, 0)),
        "a progress event with a count of records": progress(records=0),
        "a progress event with a fingerprint": progress(fingerprint={"h1": None, "h2": None}),
        "a progress event without updates": Row(1, "progress"),
        "a progress event with a null in its updates": progress(updates=[((0, 0), None)]),
        "a messages event with updates": Row(1, "messages", (0, 0), [], 1, FULL),
        "a messages event without a complete time": Row(1, "messages", (0, None), None, 1, FULL),
        "a messages event without a count of records": Row(1, "messages", (0, 0), None, None, FULL),
        "a messages event with a negative count of records": Row(
            1, "messages", (0, 0), None, -1, FULL
        ),
        "a messages event without a fingerprint": Row(
            1, "messages", (0, 0), None, 1, {"h1": 1, "h2": None}
        ),
    }
    # Where several rules are broken, the shape is named.
    unheld = {"a null of its update's time": progress(updates=[((0, 1), 1), ((0, None), -5)])}
    rows = [[row_of(0, Progress(())), row] for row in [*wrong.values(), *unheld.values()]]
    rows.append([row_of(0, Progress(())), messages()])
    verdicts = verify(spark, lake, tape_of(spark, lake, TYPES[2], rows)).workers
    for what, verdict in zip(wrong, verdicts, strict=False):
        assert verdict.violation is not None, what
        assert (verdict.violation.rule, verdict.violation.seq) == (Rule.SHAPE, 1)
        assert verdict.violation.detail == what
        assert verdict.violation.held == ((Time.of(0, 0), 1),)
        assert verdict.events == 1
    assert verdicts[len(wrong)].violation.rule is Rule.SHAPE
    assert verdicts[-1].valid


def two_workers(spark, lake):
    """One worker that went on and one without events; commit 0."""
    tape = new_tape(spark, lake, TYPES[1])
    open_workers(spark, tape, {0: "EWR", 1: "LGA"})
    events = [Messages((Time.of(5),), 3), Progress.of([((0,), -1), ((7_000_000,), 1)])]
    append(spark, tape, 0, [(0, row) for row in rows_of(events)])
    return tape


def test_the_answer_as_json(spark, lake):
    tape = two_workers(spark, lake)
    append(spark, tape, 1, [(0, row_of(2, Messages((Time.of(6_999_999),), 1)))])
    verification = verify(spark, lake, tape)
    answer = json.loads(json.dumps(verification.to_json()))
    moment = "1970-01-01T00:00:07.000000Z"
    answer["workers"][0]["violation"].pop("about")
    assert answer == {
        "stream": "s",
        "cut": 1,
        "valid": False,
        "workers": [
            {
                "worker": 0,
                "label": "EWR",
                "valid": False,
                "events": 2,
                "records": 3,
                "violation": {
                    "seq": 2,
                    "rule": "message",
                    "time": "1970-01-01T00:00:06.999999Z",
                    "held": [[moment, 1]],
                },
                "holdings": [[moment, 1]],
                "frontier": [moment],
                "closed": False,
            },
            {
                "worker": 1,
                "label": "LGA",
                "valid": True,
                "events": 0,
                "records": 0,
                "violation": None,
                "holdings": [["1970-01-01T00:00:00.000000Z", 1]],
                "frontier": ["1970-01-01T00:00:00.000000Z"],
                "closed": False,
            },
        ],
        "retired": [],
    }
    with pytest.raises(CheckFailedError) as refused:
        verification.raise_for_violations()
    error = refused.value
    assert error.code == "CAP-VIOLATION"
    assert error.fields["worker"] == 0
    assert error.fields["seq"] == 2
    assert error.fields["rule"] == "message"
    assert error.fields["held"] == [[moment, 1]]
    for part in ("0 (EWR)", "message", "event 2", "00:00:06.999999", f"held: {moment} x1"):
        assert part in error.message
    verify(spark, lake, tape, workers=[1]).raise_for_violations()
    assert verify(spark, lake, tape, cut=Cut(0, 0)).valid


def test_only_known_workers_may_have_events(spark, lake):
    tape = two_workers(spark, lake)
    append(spark, tape, 1, [(9, row_of(0, Progress(()))), (None, row_of(0, Progress(())))])
    verification = verify(spark, lake, tape)
    assert [v.worker for v in verification.workers] == [-1, 0, 1, 9]
    assert [v.valid for v in verification.workers] == [False, True, True, False]
    stranger = verification.workers[-1]
    assert stranger.violation.rule is Rule.SHAPE
    assert (stranger.violation.seq, stranger.label, stranger.events) == (0, "", 0)
    assert not verify(spark, lake, tape, workers=[0, 9]).valid
    with pytest.raises(InvalidRequestError) as refused:
        verify(spark, lake, tape, workers=[0, 8])
    assert refused.value.code == "CAP-WORKER"
    assert refused.value.fields["worker"] == 8


def test_an_empty_tape_is_valid(spark, lake):
    tape = new_tape(spark, lake, TYPES[2])
    verification = verify(spark, lake, tape)
    assert verification.valid
    nothing = {"stream": "s", "cut": -1, "valid": True, "workers": [], "retired": []}
    assert verification.to_json() == nothing


def test_reads_no_columns_that_it_does_not_judge(spark, lake):
    tape = two_workers(spark, lake)
    length = "spark.sql.maxMetadataStringLength"
    before = spark.conf.get(length)
    spark.conf.set(length, "1000")
    try:
        frame = run.events_to_check(spark, tape, newest_cut(tape), None, -1)
        plan = frame._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.set(length, before)
    (scan,) = [line for line in plan.splitlines() if "ReadSchema: " in line]
    time = "time:struct<event:timestamp>"
    assert scan.split("ReadSchema: ")[1] == (
        f"struct<worker:int,seq:bigint,kind:string,{time},"
        f"updates:array<struct<{time},diff:bigint>>,commit:bigint,records:bigint,"
        "fingerprint:struct<h1:bigint,h2:bigint>>"
    )
    assert "/records" not in plan


def test_tells_how_far_it_has_come(spark, lake):
    tape = two_workers(spark, lake)
    points = []
    with subscribe(lambda point, facts: points.append((point, facts.get("read")))):
        verify(spark, lake, tape, deep=True)
        verify(spark, lake, tape, remember=False)
    assert points == [
        ("verify.events", 2),
        ("verify.ledger", None),
        ("verify.deep", None),
        ("verify.events", 0),
    ]


# What is remembered


@pytest.fixture
def spy(monkeypatch):
    """What is read of `events`: `(workers, after, files)` of each read."""
    reads = []
    original = run.events_to_check

    def spied(spark, tape, cut, workers, after):
        frame = original(spark, tape, cut, workers, after)
        reads.append((workers, after, len(frame.inputFiles())))
        return frame

    monkeypatch.setattr(run, "events_to_check", spied)
    return reads


@pytest.mark.parametrize("width", [1, 3])
def test_going_on_is_the_same_as_beginning_again(spark, lake, tmp_path, width):
    commits = 4
    split = st.lists(st.integers(0, commits - 1), min_size=14, max_size=14).map(sorted)
    recorded = drawn(st.tuples(written(width), split), 120)
    tape = new_tape(spark, lake, TYPES[width])
    open_workers(spark, tape, {worker: f"w{worker}" for worker in range(len(recorded))})
    placed = [
        # A repeat of an early event may come in a late commit.
        [(split[min(at, len(split) - 1)], row) for at, row in enumerate(rows)]
        for rows, split in recorded
    ]
    for commit in range(commits):
        now = [(w, row) for w, rows in enumerate(placed) for at, row in rows if at == commit]
        append(spark, tape, commit, now)
    other = Lake.at(tmp_path / "other")
    for cut in (Cut(commit, 0) for commit in range(commits)):
        expected = [
            list(items_of([row for commit, row in rows if commit <= cut.commit])) for rows in placed
        ]
        for ledger in [lake, other] if cut.commit in (1, commits - 1) else [lake]:
            actual = verify(spark, ledger, tape, cut=cut)
            assert_as_reference(actual, expected, TYPES[width].minimum)


@pytest.mark.parametrize(
    ("repeat", "rule"),
    [
        (row_of(0, Progress.of([((9,), 5)])), Rule.SEQ),
        (replace(row_of(0, Progress.of([((9,), 5)])), kind=None, misshapen=True), Rule.SHAPE),
        (replace(row_of(0, Progress(())), seq=None, misshapen=True), Rule.SHAPE),
    ],
)
def test_a_repeat_in_a_later_commit_is_found_where_it_stands(spark, lake, tmp_path, repeat, rule):
    tape = two_workers(spark, lake)
    assert verify(spark, lake, tape).valid
    append(spark, tape, 1, [(0, repeat)])
    going_on = verify(spark, lake, tape, workers=[0]).workers[0]
    assert going_on == verify(spark, Lake.at(tmp_path / "other"), tape, workers=[0]).workers[0]
    assert going_on.violation.rule is rule
    assert going_on.events <= 1


def test_without_newer_events_no_job_runs_and_nothing_is_written(spark, lake):
    tape = two_workers(spark, lake)
    first = verify(spark, lake, tape)
    version = delta.version_of(lake.ledger("verified"))
    with own_jobs(spark) as started:
        second = verify(spark, lake, tape)
        part = verify(spark, lake, tape, workers=[1])
    assert started == []
    with own_jobs(spark) as started:
        verify(spark, lake, tape, cut=Cut(0, 0), deep=True)
    assert started != []
    assert second == first
    assert part.workers == first.workers[1:]
    assert delta.version_of(lake.ledger("verified")) == version


def test_only_newer_events_are_read(spark, lake, spy):
    tape = two_workers(spark, lake)
    verify(spark, lake, tape)
    held = 7_000_000
    for commit in range(1, 4):
        moved = Progress.of([((held + commit - 1,), -1), ((held + commit,), 1)])
        append(spark, tape, commit, [(0, row_of(commit + 1, moved))])
    read = []
    with subscribe(lambda point, facts: read.append(facts.get("read"))):
        verify(spark, lake, tape, cut=Cut(1, 0))
        verification = verify(spark, lake, tape)
    assert spy == [(None, -1, 1), (None, 0, 1), (None, 1, 2)]
    assert [count for count in read if count is not None] == [1, 2]
    assert verification.workers[0].holdings == ((Time.of(held + 3), 1),)
    assert verification.workers[0].events == 5
    # An older cut has to be begun again, or gone on to from an older row.
    assert verify(spark, lake, tape, cut=Cut(2, 0)).workers[0].events == 4
    assert spy[3:] == [(None, 1, 1)]


def test_each_worker_goes_on_from_its_own_place(spark, lake, spy):
    tape = two_workers(spark, lake)
    verify(spark, lake, tape, workers=[1])
    append(spark, tape, 1, [(1, row_of(0, Messages((Time.of(3),), 2)))])
    verify(spark, lake, tape, workers=[1])
    append(spark, tape, 2, [(1, row_of(1, Messages((Time.of(3),), 2)))])
    verification = verify(spark, lake, tape)
    assert [(v.valid, v.events, v.records) for v in verification.workers] == [
        (True, 2, 3),
        (True, 2, 4),
    ]
    assert [(workers and set(workers), after) for workers, after, _ in spy] == [
        ({1}, -1),
        ({1}, 0),
        (None, -1),
    ]


def test_a_worker_opened_later_does_not_make_all_be_read_again(spark, lake, spy):
    tape = two_workers(spark, lake)
    verify(spark, lake, tape)
    open_workers(spark, tape, {2: "JFK"}, commit=1)
    append(spark, tape, 1, [(2, row_of(0, Messages((Time.of(3),), 2)))])
    assert verify(spark, lake, tape).workers[2].records == 2
    assert spy[-1] == (None, 0, 1)
    # At the cut before it was opened it is not a worker of the stream.
    assert [v.worker for v in verify(spark, lake, tape, cut=Cut(0, 0)).workers] == [0, 1]


def test_only_what_is_sound_is_remembered(spark, lake):
    tape = two_workers(spark, lake)
    append(spark, tape, 1, [(1, row_of(5, Progress(())))])
    for _ in range(2):
        verification = verify(spark, lake, tape)
        assert [v.valid for v in verification.workers] == [True, False]
    ledger = pl.read_delta(lake.ledger("verified"))
    assert ledger.height == 2
    row = ledger.filter(pl.col("worker") == 0).to_dicts()[0]
    assert row.pop("at").tzinfo is not None
    assert row == {
        "stream": "s",
        "tape": delta.open_table(tape.paths.events).metadata().id,
        "worker": 0,
        "commit": 1,
        "events": 2,
        "records": 3,
        "holdings": '[["1970-01-01T00:00:07.000000Z", 1]]',
        "valid": True,
    }
    # What is not is told once, and an earlier cut takes nothing of it back.
    assert verify(spark, lake, tape, cut=Cut(0, 0)).valid
    assert pl.read_delta(lake.ledger("findings")).height == 1
    (known,) = known_violations(lake)
    assert (known.worker, known.cut, known.rule) == (1, 1, "seq")
    assert known.about == verification.workers[1].violation.describe(tape.time_type)


def test_events_of_unknown_workers_are_not_forgotten(spark, lake):
    tape = two_workers(spark, lake)
    append(spark, tape, 1, [(9, row_of(0, Progress(())))])
    assert verify(spark, lake, tape, workers=[0, 1]).valid
    for _ in range(2):
        assert [v.worker for v in verify(spark, lake, tape).workers if not v.valid] == [9]
    append(spark, tape, 2, [(0, row_of(2, Progress(())))])
    assert [v.worker for v in verify(spark, lake, tape).workers if not v.valid] == [9]


def test_another_tape_of_the_same_name_is_another_tape(spark, lake):
    tape = two_workers(spark, lake)
    assert verify(spark, lake, tape).valid
    delete_folder(tape.paths.root)
    again = new_tape(spark, lake, TYPES[1])
    open_workers(spark, again, {0: "EWR", 1: "LGA"})
    append(spark, again, 0, [(0, row_of(3, Progress(())))])
    assert [v.valid for v in verify(spark, lake, again).workers] == [False, True]


def test_remembers_nothing_where_it_is_told_so(spark, lake):
    tape = two_workers(spark, lake)
    verify(spark, lake, tape, remember=False)
    append(spark, tape, 1, [(1, row_of(5, Progress(())))])
    assert not verify(spark, lake, tape, remember=False).valid
    assert not is_table(lake.ledger("verified"))
    assert not is_table(lake.ledger("findings"))
