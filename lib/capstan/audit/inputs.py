"""The input of an audit: the records that a replay plays."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from capstan.core.times.region import Region
from capstan.storage.keyed_lookup import with_values
from capstan.storage.tape.tape import Cut, Tape, read_records

_POSITION = ("_batch", "_pos", "_worker")


def played_records(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Mapping[int, str],
    region: Region,
    *,
    place: bool = False,
) -> DataFrame:
    """The records of selected workers and times at a cut, as transforms and copies see them.

    One row per record, in no order: `_worker INT, _time STRUCT<coordinates>, _label STRING`, with
    `place` the position on tape `_batch BIGINT, _pos BIGINT`, then the stream's columns.
    """
    frame = read_records(spark, tape, cut, workers=workers, region=region)
    head = [F.col("worker").alias("_worker"), F.col("time").alias("_time")]
    rest = [F.col("batch").alias("_batch"), F.col("pos").alias("_pos")] if place else []
    labelled = with_values(frame, "_label", F.col("worker"), workers)
    return labelled.select(*head, "_label", *rest, "data.*")


def in_another_order(records: DataFrame) -> DataFrame:
    """The records in other partitions, in each of them from the last position to the first.

    Output that depends on the order of its input, or on how it is divided, then differs. The
    partition is a hash of the position, so that a second time the order is the same.
    """
    placed = records.repartition(*_POSITION)
    return placed.sortWithinPartitions(*_POSITION, ascending=False)
