"""What Spark computes of a pipeline equals what the engine computes."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.pipeline import END, MAX_FAN_OUT, TIME, DagBuilder, Pipeline, Reach, Sink, reach_of
from capstan.pipeline.definition import register
from capstan.pipeline.graph.errors import OperatorFailed
from capstan.pipeline.operators import (
    Deduplicate,
    Filter,
    IntervalJoin,
    Project,
    SessionWindow,
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
from capstan.pipeline.spark.plans.choice import choose
from capstan.pipeline.spark.runner import play
from capstan.pipeline.spark.task_errors import on_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from capstan.pipeline.graph.operator import OperatorSpec
    from capstan.pipeline.spark.stage_frames import PipelineRun

TIMES = TimeType.of(t=Kind.BIGINT)
ROWS = pa.schema(
    [
        ("key", pa.string()),
        ("part", pa.int32()),
        ("number", pa.int64()),
        ("small", pa.int16()),
        ("amount", pa.decimal128(12, 2)),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
    ]
)
TIMED = pa.schema([*ROWS, (TIME, pa.int64())])
AGGREGATES = [
    count_rows(), count_of("number"), count_distinct("small"), min_of("key"), max_of("at"),
    sum_of("number"), sum_of("small"), sum_of("amount"), mean_of("small"), min_of("raw"),
    first_of("number"), last_of("amount"), max_of("flag"),
]  # fmt: skip
ORDER = (("small", "descending"), ("key", "ascending"))


def windows(**more: object) -> dict[str, OperatorSpec]:
    """Windows of all kinds."""
    return {
        "tumbling": Window.tumbling(7, AGGREGATES, by=["key"], **more),
        "offset": Window.tumbling(7, [count_rows()], by=["key", "part"], offset=3, **more),
        "sliding": Window.sliding(10, 4, AGGREGATES, by=["part"], ties=["part"], **more),
        "all": Window.sliding(6, 6, [sum_of("number")], **more),
        "sessions": SessionWindow(3, tuple(AGGREGATES), ("key", "part"), **more),
        "one session": SessionWindow(2, (count_rows(), last_of("key")), (), **more),
        "session of a time": SessionWindow(1, (count_rows(),), ("key",), **more),
    }


SINGLE: dict[str, OperatorSpec] = {
    **windows(),
    "dates": Window.tumbling(5, [count_rows()], bounds=pa.date32()),
    "first ever": Deduplicate(("key", "part")),
    "first of all": Deduplicate((), ties=("small",)),
    "first by ties": Deduplicate(("part",), ties=("raw", "number")),
    "best": TopN(2, ORDER, by=("part",), window=9, rank="place"),
    "best with ties": TopN(2, ORDER, window=4, with_ties=True, rank="place"),
    "best ever": TopN(3, ORDER, by=("key",)),
    "filtered": Filter((pc.field("number") > 1) & ~(pc.field("key") == "a") | pc.field("flag")),
    "renamed": Project({"id": "key", "part": "part"}),
}
JOINS: dict[str, OperatorSpec] = {
    "same time": IntervalJoin(("key",), ("key",), 0, 0, prefix="o_"),
    "later": IntervalJoin(("key", "part"), ("key", "part"), 1, 6, prefix="o_"),
    "around": IntervalJoin(("key",), ("key",), -3, 4, how="left", prefix="o_"),
    "before": IntervalJoin(("key",), ("key",), -8, -2, how="left", prefix="o_"),
    "window": WindowJoin(("key",), ("key",), 5, prefix="o_", offset=2),
    "left window": WindowJoin(("key", "small"), ("key", "small"), 5, how="left", prefix="o_"),
}


def rows(seed: int, count: int = 250) -> list[tuple[object, ...]]:
    """Random rows with nulls, ties and equal rows."""
    chosen = random.Random(seed)
    start = datetime(2024, 5, 1, tzinfo=UTC)

    def row() -> tuple[object, ...]:
        return (
            chosen.randrange(4),
            (chosen.randrange(-40, 60),),
            chosen.choice([None, "a", "b", "ä", ""]),
            chosen.choice([None, 0, 1, 2]),
            chosen.choice([None, 0, -1, chosen.choice((1, -1)) * 2**58, chosen.randrange(100)]),
            chosen.choice([None, *range(-3, 4)]),
            chosen.choice([None, Decimal("0.10"), Decimal("-9999999999.99"), Decimal("1.00")]),
            chosen.choice([None, True, False]),
            chosen.choice([None, start, start + timedelta(microseconds=1)]),
            chosen.choice([None, b"", b"\x80", b"\x01\x00"]),
        )

    made = [row() for _ in range(count)]
    return made + made[:20]


def records(spark: SparkSession, seed: int, partitions: int = 3) -> DataFrame:
    columns = (
        "_worker INT, _time STRUCT<t: BIGINT>, key STRING, part INT, number BIGINT, "
        "small SMALLINT, amount DECIMAL(12,2), flag BOOLEAN, at TIMESTAMP, raw BINARY"
    )
    return spark.createDataFrame(rows(seed), columns).repartition(partitions)


def registered(name: str, build: DagBuilder, *sinks: str) -> Pipeline:
    register(f"{__name__}:{name}", build.build)
    return Pipeline(name, f"{__name__}:{name}", tuple(Sink(sink) for sink in sinks))


def reaches(pipeline: Pipeline) -> list[Reach]:
    """All times; those before a frontier; a range of them."""
    everything = Box((None,), (None,))
    return [
        reach_of(pipeline, TIMES, everything, Antichain()),
        reach_of(pipeline, TIMES, everything, Antichain.of([(31,)])),
        reach_of(pipeline, TIMES, Box((-20,), (24,)), Antichain.of([(24,)])),
    ]


def result(run: PipelineRun) -> object:
    """What a run gives, as far as it does not say who computed it."""
    sinks = {name: multiset(frame) for name, frame in run.sinks.items()}
    aside = multiset(run.aside.drop("worker"))
    run.release()
    return sinks, run.trimmed, run.put_aside, aside


def multiset(frame: DataFrame) -> Counter[object]:
    return Counter(str(row.asDict(recursive=True)) for row in frame.collect())


def compute(spark: SparkSession, frame: DataFrame, pipeline: Pipeline, *, engine: bool) -> None:
    """Read the output of an unbounded run."""
    with on_driver():
        play(spark, frame, pipeline, reaches(pipeline)[0], engine=engine).sinks["out"].collect()


def require_equal(spark: SparkSession, pipeline: Pipeline, streams: dict[str, DataFrame]) -> None:
    """Check that both give the same, over all reaches."""
    for reach in reaches(pipeline):
        inside = [f"_time.t >= {low}" for low in reach.reads.since if low is not None]
        inside.append(f"_time.t < {reach.last}")
        chosen = {name: frame.where(" AND ".join(inside)) for name, frame in streams.items()}
        given = result(play(spark, chosen, pipeline, reach))
        assert given == result(play(spark, chosen, pipeline, reach, engine=True, peers=3))


@pytest.mark.parametrize("timed", [False, True], ids=["untimed", "timed"])
@pytest.mark.parametrize("first", range(0, len(SINGLE), MAX_FAN_OUT))
def test_spark_gives_what_the_engine_gives(spark: SparkSession, first: int, timed: bool) -> None:
    chosen = dict([*SINGLE.items()][first : first + MAX_FAN_OUT])
    build = DagBuilder().source("in", TIMED if timed else ROWS)
    for name, operator in chosen.items():
        kind = build.operator if operator.key is not None else build.stateless_operator
        kind(name, operator).connect("in", name).sink_for(name, f"{name} out")
    pipeline = registered("single", build, *(f"{name} out" for name in chosen))
    assert not choose(pipeline.plan().dag, END).reasons
    require_equal(spark, pipeline, {"in": records(spark, first)})


def test_spark_joins_as_the_engine_does(spark: SparkSession) -> None:
    build = DagBuilder().source("left", ROWS).source("right", TIMED)
    for name, operator in JOINS.items():
        build.operator(name, operator).connect("left", name).connect("right", name)
        build.sink_for(name, f"{name} out")
    pipeline = registered("joined", build, *(f"{name} out" for name in JOINS))
    assert not choose(pipeline.plan().dag, 31).reasons
    require_equal(spark, pipeline, {"left": records(spark, 1), "right": records(spark, 2)})


def test_the_engine_goes_on_from_what_spark_has_computed(spark: SparkSession) -> None:
    """Behind Spark's nodes; a sink of several inputs; a node that is read twice."""
    totals = Window.tumbling(5, [sum_of("small", "total"), count_rows("rows")], by=["key"])
    build = (
        DagBuilder()
        .source("in", ROWS)
        .source("others", ROWS)
        .operator("totals", totals)
        .operator("others_totals", totals)
        .operator("spaced", Deduplicate(("key",), within=8))
        .operator("both", WindowJoin(("key",), ("key",), 10, how="left", prefix="o_"))
        .connect("in", "totals")
        .connect("others", "others_totals")
        .connect("totals", "spaced")
        .connect("totals", "both")
        .connect("spaced", "both")
        .sink_for("both", "out")
        .sink("all")
        .connect("totals", "all")
        .connect("others_totals", "all")
    )
    pipeline = registered("mixed", build, "out", "all")
    choice = choose(pipeline.plan().dag, 31)
    assert list(choice.plans) == ["in", "others", "totals", "others_totals", "all"]
    assert set(choice.reasons) == {"spaced", "both", "out"}
    require_equal(spark, pipeline, {"in": records(spark, 3), "others": records(spark, 4)})


def test_a_sum_is_exact_or_fails_by_name(spark: SparkSession) -> None:
    build = DagBuilder().source("in", ROWS).operator("it", Window.tumbling(9, [sum_of("number")]))
    pipeline = registered("sums", build.connect("in", "it").sink_for("it", "out"), "out")
    columns = records(spark, 0).schema
    for numbers, total in (([2**62, 2**62, -(2**62)], 2**62), ([2**62, 2**62], None)):
        made = [(0, (1,), "a", 1, number, 1, None, None, None, None) for number in numbers]
        frame = spark.createDataFrame(made, columns).coalesce(1)
        if total is not None:
            require_equal(spark, pipeline, {"in": frame})
            continue
        for engine in (False, True):
            with pytest.raises(OperatorFailed, match=r"it .*sum\(number\) is too large") as failed:
                compute(spark, frame, pipeline, engine=engine)
            assert failed.value.fields["node"] == "it"


@pytest.mark.parametrize(
    "operator",
    [Window.tumbling(9, [count_rows()]), SessionWindow(9, (count_rows(),), ())],
    ids=["window", "session"],
)
def test_times_near_the_limit_of_64_bits(spark: SparkSession, operator: OperatorSpec) -> None:
    """Late ones fail by name, as a window would end after the limit; early ones are right."""
    build = DagBuilder().source("in", ROWS).operator("it", operator)
    name = f"limit_{type(operator).__name__.lower()}"
    pipeline = registered(name, build.connect("in", "it").sink_for("it", "out"), "out")

    def at(*times: int) -> DataFrame:
        made = [(0, (time,), "a", 1, 1, 1, None, None, None, None) for time in times]
        return spark.createDataFrame(made, records(spark, 0).schema)

    for engine in (False, True):
        with pytest.raises(OperatorFailed, match="it .*a time is less than 9 before the limit"):
            compute(spark, at(2**63 - 3), pipeline, engine=engine)
    least = -(2**63) + 20
    require_equal(spark, pipeline, {"in": at(least, least + 8, least + 17, 0)})
