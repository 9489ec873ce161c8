"""Targets whose time is a column of the records, and records that are at a later time on tape.

A late record that was re-injected or advanced has the frontier's time on tape, and its own time in
its columns. In a table whose time is that column, it lies outside the range that replays it: no
range contains it, or none that does can be audited.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.audit import played_records
from capstan.core.config import LatePolicy
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.planning.computation import CopyComputation
from capstan.replay.planning.plan import Plan
from capstan.storage.tape import feed
from capstan.storage.tape.region_sql import region_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_times_of_rows(spark: SparkSession, plan: Plan) -> None:
    """Check that every record of a copy has the same time on tape and in the target's own column.

    Args:
        spark: The session; a job runs only when late records were re-injected, or are advanced.
        plan: The replay.

    Raises:
        InvalidRequestError: `CAP-OWN-TIME`, with the number of such records and their times.
    """
    column, tape = plan.layout.time, plan.tape
    if not isinstance(plan.computation, CopyComputation) or column in (None, "_time"):
        return
    batches = [entry.batch for entry in feed.reinjections(tape, plan.cut)]
    advances = tape.late_policy == LatePolicy.ADVANCE
    if not batches and not advances:
        return
    everything = Region(Box.everything(plan.time_type))
    records = played_records(spark, tape, plan.cut, plan.workers, everything, place=True)
    if not advances:
        records = records.where(F.col("_batch").isin(batches))
    layout = replace(plan.layout, worker=None)
    rows = records.withColumn("_played", F.col("_time"))
    rows = layout.tagged(rows, plan.time_type)
    in_target = layout.predicate(rows.schema, plan.time_type, None, plan.region)
    played = region_sql(
        plan.time_type, plan.region, [f"`_played`.`{name}`" for name in plan.time_type.names]
    )
    wrong = rows.where(F.col("_played") != F.col("_time")).where(f"({in_target}) OR ({played})")
    [(count, since, until)] = wrong.agg(
        F.count(F.lit(1)), F.min("_time").cast("string"), F.max("_played").cast("string")
    ).collect()
    if count:
        raise InvalidRequestError(
            "CAP-OWN-TIME",
            f"{count} late records of stream {tape.name} are on tape at a later time than in their "
            f"column {column}, from {since} to {until}; target {plan.request.into} takes the time "
            f"of its rows from {column}, so they would lie outside the range",
            "replay into a target that declares no time column, and keeps `_time`",
            stream=tape.name,
            records=count,
        )
