"""What a pipeline reads of a stream: its records, with the order of their recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from capstan.dag import TIME
from capstan.tape.tape import Cut, Tape, read_records
from capstan.times.region import Region

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PLACE = ("_worker", "_label", "_batch", "_pos")
"""What a source may have of the records' place on tape, besides `_time`."""


def recorded(
    spark: SparkSession, tape: Tape, cut: Cut, workers: Mapping[int, str], region: Region
) -> DataFrame:
    """The records of chosen workers and times at a cut, with the order of their recording.

    Args:
        spark: The session.
        tape: The tape.
        cut: Its point of history.
        workers: Labels by worker number.
        region: The times; `Region(reach.reads, below=frontier)` for a pipeline.

    Returns:
        One row per record, in no order: `_worker INT, _time STRUCT<coordinates>, _label STRING,
        _batch BIGINT, _pos BIGINT`, then the stream's own columns.
    """
    frame = read_records(spark, tape, cut, workers=workers, region=region)
    labels = spark.createDataFrame(list(workers.items()), "worker INT, _label STRING")
    return frame.join(F.broadcast(labels), "worker").select(
        F.col("worker").alias("_worker"),
        F.col("time").alias("_time"),
        "_label",
        F.col("batch").alias("_batch"),
        F.col("pos").alias("_pos"),
        "data.*",
    )


def source_schema(payload: StructType) -> pa.Schema:
    """The Arrow columns of a stream's records as a source of a graph may declare them, all of them.

    Args:
        payload: The stream's own columns.
    """
    own = to_arrow_schema(payload, timezone="UTC")
    place = [pa.int32(), pa.string(), pa.int64(), pa.int64()]
    head = [pa.field(TIME, pa.int64()), *map(pa.field, PLACE, place)]
    return pa.schema([*head, *own])
