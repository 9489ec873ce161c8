"""How a table holds a stream's rows: where its worker, its time and its data columns are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from capstan.core.times import Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.storage.tape.region_sql import quoted

WORKER = "_worker"
TIME = "_time"
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
# Types of a column that hold a coordinate of this kind without losing anything of it.
_HOLDS: Mapping[Kind, tuple[type[DataType], ...]] = {
    Kind.BIGINT: _INTEGERS,
    Kind.DATE: (DateType,),
    Kind.TIMESTAMP: (TimestampType, TimestampNTZType, DateType),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Which columns of a table stand for what.

    Attributes:
        worker: The column of the captured worker: its number, or as STRING its label. None when
            the table does not keep it.
        times: Per coordinate of the stream's time the SQL expression of its column, made of
            quoted names only; None for a coordinate that is not kept. Empty when no time is kept.
        columns: The data columns that take part, by name.
    """

    worker: str | None
    times: tuple[str | None, ...]
    columns: tuple[str, ...]

    def times_for(self, time_type: TimeType) -> tuple[str | None, ...]:
        """One expression or None per coordinate of `time_type`.

        Raises:
            InvalidRequestError: `CAP-AUDIT-COLUMNS` for another number of expressions.
        """
        times = self.times or (None,) * len(time_type.coordinates)
        if len(times) != len(time_type.coordinates):
            raise columns_error(
                f"{len(times)} time columns for a time of {', '.join(time_type.names)}"
            )
        return times


def shape_of(
    schema: StructType,
    time_type: TimeType,
    *,
    worker: str | None = WORKER,
    time: str | None = TIME,
    columns: Sequence[str] | None = None,
    payload: StructType | None = None,
) -> Shape:
    """The shape of a table with this schema.

    Args:
        schema: The table's columns.
        time_type: The coordinates of the stream's time.
        worker: The worker's column, None if it is not kept.
        time: The time's column: a struct with the coordinates' names, of which some may be
            missing; or, under one coordinate, a plain column. None if it is not kept.
        columns: The data columns that take part. By default those of `payload` that the table
            has, or without a payload all but the columns of worker and time.
        payload: The stream's own columns.

    Raises:
        InvalidRequestError: `CAP-AUDIT-COLUMNS` when a named column is not there, or a time column
            cannot hold the stream's times.
    """
    for name in (worker, time, *(columns or ())):
        if name is not None and name not in schema.names:
            raise columns_error(f"the table has no column {name}")
    if columns is None:
        names = schema.names if payload is None else payload.names
        taken = {worker, time} if payload is None else set()
        columns = [name for name in names if name in schema.names and name not in taken]
    times = () if time is None else _time_columns(schema[time], time_type)
    return Shape(worker, times, tuple(columns))


def _time_columns(field: StructField, time_type: TimeType) -> tuple[str | None, ...]:
    kind = field.dataType
    if not isinstance(kind, StructType):
        if len(time_type.coordinates) > 1:
            raise columns_error(
                f"column {field.name} is one value, a time has {', '.join(time_type.names)}"
            )
        check_time(field.name, kind, time_type.coordinates[0].kind)
        return (quoted(field.name),)
    if not any(name in kind.names for name in time_type.names):
        raise columns_error(f"column {field.name} has none of {', '.join(time_type.names)}")
    for coordinate in time_type.coordinates:
        if coordinate.name in kind.names:
            place = f"{field.name}.{coordinate.name}"
            check_time(place, kind[coordinate.name].dataType, coordinate.kind)
    return tuple(
        f"{quoted(field.name)}.{quoted(name)}" if name in kind.names else None
        for name in time_type.names
    )


def check_time(place: str, kind: DataType, wanted: Kind) -> None:
    """Check that a column holds a coordinate's values without loss.

    Raises:
        InvalidRequestError: `CAP-AUDIT-COLUMNS`, naming the column `place`.
    """
    if not isinstance(kind, _HOLDS[wanted]):
        raise columns_error(
            f"time column {place} is {kind.simpleString()}, the stream's is {wanted.value}"
        )


def common_fields(
    names: Sequence[str], promised: StructType, stored: StructType
) -> list[StructField]:
    """The fields of `promised` that `names` picks, each of which `stored` has as well.

    Raises:
        InvalidRequestError: `CAP-AUDIT-COLUMNS` when no column is named, one is missing on a side,
            or has another type there; integers and floats may differ in width, decimals in
            precision.
    """
    if not names:
        raise columns_error("the table has no column in common with what it should hold")
    for name in names:
        if name not in stored.names:
            raise columns_error(f"the table has no column {name}")
        if name not in promised.names:
            raise columns_error(f"column {name} of the table is not one that it should hold")
        wanted, found = promised[name].dataType, stored[name].dataType
        if _canonical(wanted) != _canonical(found):
            raise columns_error(
                f"column {name} of the table is {found.simpleString()} "
                f"and should be {wanted.simpleString()}"
            )
    chosen = set(names)
    return [field for field in promised.fields if field.name in chosen]


def stored_fields(fields: Iterable[StructField], stored: StructType) -> list[StructField]:
    """The same fields in the same order, with the types that they have in `stored`."""
    return [stored[field.name] for field in fields]


def columns_error(what: str) -> InvalidRequestError:
    """The error for a table whose columns do not fit what is asked of it."""
    return InvalidRequestError(
        "CAP-AUDIT-COLUMNS",
        what,
        "name the table's columns with --worker-column, --time-column and --columns",
    )


def _canonical(kind: DataType) -> object:
    """Equal for types whose equal values have equal hashes."""
    if isinstance(kind, _INTEGERS):
        return "integer"
    if isinstance(kind, FloatType | DoubleType):
        return "float"
    if isinstance(kind, DecimalType):
        return "decimal", kind.scale
    if isinstance(kind, StringType):
        return "string"
    if isinstance(kind, ArrayType):
        return "array", _canonical(kind.elementType)
    if isinstance(kind, MapType):
        return "map", _canonical(kind.keyType), _canonical(kind.valueType)
    if isinstance(kind, StructType):
        return "struct", tuple((f.name, _canonical(f.dataType)) for f in kind.fields)
    return kind.simpleString()
