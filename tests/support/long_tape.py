"""Long recordings of progress only, written to a tape without a capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from capstan.core.times import Coordinate, Kind, TimeType
from capstan.storage.delta import delta
from capstan.storage.tape.schema import events_schema
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Tape, append_events, create_tape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake

TOTAL = TimeType((Coordinate.of("a", Kind.BIGINT),))
PRODUCT = TimeType((Coordinate.of("a", Kind.BIGINT), Coordinate.of("b", Kind.BIGINT)))
_PAYLOAD = StructType([StructField("n", LongType())])


def long_tape(
    spark: SparkSession,
    lake: Lake,
    name: str,
    time_type: TimeType,
    *,
    workers: int,
    events: int,
    broken: str = "false",
) -> Tape:
    """A tape on which each event of a worker drops one time and takes up the next one.

    In the total order, event `n` goes from `n` to `n + 1`. In the product order, the first event
    takes up `(1, e)` beside the minimum, which is held to the end, and event `n` of `e` goes from
    `(n, e - n + 1)` to `(n + 1, e - n)`: neither is before the other.

    Args:
        spark: The session.
        lake: The lake.
        name: The stream.
        time_type: `TOTAL` or `PRODUCT`.
        workers: Number of workers.
        events: Number of events per worker.
        broken: SQL condition over `worker` and `seq` for rows that drop a count of 2.
    """
    tape = create_tape(spark, lake, name, time_type, _PAYLOAD, TapeSettings())
    roster = pa.table(
        {
            "worker": pa.array(range(workers), pa.int32()),
            "label": pa.array(map(str, range(workers)), pa.string()),
            "opened_commit": pa.array([0] * workers, pa.int64()),
        }
    )
    delta.append(spark.createDataFrame(roster).coalesce(1), tape.paths.workers)
    frame = (
        spark.range(workers * events)
        .selectExpr(f"CAST(id DIV {events} AS INT) AS worker", f"id % {events} AS seq")
        .withColumns(
            {"kind": F.lit("progress"), "updates": F.expr(_updates(time_type, events, broken))}
        )
    )
    for column in events_schema(time_type).fields:
        if column.name not in frame.columns:
            value = 0 if column.name in ("batch", "commit") else None
            frame = frame.withColumn(column.name, F.lit(value).cast(column.dataType))
    append_events(tape, frame.select(*events_schema(time_type).names), 0, {})
    return tape


def _updates(time_type: TimeType, events: int, broken: str) -> str:
    def update(number: str, diff: str) -> str:
        second = f", 'b', {events} - ({number}) + 1" if time_type == PRODUCT else ""
        return f"named_struct('time', named_struct('a', {number}{second}), 'diff', {diff})"

    taken = update("seq + 1", "1L")
    moved = f"array({update('seq', f'IF({broken}, -2L, -1L)')}, {taken})"
    # In the product order the minimum stays: all further times need it.
    return f"IF(seq = 0, array({taken}), {moved})" if time_type == PRODUCT else moved
