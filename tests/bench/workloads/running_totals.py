"""A stateful incremental query of Spark's own: departures and delays of each airport so far.

While the source is live, Spark's `transformWithState` keeps the state, in its checkpoint. The
output of the query is a stream like any other: its table is captured, and the tape verified and
replayed. The state itself is read with Spark's `statestore` source.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from capstan.demo.flights import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKS: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATE: Final = "totals"

TOTALS: Final = StructType(
    [StructField("departures", LongType()), StructField("delay_minutes", LongType())]
)
"""State of an airport."""

COLUMNS: Final = StructType(
    [StructField("origin", StringType()), StructField("until", TimestampType()), *TOTALS.fields]
)
"""Output: totals of an airport, after the flights of a batch up to a moment."""


class RunningTotals(StatefulProcessor):
    """Adds the flights of a batch to the totals of their airport."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._totals = handle.getValueState(STATE, TOTALS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """The new totals of one airport."""
        departures, delay = self._totals.get() or (0, 0)
        until = None
        for row in rows:
            departures += 1
            delay += row.dep_delay or 0
            until = row.sched_dep if until is None else max(until, row.sched_dep)
        self._totals.update((departures, delay))
        yield Row(origin=key[0], until=until, departures=departures, delay_minutes=delay)

    def close(self) -> None:
        """Nothing to release."""


@contextmanager
def rocks(spark: SparkSession) -> Iterator[None]:
    """Keep the state of queries started inside in RocksDB, as `transformWithState` requires."""
    before = str(spark.conf.get(_PROVIDER))
    spark.conf.set(_PROVIDER, _ROCKS)
    try:
        yield
    finally:
        spark.conf.set(_PROVIDER, before)


def run_totals(
    spark: SparkSession, source: str | os.PathLike[str], table: str, checkpoint: str
) -> None:
    """Add up new files of flights, one after another, into a Delta table.

    Args:
        spark: The session; its state store is RocksDB while the query runs.
        source: Folder of the feed.
        table: Path of the table: `COLUMNS`, a row per airport and file.
        checkpoint: Folder of the query's state and progress.
    """
    with rocks(spark):
        flights = (
            spark.readStream.schema(from_arrow_schema(SCHEMA))
            .option("maxFilesPerTrigger", 1)
            .parquet(os.fspath(source))
        )
        totals = (
            flights.where("NOT cancelled")
            .groupBy("origin")
            .transformWithState(RunningTotals(), COLUMNS, outputMode="Append", timeMode="None")
        )
        query = (
            totals.writeStream.format("delta")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(table)
        )
        query.awaitTermination()


def totals_kept(spark: SparkSession, checkpoint: str) -> DataFrame:
    """The state of each airport: `key` and `value` as structs, and the partition."""
    return (
        spark.read.format("statestore")
        .option("path", checkpoint)
        .option("stateVarName", STATE)
        .load()
    )
