"""Pipelines on Spark: over a captured tape of real flights, and over rows that are made up."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

from capstan.capture.run import capture
from capstan.core.config import load_config
from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.demo import flights
from capstan.demo import pipelines as flight_pipelines
from capstan.errors import InvalidRequestError
from capstan.pipeline import (
    TIME,
    DagBuilder,
    Operator,
    OperatorContext,
    Pipeline,
    Reach,
    Sink,
    Stateless,
    pipelines,
    reach_of,
)
from capstan.pipeline.definition import register
from capstan.pipeline.graph.errors import OperatorFailed
from capstan.pipeline.operators import MapBatch, Project, TopN, Window, WindowJoin, sum_of
from capstan.pipeline.spark.runner import play
from capstan.pipeline.spark.stage_frames import PipelineRun
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from tests.support.tape_play import play_tape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

DAYS = 4
STREAMS = Path(__file__).resolve().parents[2] / "dags" / "streams.yaml"


class Tape:
    """Some days of flights on tape, and short ways to play them."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark = spark
        self.tape = open_tape(lake, "flights")
        self.cut = newest_cut(self.tape)
        states = index.worker_states(self.tape, self.cut)
        self.workers = {state.worker: state.label for state in states}
        self.frontier = index.frontier_of(self.tape, states)

    def play(self, name: str, since: str, until: str, **more: object) -> PipelineRun:
        box = Box(*(Box.bound_of_text(self.tape.time_type, text) for text in (since, until)))
        pipeline = pipelines().get(name)
        reach = reach_of(pipeline, self.tape.time_type, box, self.frontier)
        assert reach.complete
        return play_tape(
            self.spark, self.tape, self.cut, self.workers, pipeline, reach, self.frontier, **more
        )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tape(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tape:
    folder = tmp_path_factory.mktemp("pipelines") / "lake"
    flights.feed(folder / "sources" / "flights", days=range(DAYS))
    lake = Lake.at(folder)
    capture(spark, lake, load_config(STREAMS, lake=lake.root).stream("flights"))
    return Tape(spark, lake)


def scheduled_on(day: int) -> pa.Table:
    """The flights of a day of January 2013, in UTC."""
    table = flights.read_flights()
    january = pc.equal(pc.month(table["time_hour"]), 1)
    return table.filter(pc.and_(january, pc.equal(pc.day(table["time_hour"]), day)))


def multiset(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def seconds(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()


def test_hourly_departures_are_those_of_the_source(tape: Tape) -> None:
    played = tape.play("hourly_departures", "2013-01-02", "2013-01-03", peers=3, engine=True)
    rows = played.sinks["hours"].collect()
    assert played.sinks["hours"].columns == [
        "origin", "hour", "scheduled", "departures", "mean_delay_minutes"
    ]  # fmt: skip
    expected = scheduled_on(2).group_by(["origin", "time_hour"]).aggregate(
        [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")]
    ).to_pylist()  # fmt: skip
    assert len(rows) == len(expected)
    assert {(r.origin, seconds(r.hour)): tuple(r[2:]) for r in rows} == {
        (w["origin"], seconds(w["time_hour"])): (
            w["count_all"],
            w["dep_delay_count"],
            w["dep_delay_sum"] / w["dep_delay_count"],
        )
        for w in expected
    }
    # The hour before the range is read, and what comes of it is left out.
    before = set(
        scheduled_on(1).filter(pc.equal(pc.hour(scheduled_on(1)["time_hour"]), 23))["origin"]
    )
    assert played.trimmed == {"hours": len(before)}
    assert before
    assert played.put_aside == {}
    assert {n.worker for n in played.nodes if n.node == "by_hour"} == {0, 1, 2}
    counted = [n.counters for n in played.nodes if n.node == "by_hour"]
    assert (
        sum(c.rows_in for c in counted)
        == scheduled_on(2).num_rows
        + pc.sum(pc.equal(pc.hour(scheduled_on(1)["time_hour"]), 23)).as_py()
    )
    played.release()


def test_every_flight_has_the_weather_of_its_hour(tape: Tape) -> None:
    played = tape.play("flights_with_weather", "2013-01-02", "2013-01-03", peers=2)
    rows = played.sinks["flights_and_weather"].collect()
    weather = {
        (w["origin"], seconds(w["time_hour"])): w
        for w in flight_pipelines.read_weather().to_pylist()
    }
    expected = Counter(
        (f["origin"], f["flight"], seconds(f["sched_dep"]), actual["temp"], actual["wind_speed"])
        for f in scheduled_on(2).to_pylist()
        for actual in [weather[f["origin"], seconds(f["time_hour"])]]
    )
    assert (
        Counter((r.origin, r.flight, seconds(r.sched_dep), r.temp, r.wind_speed) for r in rows)
        == expected
    )
    # At the last moment of its hour.
    assert all(seconds(r._time.event) % 3600 > 3599 for r in rows)
    assert all(0 <= seconds(r._time.event) - seconds(r.sched_dep) < 3600 for r in rows)
    played.release()


def test_of_two_sinks_only_what_is_wanted_runs(tape: Tape) -> None:
    both = tape.play("late_carriers", "2013-01-02", "2013-01-04", peers=2)
    one = tape.play("late_carriers", "2013-01-02", "2013-01-04", peers=3, sinks=["carriers"])
    assert set(one.sinks) == {"carriers"}
    assert {n.node for n in both.nodes} - {n.node for n in one.nodes} == {"latest", "days"}
    carriers = both.sinks["carriers"].collect()
    assert Counter(carriers) == Counter(one.sinks["carriers"].collect())
    assert len({r.day for r in carriers}) == 2
    by_day = {
        day: sorted((r for r in carriers if r.day == day), key=lambda r: -r.mean_delay_minutes)
        for day in {r.day for r in carriers}
    }
    assert {(r.day, r["rank"], r.carrier) for r in both.sinks["days"].collect()} == {
        (day, place + 1, actual[place].carrier)
        for day, actual in by_day.items()
        for place in range(3)
    }
    both.release()
    one.release()


def test_a_run_over_a_range_is_the_runs_over_its_pieces(tape: Tape) -> None:
    edges = ["2013-01-02", "2013-01-02T13:00:00Z", "2013-01-03T07:00:00Z", "2013-01-04"]
    whole = tape.play("hourly_departures", edges[0], edges[-1], peers=2)
    pieces: Counter[tuple[object, ...]] = Counter()
    for since, until in pairwise(edges):
        piece = tape.play("hourly_departures", since, until, peers=3)
        pieces += multiset(piece.sinks["hours"])
        piece.release()
    assert multiset(whole.sinks["hours"]) == pieces
    assert pieces
    whole.release()


# Rows that are made up.

TIMES = TimeType.of(t=Kind.BIGINT)
SCHEMA = pa.schema([(TIME, pa.int64()), ("key", pa.string()), ("number", pa.int64())])
RECORDS = [(i % 3, i // 4, "abcde"[i % 5], i) for i in range(200)]


def made_up(spark: SparkSession, partitions: int = 2) -> DataFrame:
    rows = spark.createDataFrame(RECORDS, "_worker INT, t BIGINT, key STRING, number BIGINT")
    return rows.select("_worker", F.struct("t").alias("_time"), "key", "number").repartition(
        partitions
    )


def registered(name: str, build: DagBuilder, sinks: str, **settings: object) -> Pipeline:
    """A pipeline whose graph is `build`; sinks by commas."""
    register(f"made_up:{name}", build.build)
    nodes = tuple(Sink(node) for node in sinks.split(","))
    return Pipeline(name, f"made_up:{name}", nodes, **settings)  # type: ignore[arg-type]


def reach(pipeline: Pipeline, since: int | None = None, until: int | None = None) -> Reach:
    return reach_of(pipeline, TIMES, Box((since,), (until,)), Antichain())


def test_a_failing_operator_fails_the_job_and_says_where(spark: SparkSession) -> None:
    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and 20 in batch.column("window_end").to_pylist():
            message = "seventeen"
            raise ValueError(message)
        return batch

    build = (
        DagBuilder()
        .source("in", SCHEMA)
        .operator("total", Window.tumbling(10, [sum_of("number")], by=["key"]))
        .stateless_operator("shaky", MapBatch(call))
        .connect("in", "total")
        .connect("total", "shaky")
        .sink_for("shaky", "out")
    )
    pipeline = registered("shaky", build, "out")
    with pytest.raises(OperatorFailed, match="seventeen") as failed:
        play(spark, made_up(spark), pipeline, reach(pipeline), peers=3)
    assert failed.value.exit_code == 5
    facts = failed.value.fields
    assert facts["node"] == "shaky"
    # All windows close at once, at the end; an event has the time of the first of them.
    assert facts["time"] == 9
    # The number of the task: the operator has no key.
    assert facts["worker"] >= 0


def test_columns_that_the_stream_does_not_have_are_refused(spark: SparkSession) -> None:
    other = DagBuilder().source("in", pa.schema([("price", pa.int64())])).sink_for("in", "out")
    pipeline = registered("no_column", other, "out")
    with pytest.raises(InvalidRequestError, match="reads price, but the stream has key, number"):
        play(spark, made_up(spark), pipeline, reach(pipeline))
    other = DagBuilder().source("in", pa.schema([("key", pa.int32())])).sink_for("in", "out")
    pipeline = registered("no_type", other, "out")
    with pytest.raises(InvalidRequestError, match="key as int, but the stream has it as string"):
        play(spark, made_up(spark), pipeline, reach(pipeline))


def test_other_peers_and_partitions_give_the_same(spark: SparkSession) -> None:
    build = (
        DagBuilder()
        .source("in", pa.schema([*SCHEMA, ("_worker", pa.int32())]))
        .operator("by_key", Window.tumbling(7, [sum_of("number")], by=["key", "_worker"]))
        .operator("over_all", Window.tumbling(7, [sum_of("number", "of_all")]))
        .operator("share", WindowJoin(("window_end",), ("window_end",), 7, prefix="all_"))
        .operator("other", WindowJoin(("window_start",), ("start",), 7, "left", "self_"))
        .connect("in", "by_key")
        .connect("in", "over_all")
        .connect("by_key", "share")
        .connect("over_all", "share")
        .connect("by_key", "other")
        .connect("by_key", "other_of")
        .stateless_operator("other_of", Project({"start": "window_start", "of": "sum_number"}))
        .connect("other_of", "other")
        .sink_for("share", "out")
        .sink_for("other", "twice")
    )
    pipeline = registered("diamond", build, "out,twice")
    answers = []
    for peers, partitions in ((1, 1), (2, 3), (3, 1), (8, 4)):
        records = made_up(spark, partitions).where("_time.t >= 7 AND _time.t < 42")
        played = play(spark, records, pipeline, reach(pipeline, 7, 42), peers=peers)
        answers.append({name: multiset(frame) for name, frame in played.sinks.items()})
        assert played.trimmed == {"out": 0, "twice": 0}
        # Each node is counted once on each of its workers.
        places = [(n.stage, n.node, n.worker) for n in played.nodes]
        assert len(places) == len(set(places))
        played.release()
    assert answers[0]["out"].total() > 20
    assert answers[0]["twice"]
    assert all(answer == answers[0] for answer in answers)
    expected: Counter[tuple[object, ...]] = Counter()
    for worker, time, key, number in RECORDS:
        if 7 <= time < 42:
            expected[time // 7 * 7 + 6, key, worker] += number
    actual = {(row[0].t, row[1], row[2]): row[5] for row in answers[0]["out"]}
    assert actual == dict(expected)


def test_what_is_put_aside_is_a_table(spark: SparkSession) -> None:
    dropped = DagBuilder().source("in", SCHEMA).stateless_operator("divert", diverting())
    build = (
        dropped.operator("total", Window.tumbling(10, [sum_of("number")]))
        .connect("in", "divert")
        .connect("divert", "total")
        .sink_for("total", "out")
    )
    pipeline = registered("diverted", build, "out")
    played = play(spark, made_up(spark), pipeline, reach(pipeline), peers=3)
    rows = played.aside.collect()
    assert {(r.node, r.output, r.name) for r in rows} == {("divert", "side", "bees")}
    expected = Counter((time, number) for _, time, key, number in RECORDS if key == "b")
    assert Counter((r.time, json.loads(r.row)["number"]) for r in rows) == expected
    assert played.put_aside == {("divert", "side"): expected.total()}
    total = sum(row.sum_number for row in played.sinks["out"].collect())
    assert total == sum(number for _, _, key, number in RECORDS if key != "b")
    played.release()


def diverting() -> Stateless:
    """An operator that puts rows of key `b` aside; local, as tasks cannot import this module."""

    class Running(Operator):
        def process(self, batch: pa.RecordBatch, context: OperatorContext) -> None:
            bees = pc.equal(batch.column("key"), "b")
            context.side("bees", batch.filter(bees))
            context.emit(batch.filter(pc.invert(bees)))

    class Divert(Stateless):
        def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
            return inputs[0]

        def preserves(self, inputs: Sequence[pa.Schema]) -> frozenset[str]:
            return frozenset(inputs[0].names)

        def create(self, inputs: Sequence[pa.Schema]) -> Operator:
            return Running()

        def describe(self) -> str:
            return "divert"

    return Divert()


def test_unfinished_input_leaves_windows_open_in_every_stage(spark: SparkSession) -> None:
    first = TopN(1, (("number", "descending"),), by=("key",))
    build = (
        DagBuilder()
        .source("in", SCHEMA)
        .operator("counts", Window.tumbling(5, [sum_of("number")], by=["key"]))
        .operator("first", first)
        .operator("both", WindowJoin(("window_start",), ("number",), 5, how="left", prefix="f_"))
        .connect("in", "counts")
        .connect("in", "first")
        .connect("counts", "both")
        .connect("first", "both")
        .sink_for("both", "out")
        .sink_for("counts", "counted")
    )
    pipeline = registered("unfinished", build, "out,counted")
    records = made_up(spark).where("_time.t < 23")
    bounds = reach_of(pipeline, TIMES, Box((None,), (None,)), Antichain.of([(23,)]))
    played = play(spark, records, pipeline, bounds, peers=3)
    counted = played.sinks["counted"].collect()
    assert {row.window_end for row in counted} == {5, 10, 15, 20}
    # The first of all rows is not known yet, so nothing can be joined to it, or said to miss it.
    assert played.sinks["out"].count() == 0
    played.release()


def test_types_come_out_as_spark_has_them(spark: SparkSession) -> None:
    def typed(batch: pa.RecordBatch) -> pa.RecordBatch:
        times = pc.cast(batch.column(TIME), pa.timestamp("ms", tz="UTC"))
        large = pc.cast(batch.column("key"), pa.large_string())
        columns = {TIME: batch.column(TIME), "at": times, "large": large}
        return pa.RecordBatch.from_pydict(columns)

    def unsigned(batch: pa.RecordBatch) -> pa.RecordBatch:
        number = pc.cast(batch.column("number"), pa.uint64())
        return pa.RecordBatch.from_pydict({TIME: batch.column(TIME), "number": number})

    def build(function: object) -> DagBuilder:
        return (
            DagBuilder()
            .source("in", SCHEMA)
            .stateless_operator("typed", MapBatch(function))  # type: ignore[arg-type]
            .connect("in", "typed")
            .sink_for("typed", "out")
        )

    pipeline = registered("typed", build(typed), "out")
    played = play(spark, made_up(spark), pipeline, reach(pipeline))
    frame = played.sinks["out"]
    assert frame.dtypes[1:] == [("at", "timestamp"), ("large", "string")]
    expected = Counter((key, time * 1_000) for _, time, key, _ in RECORDS)
    assert Counter(map(tuple, frame.select("large", F.unix_micros("at")).collect())) == expected
    played.release()
    pipeline = registered("unsigned", build(unsigned), "out")
    with pytest.raises(InvalidRequestError, match="emits number at out as uint64"):
        play(spark, made_up(spark), pipeline, reach(pipeline))


def test_several_streams_come_by_the_names_of_their_sources(spark: SparkSession) -> None:
    build = (
        DagBuilder()
        .source("left", SCHEMA)
        .source("right", SCHEMA)
        .operator("both", WindowJoin(("key",), ("key",), 10, prefix="right_"))
        .connect("left", "both")
        .connect("right", "both")
        .sink_for("both", "out")
    )
    pipeline = registered("two_streams", build, "out")
    one, other = made_up(spark).where("number < 60"), made_up(spark).where("number % 7 = 0")
    streams = {"left": one, "right": other}
    played = play(spark, streams, pipeline, reach(pipeline), peers=3)
    actual = Counter(tuple(row)[1:] for row in played.sinks["out"].collect())
    expected = Counter(
        (key, number, same, right)
        for _, time, key, number in RECORDS
        for _, later, same, right in RECORDS
        if number < 60 and right % 7 == 0 and same == key and later // 10 == time // 10
    )
    assert actual == expected
    assert expected
    played.release()
    with pytest.raises(InvalidRequestError, match="reads several streams: left, right"):
        play(spark, one, pipeline, reach(pipeline))
    with pytest.raises(InvalidRequestError, match="reads right, which is missing"):
        play(spark, {"left": one}, pipeline, reach(pipeline))
