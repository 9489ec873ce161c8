"""Keyed sums and sessions by Spark's operator `transformWithState`, as streams over files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.bench.inputs import Bench
from tests.bench.workloads.running_totals import rocks

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

_TOTAL = StructType([StructField("total", LongType())])
_OPEN = StructType([StructField(name, LongType()) for name in ("last", "total")])
_OUT = StructType([StructField("key", StringType()), *_TOTAL.fields])


class _Sum(StatefulProcessor):
    """Emits the running sum for each record."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", _TOTAL)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (total,) = self._total.get() or (0,)
        for row in rows:
            total += row.number
            yield Row(key=key[0], total=total)
        self._total.update((total,))

    def close(self) -> None:
        pass


class _Sessions(StatefulProcessor):
    """Emits the sum of each session: with the first row of the next one, or by a timer.

    Rows of a batch are in order of time here, and batches are in order of time, too.
    """

    def __init__(self, gap: int) -> None:
        self._gap = gap

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._open = handle.getValueState("open", _OPEN)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        last, total = self._open.get() or (None, 0)
        if last is not None:
            self._handle.deleteTimer(last + self._gap)
        for time, number in sorted((row._time, row.number) for row in rows):
            if last is not None and time >= last + self._gap:
                yield Row(key=key[0], total=total)
                total = 0
            last, total = time, total + number
        self._open.update((last, total))
        self._handle.registerTimer(last + self._gap)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        ended = self._open.get()
        assert ended is not None
        self._open.clear()
        yield Row(key=key[0], total=ended[1])

    def close(self) -> None:
        pass


def by_spark(
    bench: Bench, rows: pa.Table, folder: Path, gap: int | None
) -> tuple[list[float], pa.Table]:
    """CPU seconds per row, by round, and the output: `key` and `total`.

    The output is that of the rehearsal; the last sessions stay open, as streams have no end.

    Args:
        bench: The benchmark.
        rows: `key STRING`, `number BIGINT` and `_time BIGINT` in milliseconds, ascending.
        folder: The same rows in files.
        gap: Gap of sessions in milliseconds; None for sums by record.
    """
    output = folder.with_name(f"{folder.name}-output")
    _stream(bench, rows, folder, gap, output.with_name(f"{output.name}-checkpoint"), output)
    costs = []
    for number in range(bench.options.rounds):
        checkpoint = folder.with_name(f"{folder.name}-{number}")
        cost = bench.clock.measure(partial(_stream, bench, rows, folder, gap, checkpoint))
        costs.append(cost.cpu / rows.num_rows)
    return costs, pa.concat_tables(map(pq.read_table, sorted(output.glob("*.parquet"))))


def _stream(
    bench: Bench,
    rows: pa.Table,
    folder: Path,
    gap: int | None,
    checkpoint: Path,
    into: Path | None = None,
) -> None:
    numbers = (
        bench.spark.readStream.schema(from_arrow_schema(rows.schema))
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
    )
    if gap is not None:
        numbers = numbers.withColumn("at", F.timestamp_millis("_time")).withWatermark(
            "at", "0 seconds"
        )
    sums = numbers.groupBy("key").transformWithState(
        _Sum() if gap is None else _Sessions(gap),
        _OUT,
        outputMode="Append",
        timeMode="None" if gap is None else "EventTime",
    )
    sink = sums.writeStream.format("noop" if into is None else "parquet")
    if into is not None:
        sink = sink.option("path", str(into))
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    with rocks(bench.spark):
        query.start().awaitTermination()
