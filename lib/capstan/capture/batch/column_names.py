"""Checks of column names: which names of a source a tape can store."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from capstan.core.config import Stream
from capstan.errors import InvalidRequestError

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
