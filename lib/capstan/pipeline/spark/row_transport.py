"""Frames between stages: the routing and order of rows, and the notes that travel with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, MapType, StructType

from capstan.audit.row_view import has_stamps
from capstan.core.protocol.events import STAMP
from capstan.core.sql_names import quoted
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark.state_rows import COLUMNS
from capstan.pipeline.spark.wire_format import AT, BLOB, HEAD, KIND, NOTE, NoteKind, part
from capstan.spark.versions_api import repartition_by_number
from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.time_columns import integers

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PLACE = ("_worker", "_label", "_batch", "_pos", STAMP)
"""Columns of a record's place on tape that a source may have, besides `_time`."""

_TASK, _PLACE = "seat", "place"
_ORDER = ("_worker", "_batch", "_pos")
_ORDERED = tuple(f"o{name}" for name in _ORDER)
_WORKER_BITS = 32
"""More than the bits of a worker's number, before which a stream's number is put."""


class Notes(StrEnum):
    """Notes of a stage that are passed on to a stage that reads it."""

    ALL = "all"
    MARKS = "marks"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Reader:
    """An input of a stage."""

    number: int  # of its part, among those that the stage's tasks read
    column: str
    # Fields that partition the rows: empty when all go to one worker, None when they stay.
    key: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Rows:
    """A frame that a stage reads once for all of its inputs from there.

    It has the column `time BIGINT`, structs of rows, and `kind` and `note` when notes pass.
    Optional `o_worker`, `o_batch` and `o_pos` order rows of the same time.
    """

    frame: DataFrame
    readers: tuple[Reader, ...]
    notes: Notes = Notes.NONE


def spark_type(pipeline: Pipeline, node: str, schema: pa.Schema) -> StructType:
    """Return the columns of a node in Spark."""
    for field in schema:
        try:
            from_arrow_schema(pa.schema([field]))
        except (PySparkTypeError, TypeError) as error:
            raise pipeline.refusal(
                f"emits {field.name} at {node} as {field.type}, which Spark does not have"
            ) from error
    return from_arrow_schema(schema)


def from_records(
    pipeline: Pipeline, source: str, schema: pa.Schema, records: DataFrame, reach: Reach
) -> DataFrame:
    """Convert records of a stream to rows of a source, with `time`, `p0` and their order."""
    time = integers(F.col(TIME), reach.time_type).getItem(reach.coordinate)
    declared = spark_type(pipeline, source, schema)
    fields: list[Column] = []
    for field in declared.fields:
        if field.name == TIME:
            fields.append(time.alias(TIME))
            continue
        if field.name not in records.columns:
            known = ", ".join(name for name in records.columns if name not in (TIME, *PLACE))
            raise pipeline.refusal(f"reads {field.name}, but the stream has {known}")
        value, actual = F.col(quoted(field.name)), records.schema[field.name].dataType
        if field.name == STAMP and has_stamps(records.schema):
            value, actual = _elements(value, reach), ArrayType(LongType())
        if without_nullability(actual) != without_nullability(field.dataType):
            raise pipeline.refusal(
                f"reads {field.name} as {field.dataType.simpleString()}, but the stream has it "
                f"as {actual.simpleString()}"
            )
        fields.append(value.alias(field.name))
    order = [
        F.col(name).cast("bigint").alias(f"o{name}") for name in _ORDER if name in records.columns
    ]
    return records.select(time.alias(AT), *order, F.struct(*fields).alias(part(0)))


def _elements(stamp: Column, reach: Reach) -> Column:
    """The elements of a stamp as `_time` is: the pipeline's coordinate, as an integer."""
    at = reach.coordinate
    return F.transform(stamp, lambda time: integers(time, reach.time_type).getItem(at))


def from_all(
    pipeline: Pipeline, source: str, schema: pa.Schema, streams: Sequence[DataFrame], reach: Reach
) -> DataFrame:
    """Convert records of the streams of a source, as `from_records`, to rows of one.

    Of rows at the same time, those of an earlier stream come first.
    """
    frames = [from_records(pipeline, source, schema, records, reach) for records in streams]
    first = _ORDERED[0]
    placed = [
        frame.withColumn(first, F.col(first) + F.lit(number << _WORKER_BITS))
        if number and first in frame.columns
        else frame
        for number, frame in enumerate(frames)
    ]
    return reduce(lambda one, other: one.unionByName(other), placed)


def incoming(
    inputs: Sequence[Rows], schema: pa.Schema, peers: int, state: DataFrame | None = None
) -> DataFrame:
    """Build the frame that the tasks of a stage read, and continue from rows of `state`.

    With a key, rows are partitioned among `peers` tasks and sorted by time, worker, batch and
    position, then by their values. So their order does not depend on their way through Spark.
    Notes come before all rows; notes about watermarks go to every task.
    """
    types = from_arrow_schema(schema)
    keyed = any(reader.key is not None for rows in inputs for reader in rows.readers)
    parts = [_routed(rows, types, peers if keyed else 1) for rows in inputs]
    if state is not None:
        parts.append(_state_notes(state, types))
    if keyed:
        parts.append(_worker_notes(inputs[0].frame.sparkSession, types, peers))
    frame = reduce(lambda one, other: one.unionByName(other), parts)
    if keyed:
        order = [*_ORDERED, *(f.name for f in types.fields[len(HEAD) :] if _sortable(f.dataType))]
        frame = repartition_by_number(frame, peers, _TASK).sortWithinPartitions(AT, *order)
    return frame.select(*types.names)


def notes_of(frame: DataFrame) -> DataFrame:
    """Return the notes among the output rows of a stage, except those about state."""
    return frame.where(_is_forwarded()).select(KIND, NOTE)


def state_of(frame: DataFrame) -> DataFrame:
    """Return the rows of state (`state_rows.COLUMNS`) among the output rows of a stage."""
    notes = frame.where(F.col(KIND) == NoteKind.STATE.value)
    fields = from_arrow_schema(COLUMNS).fields[:-1]
    place = F.from_json(NOTE, StructType(fields)).alias(_PLACE)
    return notes.select(place, F.col(BLOB).alias("data")).select(f"{_PLACE}.*", "data")


def _is_forwarded() -> Column:
    """Select the notes that may go on to another stage; state stays where it is."""
    return F.col(KIND).isNotNull() & (F.col(KIND) != NoteKind.STATE.value)


def _state_notes(state: DataFrame, types: StructType) -> DataFrame:
    """Convert rows of state to notes for their workers."""
    place = F.to_json(F.struct(*(name for name in state.columns if name != "data")))
    kind = F.lit(NoteKind.STATE.value)
    values = {_TASK: F.col("worker"), KIND: kind, NOTE: place, BLOB: F.col("data")}
    return _columns(state, types, values)


def _worker_notes(spark: SparkSession, types: StructType, peers: int) -> DataFrame:
    """Build a note for each worker with its number: in a union, task numbers differ."""
    task = F.col("id").cast("int")
    place = F.to_json(F.struct(task.alias("worker")))
    values = {_TASK: task, KIND: F.lit(NoteKind.WORKER.value), NOTE: place}
    return _columns(spark.range(peers), types, values)


def _columns(frame: DataFrame, types: StructType, values: Mapping[str, Column]) -> DataFrame:
    """Return the columns of `incoming`, null where there is no value."""
    kinds: dict[str, DataType] = {_TASK: IntegerType()}
    kinds |= {field.name: field.dataType for field in types.fields}
    kinds |= dict.fromkeys(_ORDERED, LongType())
    return frame.select(
        *(values.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items())
    )


def _routed(rows: Rows, types: StructType, peers: int) -> DataFrame:
    """Return the rows of a frame with their task, once for every input that reads them."""
    frame, readers = rows.frame, rows.readers
    if rows.notes is Notes.NONE and len(readers) == 1:
        (reader,) = readers
        frame = frame.where(F.col(reader.column).isNotNull())
        task, slot = _task_of(frame, reader, peers), F.lit(reader.number)
    else:
        frame = frame.select("*", F.explode(_destinations(rows, peers)).alias(_PLACE))
        task, slot = F.col(f"{_PLACE}.{_TASK}"), F.col(f"{_PLACE}.slot")
    names = [AT, *(name for name in _ORDERED if name in rows.frame.columns)]
    names += [] if rows.notes is Notes.NONE else [KIND, NOTE]
    values = {_TASK: task} | {name: F.col(name) for name in names}
    shared = len({reader.column for reader in readers}) < len(readers)
    for reader in readers:
        value = F.col(reader.column)
        values[part(reader.number)] = F.when(slot == reader.number, value) if shared else value
    return _columns(frame, types, values)


def _destinations(rows: Rows, peers: int) -> Column:
    """Return for each row an array of its destinations: the task, and the input that reads it."""

    def destination(task: Column, slot: int) -> Column:
        return F.struct(task.alias(_TASK), F.lit(slot).alias("slot"))

    cases: list[tuple[Column, Column]] = []
    if rows.notes is not Notes.NONE:
        everyone = F.array(*(destination(F.lit(task), -1) for task in range(peers)))
        cases.append((F.col(KIND) == NoteKind.MARK.value, everyone))
    if rows.notes is Notes.ALL:
        cases.append((_is_forwarded(), F.array(destination(F.lit(0), -1))))
    for column in dict.fromkeys(reader.column for reader in rows.readers):
        destinations = [
            destination(_task_of(rows.frame, reader, peers), reader.number)
            for reader in rows.readers
            if reader.column == column
        ]
        cases.append((F.col(column).isNotNull(), F.array(*destinations)))
    (condition, destinations_of), *others = cases
    result = F.when(condition, destinations_of)
    for condition, destinations_of in others:
        result = result.when(condition, destinations_of)
    # Rows that no input reads have no destinations, and so are left out.
    return result


def _task_of(frame: DataFrame, reader: Reader, peers: int) -> Column:
    if not reader.key:
        return F.lit(0)
    kind = frame.schema[reader.column].dataType
    assert isinstance(kind, StructType)
    first, _ = row_hashes([kind[name] for name in reader.key], F.col(reader.column))
    return F.pmod(first, F.lit(peers)).cast("int")


def _sortable(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_sortable(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _sortable(kind.elementType)
    return not isinstance(kind, MapType)


def without_nullability(kind: DataType) -> object:
    """Return a type without its nullability."""
    if isinstance(kind, StructType):
        return "struct", tuple(
            (field.name, without_nullability(field.dataType)) for field in kind.fields
        )
    if isinstance(kind, ArrayType):
        return "array", without_nullability(kind.elementType)
    if isinstance(kind, MapType):
        return "map", without_nullability(kind.keyType), without_nullability(kind.valueType)
    return kind.simpleString()
