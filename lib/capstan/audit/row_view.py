"""Rows in uniform columns: the records that a replay plays, and a view of the rows of any frame."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from capstan.audit.result import CellTime
from capstan.audit.table_shape import Shape, check_time
from capstan.core.protocol.events import STAMP
from capstan.core.sql_names import quoted
from capstan.core.times import TimeType
from capstan.core.times.region import Region
from capstan.storage.keyed_lookup import with_values
from capstan.storage.tape.tape import Cut, Tape, read_records
from capstan.storage.tape.time_columns import number

_PLACE = re.compile(r"worker|t[0-9]+")

_POSITION = ("_batch", "_pos", "_worker")


@dataclass(frozen=True, slots=True)
class View:
    """A frame of rows with its worker, time and data columns."""

    frame: DataFrame
    worker: Column  # the number as INT, or NULL
    times: tuple[Column, ...]  # each coordinate as BIGINT, or NULL
    data: Column | None = None  # a struct; None if they are columns of the frame

    @property
    def place(self) -> list[Column]:
        """The columns `worker, t0, t1, ...`."""
        named = [time.alias(f"t{i}") for i, time in enumerate(self.times)]
        return [self.worker.alias("worker"), *named]


def tape_view(frame: DataFrame, time_type: TimeType, like: Shape | None = None) -> View:
    """The rows of `records` or `events`, without worker and coordinates that shape `like` lacks."""
    times = [number(F.col(f"time.{c.name}"), c.kind) for c in time_type.coordinates]
    worker = F.col("worker")
    if like is not None:
        columns = like.times_for(time_type)
        times = [_no_time() if c is None else t for t, c in zip(times, columns, strict=True)]
        worker = _no_worker() if like.worker is None else worker
    return View(frame, worker, tuple(times), F.col("data"))


def table_view(
    frame: DataFrame, shape: Shape, time_type: TimeType, workers: Mapping[int, str] | None = None
) -> View:
    """The rows of a table of this shape; labels by number are needed if its worker is a label."""
    times: list[Column] = []
    for column, coordinate in zip(shape.times_for(time_type), time_type.coordinates, strict=True):
        if column is None:
            times.append(_no_time())
            continue
        check_time(column, frame.select(F.expr(column)).schema[0].dataType, coordinate.kind)
        times.append(number(F.expr(column), coordinate.kind))
    return View(frame, _worker(frame, shape, workers or {}), tuple(times))


def _worker(frame: DataFrame, shape: Shape, workers: Mapping[int, str]) -> Column:
    if shape.worker is None:
        return _no_worker()
    column = F.col(quoted(shape.worker))
    if not isinstance(frame.schema[shape.worker].dataType, StringType):
        return column.cast("int")
    cases = [F.when(column == label, F.lit(worker)) for worker, label in workers.items()]
    return F.coalesce(*cases, _no_worker())


def _no_worker() -> Column:
    return F.lit(None).cast("int")


def _no_time() -> Column:
    return F.lit(None).cast("bigint")


def place_of(cells: DataFrame) -> list[str]:
    """The names of the columns that identify a cell: `worker, t0, t1, ...`."""
    return [name for name in cells.columns if _PLACE.fullmatch(name)]


def time_of(row: Row) -> CellTime:
    """The time of a collected row with the columns `t0, t1, ...` in this order."""
    return tuple(row[name] for name in row.__fields__ if name[0] == "t" and _PLACE.fullmatch(name))


def played_records(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Mapping[int, str],
    region: Region,
    *,
    place: bool = False,
    stamp: bool = False,
) -> DataFrame:
    """The records of selected workers and times at a cut, as transforms and copies see them.

    One row per record, in no order: `_worker INT, _time STRUCT<coordinates>, _label STRING`, with
    `place` the position on tape `_batch BIGINT, _pos BIGINT`, with `stamp` the elements of the
    stamp `_stamp ARRAY<STRUCT<coordinates>>`, then the stream's columns. One of these that has the
    name `_stamp` is there in its place.
    """
    frame = read_records(spark, tape, cut, workers=workers, region=region)
    head = [F.col("worker").alias("_worker"), F.col("time").alias("_time")]
    rest = [F.col("batch").alias("_batch"), F.col("pos").alias("_pos")] if place else []
    if stamp and STAMP not in (name.lower() for name in frame.select("data.*").columns):
        only = F.array("time")
        elements = F.coalesce(F.col("stamp"), only) if tape.stamped else only
        rest.append(elements.alias(STAMP))
    labelled = with_values(frame, "_label", F.col("worker"), workers)
    return labelled.select(*head, "_label", *rest, "data.*")


def has_stamps(records: StructType) -> bool:
    """Whether the records have their stamps as `_stamp`, and no column of the stream's own."""
    times = f"array<{records['_time'].dataType.simpleString()}>"
    return STAMP in records.names and records[STAMP].dataType.simpleString() == times


def in_another_order(records: DataFrame) -> DataFrame:
    """The records in other partitions, in each of them from the last position to the first."""
    # Output that depends on the order of its input, or on how it is divided, then differs. The
    # partition is a hash of the position, so that a second time the order is the same.
    placed = records.repartition(*_POSITION)
    return placed.sortWithinPartitions(*_POSITION, ascending=False)
