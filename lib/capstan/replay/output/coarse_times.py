"""A transform whose rows have coarser times than its records, without saying so by a grain.

Of a range that ends within such a time it would write a part as the whole. What it does to times is
not read from its text but tried: records as there are, moved to a bound of the range, have to give
rows of that bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import DataType, TimestampType

from capstan.audit import played_records
from capstan.core.times import Kind
from capstan.errors import InvalidRequestError
from capstan.replay.output.rows import shaped
from capstan.replay.planning.plan import Plan
from capstan.spark.session import interpreting
from capstan.storage.tape.time_columns import coordinate, integers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRIED = 1_000
"""So many records are moved: some may be such as the transform leaves out."""


def require_own_times(spark: SparkSession, plan: Plan) -> None:
    """Check that a range does not begin or end within a time of the rows of a transform.

    One that declares a grain is checked by that, when it is planned. What leaves all records out
    that are tried tells nothing; what it then writes outside of the range is refused as it comes.

    Raises:
        InvalidRequestError: `CAP-GRAIN`, with the time of the rows that a bound falls into.
    """
    computation, own = plan.computation, plan.time_type.coordinates
    if plan.transform is None or computation is None or computation.grain != 1 or len(own) != 1:
        return
    box = plan.region.simplified().box
    bounds = sorted({x for x in (box.since[0], box.until[0]) if x is not None})
    if plan.layout.time is None or not bounds:
        return
    records = played_records(spark, plan.tape, plan.cut, plan.workers, plan.region).limit(_TRIED)
    moved = [_rows_at(spark, plan, records, bound) for bound in bounds]
    united = moved[0]
    for each in moved[1:]:
        united = united.unionByName(each)
    with interpreting(spark, _TRIED):
        found = united.where("time < bound").limit(1).collect()
    for bound, time in found:
        asked, there = (own[0].render(value) for value in (bound, time))
        raise InvalidRequestError(
            "CAP-GRAIN",
            f"{computation.title} makes of records at {asked} rows at {there}, and the range "
            "begins or ends in between: of such rows it would have a part",
            f"choose a bound at which its rows begin, as {there}; or declare its grain",
        )


def _rows_at(spark: SparkSession, plan: Plan, records: DataFrame, bound: int) -> DataFrame:
    """The times of the rows that records would give at a bound: `bound BIGINT, time BIGINT`."""
    [own] = plan.time_type.coordinates
    moved = records.withColumn("_time", F.struct(coordinate(F.lit(bound), own)))
    column = plan.tape.time_column
    if own.kind is Kind.TIMESTAMP and (column, TimestampType()) in _typed(records):
        # The transform may go by the column that the stream has its times from.
        moved = moved.withColumn(str(column), F.timestamp_micros(F.lit(bound)))
    tagged = plan.layout.tagged(shaped(spark, plan, moved), plan.time_type)
    time = integers(F.col("_time"), plan.time_type)[0]
    return tagged.select(F.lit(bound).alias("bound"), time.alias("time"))


def _typed(frame: DataFrame) -> set[tuple[str, DataType]]:
    return {(field.name, field.dataType) for field in frame.schema.fields}
