"""Progress statements of workers in one commit of a tape, before or after their messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from capstan.core.times import Time
from capstan.storage.tape.fingerprint import fingerprint
from capstan.storage.tape.schema import updates_array
from capstan.storage.tape.time_columns import coordinate

if TYPE_CHECKING:
    from capstan.storage.tape.tape import Tape

# Ranks within a commit: a worker's next number, its opening, its messages, its closing.
POSITION, OPENING, MESSAGES, CLOSING = -1, 0, 1, 2

Statement = tuple[int, int, list[tuple[Time, int]]]
"""A worker, the rank of its statement, and the updates."""


def moved(before: Time, after: Time) -> list[tuple[Time, int]]:
    """The updates that move a worker from one held time to another."""
    return [(before, -1), (after, 1)]


def numbered_events(
    stored: DataFrame,
    tape: Tape,
    statements: list[Statement],
    positions: Mapping[int, int],
    *,
    batch: int,
    commit: int,
) -> DataFrame:
    """The events of one commit, numbered from each worker's last, in one partition.

    `stored` has a row per record: `_worker INT, _time STRUCT`, hashes `_h1, _h2 BIGINT`. The rank
    of a statement places it before or after messages; `positions` are the workers' next `seq`.
    """
    messages = stored.groupBy(F.col("_worker").alias("worker"), F.col("_time").alias("time")).agg(
        F.count(F.lit(1)).alias("records"),
        fingerprint(F.col("_h1"), F.col("_h2")).alias("fingerprint"),
    )
    progress = progress_frame(stored.sparkSession, statements, tape, positions)
    whole = Window.partitionBy("worker")
    order = whole.orderBy("rank", "time")
    return (
        messages.withColumn("rank", F.lit(MESSAGES))
        .unionByName(progress, allowMissingColumns=True)
        .select(
            "worker",
            (F.max("start").over(whole) + F.row_number().over(order) - 2).alias("seq"),
            F.when(F.col("rank") == MESSAGES, "messages").otherwise("progress").alias("kind"),
            "time",
            "updates",
            F.lit(batch).cast("bigint").alias("batch"),
            F.lit(commit).cast("bigint").alias("commit"),
            "records",
            "fingerprint",
            "rank",
        )
        .where(F.col("rank") > POSITION)
        .drop("rank")
        .coalesce(1)
    )


def progress_frame(
    spark: SparkSession, statements: list[Statement], tape: Tape, positions: Mapping[int, int]
) -> DataFrame:
    """Progress statements as rows `worker INT, rank INT, start BIGINT, updates ARRAY`."""
    # A row of rank `POSITION` per worker carries its next `seq` as `start`. Times are passed as
    # integers and cast to the tape's types in Spark, because Python's dates depend on a time zone.
    width = len(tape.time_type.coordinates)
    starting = [(worker, POSITION, start, None) for worker, start in positions.items()]
    stated = [
        (worker, rank, None, [[*time, diff] for time, diff in updates])
        for worker, rank, updates in statements
    ]
    workers, ranks, starts, updates = zip(*starting, *stated, strict=True)
    rows = {
        "worker": pa.array(workers, pa.int32()),
        "rank": pa.array(ranks, pa.int32()),
        "start": pa.array(starts, pa.int64()),
        "updates": pa.array(updates, pa.list_(pa.list_(pa.int64()))),
    }

    def update(numbers: Column) -> Column:
        coordinates = [coordinate(numbers[i], tape.time_type.coordinates[i]) for i in range(width)]
        return F.struct(F.struct(*coordinates).alias("time"), numbers[width].alias("diff"))

    typed = F.transform("updates", update).cast(updates_array(tape.time_type)).alias("updates")
    return spark.createDataFrame(pa.table(rows)).select("worker", "rank", "start", typed)
