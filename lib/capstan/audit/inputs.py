"""What is audited: the records that a replay plays, and the part of a table that holds them."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from capstan.audit.table_shape import Shape
from capstan.core.times import Box, TimeType
from capstan.core.times.region import Region
from capstan.storage.keyed_lookup import with_values
from capstan.storage.tape.region_sql import quoted, region_sql, workers_sql
from capstan.storage.tape.tape import Cut, Tape, read_records


def played_records(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Mapping[int, str],
    region: Region,
    *,
    place: bool = False,
) -> DataFrame:
    """The records of chosen workers and times at a cut, as transforms and copies see them.

    Args:
        spark: The session.
        tape: The tape.
        cut: Its point of history.
        workers: Labels by worker number.
        region: The times.
        place: Whether each has its place on tape: `_batch BIGINT, _pos BIGINT`.

    Returns:
        One row per record, in no order: `_worker INT, _time STRUCT<coordinates>, _label STRING`,
        its place, then the stream's own columns.
    """
    frame = read_records(spark, tape, cut, workers=workers, region=region)
    head = [F.col("worker").alias("_worker"), F.col("time").alias("_time")]
    rest = [F.col("batch").alias("_batch"), F.col("pos").alias("_pos")] if place else []
    labelled = with_values(frame, "_label", F.col("worker"), workers)
    return labelled.select(*head, "_label", *rest, "data.*")


def restrict(
    frame: DataFrame,
    shape: Shape,
    time_type: TimeType,
    workers: Mapping[int, str],
    region: Region,
) -> DataFrame:
    """The rows of a table that belong to chosen workers and times, files pruned by both.

    What the table does not keep is not restricted. Where it keeps only some coordinates, those
    are restricted by the region's box alone.

    Args:
        frame: The table.
        shape: Its worker and time columns.
        time_type: The coordinates of the stream's time.
        workers: Labels by worker number.
        region: The times.
    """
    if shape.worker is not None:
        frame = frame.where(_worker_condition(frame.schema, shape.worker, workers))
    times = shape.times_for(time_type)
    columns = [column or "" for column in times]
    if None in times:
        box = region.simplified().box
        region = Region(Box(_kept(box.since, times), _kept(box.until, times)))
    return frame.where(region_sql(time_type, region, columns))


def _worker_condition(schema: StructType, name: str, workers: Mapping[int, str]) -> Column:
    if isinstance(schema[name].dataType, StringType):
        return F.col(quoted(name)).isin(sorted(set(workers.values())))
    return F.expr(workers_sql(workers, quoted(name)))


def _kept(bound: tuple[int | None, ...], times: tuple[str | None, ...]) -> tuple[int | None, ...]:
    return tuple(
        None if column is None else value for value, column in zip(bound, times, strict=True)
    )
