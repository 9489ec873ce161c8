"""Detection of transforms whose rows have coarser times than its records, without a grain.

When a range ends within such a time, the transform would write a part of it as the whole. The
effect on times is not read from the text but tried: real records, moved to a bound of the range,
must give rows at that bound.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, TimestampType

from capstan.audit import played_records
from capstan.core.times import Kind
from capstan.errors import InvalidRequestError
from capstan.replay.output.rows import shaped
from capstan.replay.planning.computation import TransformComputation
from capstan.replay.planning.plan import Plan
from capstan.spark.session import interpreting
from capstan.storage.tape.time_columns import coordinate, integers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIED = 1_000
"""The number of records that are moved; the transform may leave some out."""


def require_own_times(spark: SparkSession, plan: Plan) -> None:
    """Check that a range does not begin or end within a time of a transform's rows.

    A declared grain is checked at planning instead. A transform that leaves out all tried records
    passes; rows that it then writes outside the range are refused later.

    Raises:
        InvalidRequestError: `CAP-GRAIN`, with the time of the rows around a bound.
    """
    computation, coordinates = plan.computation, plan.time_type.coordinates
    if not isinstance(computation, TransformComputation) or computation.grain != 1:
        return
    if len(coordinates) != 1:
        return
    box = plan.region.simplified().box
    bounds = sorted({bound for bound in (box.since[0], box.until[0]) if bound is not None})
    if plan.layout.time is None or not bounds:
        return
    records = played_records(spark, plan.tape, plan.cut, plan.workers, plan.region).limit(_TRIED)
    moved = [_rows_at(spark, plan, records, bound) for bound in bounds]
    union = reduce(DataFrame.unionByName, moved)
    with interpreting(spark, _TRIED):
        earlier = union.where("time < bound").limit(1).collect()
    for bound, time in earlier:
        record_time, row_time = (coordinates[0].render(value) for value in (bound, time))
        raise InvalidRequestError(
            "CAP-GRAIN",
            f"{computation.title} puts records of {record_time} into rows at {row_time}; the range "
            "begins or ends in between, so these rows would be computed from a part of them",
            f"choose a bound at which its rows begin, such as {row_time}; or declare its grain",
        )


def _rows_at(spark: SparkSession, plan: Plan, records: DataFrame, bound: int) -> DataFrame:
    """The times of the rows that records at a bound give: `bound BIGINT, time BIGINT`."""
    [axis] = plan.time_type.coordinates
    moved = records.withColumn("_time", F.struct(coordinate(F.lit(bound), axis)))
    column = plan.tape.time_column
    if axis.kind is Kind.TIMESTAMP and (column, TimestampType()) in _typed(records):
        # The transform may use the column that the stream takes its times from.
        moved = moved.withColumn(str(column), F.timestamp_micros(F.lit(bound)))
    tagged = plan.layout.tagged(shaped(spark, plan, moved), plan.time_type)
    time = integers(F.col("_time"), plan.time_type)[0]
    return tagged.select(F.lit(bound).alias("bound"), time.alias("time"))


def _typed(frame: DataFrame) -> set[tuple[str, DataType]]:
    return {(field.name, field.dataType) for field in frame.schema.fields}
