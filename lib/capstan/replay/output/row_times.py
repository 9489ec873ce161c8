"""Times of rows that a target cannot hold: coarser than the records', or unlike those on tape.

*Coarse times.* When a range ends within a coarse time, a transform without a grain would write a
part of it as the whole. The effect on times is not read from the text but tried: real records,
moved to a bound of the range, must give rows at that bound.

*Times of a stamp.* A range has the records whose `_time` it has. A row at another of their times
would be taken away by the range that has that time, which does not read its record.

*Later times.* A late record that was re-injected or advanced has the frontier's time on tape, and
its own time in its columns. In a table whose time is that column, it lies outside the range that
replays it: no range contains it, or none that does can be audited.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import product

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from capstan.audit import played_records
from capstan.audit.row_view import has_stamps
from capstan.core.config import LatePolicy
from capstan.core.protocol.events import STAMP
from capstan.core.times import Box, Kind
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.output.rows import shaped
from capstan.replay.planning.plan import Plan
from capstan.spark.own_session import interpreting
from capstan.storage.tape import feed
from capstan.storage.tape.feed import Origin
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.time_columns import coordinate, integers

_TRIED = 1_000
"""The number of records that are moved; the transform may leave some out."""


def require_own_times(spark: SparkSession, plan: Plan) -> None:
    """Check that a range does not begin or end within a time of a transform's rows."""
    # Without stamps, a declared grain is checked at planning instead. A transform that leaves out
    # all tried records passes; rows that it then writes outside the range are refused later.
    computation, coordinates = plan.computation, plan.time_type.coordinates
    stamps = computation.reads_stamp and plan.inputs.tape.stamped
    grain = computation.grain
    if computation.transform is None or (grain != 1 and not stamps):
        return
    if len(coordinates) != 1:
        return
    box = plan.region.simplified().box
    ends = box.since[0], box.until[0]
    bounds = sorted({bound - bound % grain for bound in ends if bound is not None})
    if plan.layout.time is None or not bounds:
        return
    read = plan.inputs
    # The records that have a row in the range may be outside of it.
    region = Region(Box.everything(plan.time_type)) if stamps else plan.region
    of = spark, read.tape, read.cut, read.workers, region
    records = played_records(*of, stamp=computation.reads_stamp).limit(_TRIED)
    stamps = stamps and has_stamps(records.schema)
    after = [None, grain] if stamps else [None]
    moved = [_rows_at(spark, plan, records, *each) for each in product(bounds, after)]
    union = reduce(DataFrame.unionByName, moved)
    with interpreting(spark, _TRIED):
        elsewhere = union.where("time <> bound" if stamps else "time < bound").limit(1).collect()
    for bound, time in elsewhere:
        record_time, row_time = (coordinates[0].render(value) for value in (bound, time))
        if stamps:
            raise InvalidRequestError(
                "CAP-STAMP",
                f"{computation.title} puts records whose `_time` is {record_time} into rows at "
                f"{row_time}; the range that has these rows need not have the records",
                "take the time of its rows from `_time` as it is, and keep others of `_stamp` in "
                "other columns; or replay the whole stream, without bounds",
            )
        raise InvalidRequestError(
            "CAP-GRAIN",
            f"{computation.title} puts records of {record_time} into rows at {row_time}; the range "
            "begins or ends in between, so these rows would be computed from a part of them",
            f"choose a bound at which its rows begin, such as {row_time}; or declare its grain",
        )


def _rows_at(
    spark: SparkSession, plan: Plan, records: DataFrame, bound: int, after: int | None
) -> DataFrame:
    """The times of the rows that records at a bound give: `bound BIGINT, time BIGINT`.

    With `after`, their stamps have a second time, so long after the bound.
    """
    [axis] = plan.time_type.coordinates
    time = F.struct(coordinate(F.lit(bound), axis))
    moved = records.withColumn("_time", time)
    if has_stamps(records.schema):
        # The last times of all have none after them.
        last = bound if after is None or bound + after > axis.maximum else bound + after
        second = [F.struct(coordinate(F.lit(last), axis))] if last > bound else []
        moved = moved.withColumn(STAMP, F.array("_time", *second))
    column = plan.inputs.tape.time_column
    typed = {(field.name, field.dataType) for field in records.schema.fields}
    if axis.kind is Kind.TIMESTAMP and (column, TimestampType()) in typed:
        # The transform may use the column that the stream takes its times from.
        moved = moved.withColumn(str(column), F.timestamp_micros(F.lit(bound)))
    tagged = plan.layout.tagged(shaped(spark, plan, moved), plan.time_type)
    time = integers(F.col("_time"), plan.time_type)[0]
    return tagged.select(F.lit(bound).alias("bound"), time.alias("time"))


def require_times_of_rows(spark: SparkSession, plan: Plan) -> None:
    """Check that every record of a copy has the same time on tape and in the target's own column.

    A job runs only when records have come back from `late`, or are advanced.
    """
    column, inputs = plan.computation.own_time(plan.layout), plan.inputs
    if column is None:
        return
    tape = inputs.tape
    entries = feed.batches_of(tape, plan.inputs.cut, Origin.PUT_BACK, Origin.FIX)
    batches = [entry.batch for entry in entries]
    advances = tape.late_policy == LatePolicy.ADVANCE
    if not batches and not advances:
        return
    everything = Region(Box.everything(plan.time_type))
    records = played_records(spark, tape, inputs.cut, inputs.workers, everything, place=True)
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
