"""Names of a source's columns: which a tape can have."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from capstan.core.config import Stream
from capstan.errors import InvalidRequestError

# What Delta keeps out of names, of fields within fields too.
_REFUSED = frozenset(" ,;{}()\n\t=")
_CHARACTERS = "a blank, a tab, a line break, or one of ,;{}()="
RESERVED = ("_worker", "_time", "_label", "_batch", "_pos", "_at")
"""Names that replays and captures give to columns of their own."""


def require_names(stream: Stream, payload: StructType) -> None:
    """Check that a tape can have columns of these names; in any case, as names differ for Spark.

    Raises:
        InvalidRequestError: `CAP-COLUMN`, naming the column, and what is in the way.
    """
    own = [(name, "Capstan uses that name itself") for name in payload.names if _is_reserved(name)]
    problems = [*own, *problems_of(payload)]
    if problems:
        column, problem = problems[0]
        raise InvalidRequestError(
            "CAP-COLUMN",
            f"stream {stream.name}: the source has a column {column!r}: {problem}",
            "rename it in the source; or capture a table or files that give it another name",
            stream=stream.name,
            column=column,
        )


def problems_of(columns: StructType) -> list[tuple[str, str]]:
    """Names that a Delta table cannot have, each with the reason."""
    problems: list[tuple[str, str]] = []
    seen: dict[str, int] = {}
    for place, name in enumerate(columns.names):
        other = seen.setdefault(name.lower(), place)
        if other != place:
            said = f"to Spark it is the same name as {columns.names[other]}"
            problems.append((name, said))
    problems += [
        (".".join(path), f"a Delta table takes none with {_CHARACTERS}")
        for path in _paths(columns)
        if not path[-1] or set(path[-1]) & _REFUSED
    ]
    return problems


def _is_reserved(name: str) -> bool:
    return name.lower() in RESERVED


def _paths(kind: DataType) -> Iterator[tuple[str, ...]]:
    """The names of fields, and of those inside of them."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield (field.name,)
            yield from ((field.name, *path) for path in _paths(field.dataType))
    elif isinstance(kind, ArrayType):
        yield from _paths(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _paths(kind.keyType)
        yield from _paths(kind.valueType)
