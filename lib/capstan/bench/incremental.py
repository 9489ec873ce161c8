"""The keyed sum by Spark's own operator, `transformWithState`, as a stream over files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

from capstan.bench.inputs import Bench
from capstan.workloads.running_totals import rocks

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

_TOTAL = StructType([StructField("total", LongType())])
_OUT = StructType([StructField("key", StringType()), *_TOTAL.fields])


class _Sum(StatefulProcessor):
    """Puts out the sum so far for each record."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", _TOTAL)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        (total,) = self._total.get() or (0,)
        for row in rows:
            total += row.number
            yield Row(key=key[0], total=total)
        self._total.update((total,))

    def close(self) -> None:
        pass


def by_spark(bench: Bench, rows: pa.Table, folder: Path) -> list[float]:
    """CPU seconds of a row, by round.

    Args:
        bench: The benchmark.
        rows: `key STRING` and `number BIGINT`.
        folder: The same in files.
    """
    found = []
    for number in range(bench.options.rounds):
        checkpoint = bench.folder / f"{folder.name}-{number}"
        cost = bench.clock.measure(partial(_stream, bench, rows, folder, checkpoint))
        found.append(cost.cpu / rows.num_rows)
    return found


def _stream(bench: Bench, rows: pa.Table, folder: Path, checkpoint: Path) -> None:
    numbers = (
        bench.spark.readStream.schema(from_arrow_schema(rows.schema))
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
    )
    sums = numbers.groupBy("key").transformWithState(
        _Sum(), _OUT, outputMode="Append", timeMode="None"
    )
    query = (
        sums.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    with rocks(bench.spark):
        query.start().awaitTermination()
