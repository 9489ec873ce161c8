"""Targets that keep a column of the records for their time, and records that the tape has later.

A record that came late and was put back, or advanced, has the time of the frontier on tape, and its
own one in its columns. In a table whose time is that column it lies outside of the range that plays
it: no range has it, or has it and cannot be audited.
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
from capstan.replay.planning.plan import Plan
from capstan.storage.tape import feed
from capstan.storage.tape.region_sql import region_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_times_of_rows(spark: SparkSession, plan: Plan) -> None:
    """Check that no record of a copy has another time on tape than in the target's own column.

    Args:
        spark: The session; a job runs only where records of the stream were put back, or are
            advanced.
        plan: The replay.

    Raises:
        InvalidRequestError: `CAP-OWN-TIME`, with how many there are and where they lie.
    """
    column, tape = plan.layout.time, plan.tape
    if plan.computation is not None or column in (None, "_time"):
        return
    batches = [each.batch for each in feed.put_back(tape, plan.cut)]
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
    there = layout.predicate(rows.schema, plan.time_type, None, plan.region)
    played = region_sql(
        plan.time_type, plan.region, [f"`_played`.`{name}`" for name in plan.time_type.names]
    )
    wrong = rows.where(F.col("_played") != F.col("_time")).where(f"({there}) OR ({played})")
    [(count, since, until)] = wrong.agg(
        F.count(F.lit(1)), F.min("_time").cast("string"), F.max("_played").cast("string")
    ).collect()
    if count:
        raise InvalidRequestError(
            "CAP-OWN-TIME",
            f"{count} records of stream {tape.name} came late and stand on tape at a later time "
            f"than their column {column} says, from {since} to {until}: target "
            f"{plan.request.into} keeps {column} for the time of its rows, and cannot place them",
            "replay into a target that declares no time of its own, and keeps `_time`",
            stream=tape.name,
            records=count,
        )
