"""The shape of a table with a stream's rows: its worker, time and data columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import types as T

from capstan.core.sql_names import quoted
from capstan.core.times import Kind, TimeType
from capstan.errors import InvalidRequestError

WORKER = "_worker"
TIME = "_time"
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
# Column types that hold a coordinate of this kind without loss.
_HOLDS: Mapping[Kind, tuple[type[T.DataType], ...]] = {
    Kind.BIGINT: _INTEGERS,
    Kind.DATE: (T.DateType,),
    Kind.TIMESTAMP: (T.TimestampType, T.TimestampNTZType, T.DateType),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The roles of a table's columns; None or empty for what it lacks."""

    worker: str | None  # its number, or its label if STRING
    times: tuple[str | None, ...]  # SQL per coordinate, of quoted names only
    columns: tuple[str, ...]

    def times_for(self, time_type: TimeType) -> tuple[str | None, ...]:
        """An expression or None for each coordinate of `time_type`."""
        times = self.times or (None,) * len(time_type.coordinates)
        if len(times) != len(time_type.coordinates):
            raise columns_error(
                f"{len(times)} time columns for a time of {', '.join(time_type.names)}"
            )
        return times


def shape_of(
    schema: T.StructType,
    time_type: TimeType,
    *,
    worker: str | None = WORKER,
    time: str | None = TIME,
    columns: Sequence[str] | None = None,
    payload: T.StructType | None = None,
) -> Shape:
    """The shape of a table with this schema.

    The time is a struct with the coordinates' names, some of which may be missing, or a plain
    column for a single coordinate. By default the data columns are those of `payload` that the
    table has, or without a payload all except worker and time.
    """
    for name in (worker, time, *(columns or ())):
        if name is not None and name not in schema.names:
            raise columns_error(f"the table has no column {name}")
    if columns is None:
        names = schema.names if payload is None else payload.names
        excluded = {worker, time} if payload is None else set()
        columns = [name for name in names if name in schema.names and name not in excluded]
    times = () if time is None else _time_columns(schema[time], time_type)
    return Shape(worker, times, tuple(columns))


def _time_columns(field: T.StructField, time_type: TimeType) -> tuple[str | None, ...]:
    kind = field.dataType
    if not isinstance(kind, T.StructType):
        if len(time_type.coordinates) > 1:
            raise columns_error(
                f"column {field.name} is a single value, a time has {', '.join(time_type.names)}"
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


def check_time(place: str, kind: T.DataType, wanted: Kind) -> None:
    """Check that a column holds a coordinate's values without loss."""
    if not isinstance(kind, _HOLDS[wanted]):
        raise columns_error(
            f"time column {place} is {kind.simpleString()}, but the stream's is {wanted.value}"
        )


def common_fields(
    names: Sequence[str], promised: T.StructType, stored: T.StructType
) -> list[T.StructField]:
    """The fields of `promised` named by `names`, which `stored` must have as well."""
    if not names:
        raise columns_error("the table has none of the expected columns")
    for name in names:
        if name not in stored.names:
            raise columns_error(f"the table has no column {name}")
        if name not in promised.names:
            raise columns_error(f"column {name} of the table is not an expected column")
        expected, actual = promised[name].dataType, stored[name].dataType
        if _canonical(expected) != _canonical(actual):
            raise columns_error(
                f"column {name} of the table is {actual.simpleString()} "
                f"and should be {expected.simpleString()}"
            )
    selected = set(names)
    return [field for field in promised.fields if field.name in selected]


def stored_fields(fields: Iterable[T.StructField], stored: T.StructType) -> list[T.StructField]:
    """The fields in the same order, with their types in `stored`."""
    return [stored[field.name] for field in fields]


def columns_error(problem: str) -> InvalidRequestError:
    """The error for a table whose columns do not fit the audit."""
    return InvalidRequestError(
        "CAP-AUDIT-COLUMNS",
        problem,
        "name the table's columns with --worker-column, --time-column and --columns",
    )


def _canonical(kind: T.DataType) -> object:
    """A key that is the same for types whose equal values have equal hashes."""
    if isinstance(kind, _INTEGERS):
        return "integer"
    if isinstance(kind, T.FloatType | T.DoubleType):
        return "float"
    if isinstance(kind, T.DecimalType):
        return "decimal", kind.scale
    if isinstance(kind, T.StringType):
        return "string"
    if isinstance(kind, T.ArrayType):
        return "array", _canonical(kind.elementType)
    if isinstance(kind, T.MapType):
        return "map", _canonical(kind.keyType), _canonical(kind.valueType)
    if isinstance(kind, T.StructType):
        return "struct", tuple((f.name, _canonical(f.dataType)) for f in kind.fields)
    return kind.simpleString()
