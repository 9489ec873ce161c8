"""Names of columns that a tape can have, and labels of workers by the values of a column."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from capstan.core.config import Stream
from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError

_BYTES = "x'"
"""How a label of bytes begins that are no text."""

_LABELLED = (
    T.StringType, T.BinaryType, T.NumericType, T.BooleanType, T.DateType, T.TimestampType,
    T.TimestampNTZType, T.DayTimeIntervalType, T.YearMonthIntervalType,
)  # fmt: skip
"""Types of which Spark writes different values as different texts; bytes are seen to here."""


def label_of(stream: Stream, field: T.StructField) -> Column:
    """The label of a value, as STRING; null for null, which names no worker."""
    # Bytes that are no UTF-8 could not be read back, and all of them would be one label: they are
    # written in hexadecimal, and so is text that looks like that.
    kind = field.dataType
    if not isinstance(kind, _LABELLED):
        raise InvalidRequestError(
            "CAP-WORKERS",
            f"stream {stream.name}: workers are taken from column {field.name}, which is "
            f"{kind.simpleString()}: different values of it can be the same text",
            "make a column of text or numbers of it with source.select, and take that",
            stream=stream.name,
        )
    column = F.col(quoted(field.name))
    label = column.cast("string")
    if not isinstance(kind, T.StringType | T.BinaryType):
        return label
    plain = F.is_valid_utf8(label) & ~F.startswith(label, F.lit(_BYTES))
    written = F.concat(F.lit(_BYTES), F.lower(F.hex(column.cast("binary"))), F.lit("'"))
    return F.when(plain, label).when(label.isNotNull(), written)


# Characters that Delta refuses in names, also of nested fields.
_REFUSED = frozenset(" ,;{}()\n\t=")
_CHARACTERS = "a blank, a tab, a line break, or one of ,;{}()="
RESERVED = ("_worker", "_time", "_label", "_batch", "_pos", "_at")
"""Names that replays and captures use for their own columns."""


def require_names(stream: Stream, payload: StructType) -> None:
    """Check that a tape can have columns with these names, ignoring case as Spark does."""
    reserved = [
        (name, "Capstan uses that name itself")
        for name in payload.names
        if name.lower() in RESERVED
    ]
    problems = [*reserved, *problems_of(payload)]
    if problems:
        column, problem = problems[0]
        raise InvalidRequestError(
            "CAP-COLUMN",
            f"stream {stream.name}: the source has a column {column!r}: {problem}",
            "rename it in the source; or capture a table or files with another name for it",
            stream=stream.name,
            column=column,
        )


def problems_of(columns: StructType) -> list[tuple[str, str]]:
    """The names that a Delta table cannot have, each with the reason."""
    problems: list[tuple[str, str]] = []
    first: dict[str, int] = {}
    for position, name in enumerate(columns.names):
        other = first.setdefault(name.lower(), position)
        if other != position:
            problems.append((name, f"Spark treats it as the same name as {columns.names[other]}"))
    problems += [
        (".".join(path), f"a Delta table allows no name that is empty or has {_CHARACTERS}")
        for path in _paths(columns)
        if not path[-1] or set(path[-1]) & _REFUSED
    ]
    return problems


def _paths(kind: DataType) -> Iterator[tuple[str, ...]]:
    """The paths of all fields, including nested ones."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield (field.name,)
            yield from ((field.name, *path) for path in _paths(field.dataType))
    elif isinstance(kind, ArrayType):
        yield from _paths(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _paths(kind.keyType)
        yield from _paths(kind.valueType)
