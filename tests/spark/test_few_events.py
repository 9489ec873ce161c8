"""The events of a small micro-batch are those that Spark would make of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from capstan.capture.batch.commit_events import CLOSING, OPENING, Cells, numbered, numbered_events
from capstan.core.times import Coordinate, Kind, Time, TimeType
from capstan.storage.lake import Lake
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import create_tape
from capstan.storage.tape.time_columns import coordinate

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from capstan.storage.tape.tape import Tape

TYPES = {
    "event": TimeType((Coordinate.of("event", Kind.TIMESTAMP, 0),)),
    "all": TimeType(
        (
            Coordinate.of("epoch", Kind.BIGINT),
            Coordinate.of("day", Kind.DATE, 0),
            Coordinate.of("event", Kind.TIMESTAMP, 0),
        )
    ),
}
WORKERS, SMALL = st.integers(0, 3), st.integers(0, 4)
HASHES = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module", params=list(TYPES))
def tape(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Tape:
    folder: Path = tmp_path_factory.mktemp("few")
    payload = StructType([StructField("n", LongType())])
    return create_tape(spark, Lake.at(folder), "s", TYPES[request.param], payload, TapeSettings())


def stored(spark: SparkSession, time_type: TimeType, rows: list[tuple]) -> DataFrame:
    width = len(time_type.coordinates)
    columns = {
        "worker": pa.array([row[0] for row in rows], pa.int32()),
        **{f"t{i}": pa.array([row[1][i] for row in rows], pa.int64()) for i in range(width)},
        "at": pa.array([row[2] for row in rows], pa.int64()),
        "h1": pa.array([row[3] for row in rows], pa.int64()),
        "h2": pa.array([row[4] for row in rows], pa.int64()),
    }
    time = F.struct(*(coordinate(F.col(f"t{i}"), c) for i, c in enumerate(time_type.coordinates)))
    return spark.createDataFrame(pa.table(columns)).select(
        "worker", time.alias("time"), "at", "h1", "h2"
    )


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_they_are_numbered_alike(spark: SparkSession, tape: Tape, data: st.DataObject) -> None:
    width = len(tape.time_type.coordinates)
    times = st.tuples(*[SMALL] * width)
    row = st.tuples(WORKERS, times, SMALL, HASHES, HASHES)
    rows = data.draw(st.lists(row, max_size=20))
    moves = st.tuples(times, times).map(lambda pair: [(Time(pair[0]), -1), (Time(pair[1]), 1)])
    reported = data.draw(
        st.lists(
            st.tuples(WORKERS, st.sampled_from([OPENING, CLOSING]), moves),
            min_size=1,
            unique_by=lambda each: each[:2],
        )
    )
    positions = {worker: data.draw(st.integers(0, 10**12)) for worker in range(4)}
    frame = stored(spark, tape.time_type, rows)
    by_spark = numbered_events(frame, tape, reported, positions, batch=7, commit=9)
    cells = Cells.of(frame)
    sent = cells.messages(tape.time_type)
    actual = numbered(tape.time_type, reported, positions, sent, batch=7, commit=9)
    expected = by_spark.toArrow().select(actual.column_names).cast(actual.schema)
    order = [("worker", "ascending"), ("seq", "ascending")]
    assert actual.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
    assert cells.records == len(rows)
    greatest = {w: max(r[2] for r in rows if r[0] == w) for w in {r[0] for r in rows}}
    assert cells.greatest == greatest
    assert Counter(actual["worker"].to_pylist()).keys() <= set(range(4))
