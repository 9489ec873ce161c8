"""The frames between stages: what comes in, to which task and in which order, and what goes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StructType,
)

from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark.source_schema import PLACE
from capstan.pipeline.spark.state_rows import COLUMNS
from capstan.pipeline.spark.wire_format import AT, BLOB, HEAD, KIND, NOTE, NoteKind, part
from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.region_sql import quoted
from capstan.storage.tape.time_columns import integers

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SEAT, _PLACE = "seat", "place"
_ORDER = ("_worker", "_batch", "_pos")
_ORDERED = tuple(f"o{name}" for name in _ORDER)


class Notes(StrEnum):
    """Which notes of a stage are passed on to a stage that reads it."""

    ALL = "all"
    MARKS = "marks"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Reader:
    """An input of a stage.

    Attributes:
        number: Its part, among those that the stage's tasks read.
        column: The column of the frame that has its rows, each a struct.
        key: The struct's fields by which rows come to their worker; none means that all come to
            one, None that they stay where they are.
    """

    number: int
    column: str
    key: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Rows:
    """A frame that a stage reads, once for all of its inputs that come from there.

    Attributes:
        frame: Has the column `time BIGINT`, structs of rows, and `kind` and `note` where notes are
            passed on; perhaps `o_worker`, `o_batch` and `o_pos`, which tell rows of one time apart.
        readers: The inputs.
        notes: Which notes are passed on.
    """

    frame: DataFrame
    readers: tuple[Reader, ...]
    notes: Notes = Notes.NONE


def spark_type(pipeline: Pipeline, node: str, schema: pa.Schema) -> StructType:
    """The columns of a node in Spark.

    Raises:
        InvalidRequestError: `CAP-PIPELINE` for a type that Spark does not have, naming node and
            column.
    """
    for field in schema:
        try:
            from_arrow_schema(pa.schema([field]))
        except (PySparkTypeError, TypeError) as error:
            raise pipeline.refusal(
                f"puts out {field.name} at {node} as {field.type}, which Spark does not have"
            ) from error
    return from_arrow_schema(schema)


def from_records(
    pipeline: Pipeline, source: str, schema: pa.Schema, records: DataFrame, reach: Reach
) -> DataFrame:
    """Records of a stream as the rows of a source: `time`, `p0` and what orders them.

    Raises:
        InvalidRequestError: `CAP-PIPELINE` when a column that the source declares is not there, or
            has another type.
    """
    time = integers(F.col(TIME), reach.time_type).getItem(reach.coordinate)
    wanted = spark_type(pipeline, source, schema)
    fields: list[Column] = []
    for field in wanted.fields:
        if field.name == TIME:
            fields.append(time.alias(TIME))
            continue
        if field.name not in records.columns:
            known = ", ".join(name for name in records.columns if name not in (TIME, *PLACE))
            raise pipeline.refusal(f"reads {field.name}, and the stream has {known}")
        found = records.schema[field.name].dataType
        if _bare(found) != _bare(field.dataType):
            raise pipeline.refusal(
                f"reads {field.name} as {field.dataType.simpleString()}, and the stream has it "
                f"as {found.simpleString()}"
            )
        fields.append(F.col(quoted(field.name)))
    order = [
        F.col(name).cast("bigint").alias(f"o{name}") for name in _ORDER if name in records.columns
    ]
    return records.select(time.alias(AT), *order, F.struct(*fields).alias(part(0)))


def incoming(
    inputs: Sequence[Rows], schema: pa.Schema, peers: int, state: DataFrame | None = None
) -> DataFrame:
    """What comes to the tasks of a stage.

    Rows that have to meet come to one of `peers` tasks, in order of time, worker, batch and place
    in it, and where these do not tell, of their own values: the same order for any way that they
    came by. Notes come before all rows, those about watermarks to every task.

    Args:
        inputs: What is read.
        schema: What a task reads.
        peers: How many tasks there are, where rows have to meet.
        state: Rows of state (`keeping.COLUMNS`) that the tasks go on from, each for its worker.
    """
    types = from_arrow_schema(schema)
    keyed = any(reader.key is not None for each in inputs for reader in each.readers)
    parts = [_sent(each, types, peers if keyed else 1) for each in inputs]
    if state is not None:
        parts.append(_known(state, types))
    if keyed:
        parts.append(_named(inputs[0].frame.sparkSession, types, peers))
    frame = reduce(lambda one, other: one.unionByName(other), parts)
    if keyed:
        order = [*_ORDERED, *(f.name for f in types.fields[len(HEAD) :] if _sortable(f.dataType))]
        frame = frame.repartitionById(peers, F.col(_SEAT)).sortWithinPartitions(AT, *order)
    return frame.select(*types.names)


def notes_of(frame: DataFrame) -> DataFrame:
    """The notes among the rows that came out of a stage, but for those about state."""
    return frame.where(_passed_on()).select(KIND, NOTE)


def state_of(frame: DataFrame) -> DataFrame:
    """The rows of state (`keeping.COLUMNS`) among the rows that came out of a stage."""
    kept = frame.where(F.col(KIND) == NoteKind.STATE.value)
    fields = from_arrow_schema(COLUMNS).fields[:-1]
    place = F.from_json(NOTE, StructType(fields)).alias(_PLACE)
    return kept.select(place, F.col(BLOB).alias("data")).select(f"{_PLACE}.*", "data")


def _passed_on() -> Column:
    """Of notes those that may go on to another stage: state stays where it is."""
    return F.col(KIND).isNotNull() & (F.col(KIND) != NoteKind.STATE.value)


def _known(state: DataFrame, types: StructType) -> DataFrame:
    """Rows of state as notes to their workers."""
    place = F.to_json(F.struct(*(name for name in state.columns if name != "data")))
    return _notes(state, types, F.col("worker"), NoteKind.STATE, place, F.col("data"))


def _named(spark: SparkSession, types: StructType, peers: int) -> DataFrame:
    """A note to each worker that says which one it is: a task of a union has another number."""
    seat = F.col("id").cast("int")
    place = F.to_json(F.struct(seat.alias("worker")))
    return _notes(spark.range(peers), types, seat, NoteKind.WORKER, place)


def _notes(
    frame: DataFrame,
    types: StructType,
    seat: Column,
    kind: NoteKind,
    note: Column,
    blob: Column | None = None,
) -> DataFrame:
    """Notes, as `incoming` sends them."""
    said = {_SEAT: seat, KIND: F.lit(kind.value), NOTE: note}
    if blob is not None:
        said[BLOB] = blob
    kinds: dict[str, DataType] = {_SEAT: IntegerType()}
    kinds |= {field.name: field.dataType for field in types.fields}
    kinds |= dict.fromkeys(_ORDERED, LongType())
    chosen = [said.get(name, F.lit(None)).cast(own).alias(name) for name, own in kinds.items()]
    return frame.select(*chosen)


def _sent(rows: Rows, types: StructType, peers: int) -> DataFrame:
    """The rows of a frame, each once for every input that reads it, and with its seat."""
    frame, has = rows.frame, rows.frame.columns
    columns = {reader.column for reader in rows.readers}
    if rows.notes is Notes.NONE and len(rows.readers) == 1:
        (reader,) = rows.readers
        frame = frame.where(F.col(reader.column).isNotNull())
        seat, slot = _seat(frame, reader, peers), F.lit(reader.number)
    else:
        frame = frame.select("*", F.explode(_places(rows, peers)).alias(_PLACE))
        seat, slot = F.col(f"{_PLACE}.{_SEAT}"), F.col(f"{_PLACE}.slot")
    read = {part(reader.number): reader for reader in rows.readers}
    chosen = [seat.alias(_SEAT), F.col(AT)]
    for name in (KIND, NOTE):
        value = F.lit(None) if rows.notes is Notes.NONE else F.col(name)
        chosen.append(value.cast("string").alias(name))
    chosen.append(F.lit(None).cast("binary").alias(BLOB))
    for field in types.fields[len(HEAD) :]:
        value = F.lit(None)
        if field.name in read:
            value = F.col(read[field.name].column)
            if len(columns) < len(rows.readers):
                value = F.when(slot == read[field.name].number, value)
        chosen.append(value.cast(field.dataType).alias(field.name))
    for name in _ORDERED:
        value = F.col(name) if name in has else F.lit(None)
        chosen.append(value.cast("bigint").alias(name))
    return frame.select(*chosen)


def _places(rows: Rows, peers: int) -> Column:
    """For each row an array of where it goes: the seat, and which input reads it there."""

    def place(seat: Column, slot: int) -> Column:
        return F.struct(seat.alias(_SEAT), F.lit(slot).alias("slot"))

    cases: list[tuple[Column, Column]] = []
    if rows.notes is not Notes.NONE:
        everyone = F.array(*(place(F.lit(seat), -1) for seat in range(peers)))
        cases.append((F.col(KIND) == NoteKind.MARK.value, everyone))
    if rows.notes is Notes.ALL:
        cases.append((_passed_on(), F.array(place(F.lit(0), -1))))
    for column in dict.fromkeys(reader.column for reader in rows.readers):
        places = [
            place(_seat(rows.frame, reader, peers), reader.number)
            for reader in rows.readers
            if reader.column == column
        ]
        cases.append((F.col(column).isNotNull(), F.array(*places)))
    (condition, places_of), *others = cases
    found = F.when(condition, places_of)
    for condition, places_of in others:
        found = found.when(condition, places_of)
    # What nobody reads here has no place, and so is left out.
    return found


def _seat(frame: DataFrame, reader: Reader, peers: int) -> Column:
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


def _bare(kind: DataType) -> object:
    """A type without saying what may be null."""
    if isinstance(kind, StructType):
        return "struct", tuple((field.name, _bare(field.dataType)) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return "array", _bare(kind.elementType)
    if isinstance(kind, MapType):
        return "map", _bare(kind.keyType), _bare(kind.valueType)
    return kind.simpleString()
