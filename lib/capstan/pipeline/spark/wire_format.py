"""Columns of the rows that travel between Spark and the tasks of a stage.

A stage has several inputs and outputs with different columns, but a Spark frame has one schema. So
the rows of each input or output are structs in a column of their own, and all others of these
columns are null.

| column | meaning |
| --- | --- |
| `time` | BIGINT: the row's time |
| `kind`, `note` | STRING: kind and text of a note, as JSON; null in rows of data |
| `blob` | BINARY: the bytes of a note about state |
| `p0`, `p1`, ... | STRUCT: the rows of the first, the second part |
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Final

import pyarrow as pa

from capstan.core.json_object import Json
from capstan.pipeline.engine.metrics import OperatorNodeMetrics

AT: Final = "time"
KIND: Final = "kind"
NOTE: Final = "note"
BLOB: Final = "blob"
HEAD: Final = (AT, KIND, NOTE, BLOB)

TimedRows = tuple[pa.RecordBatch, pa.Array]
"""Rows with their times (int64)."""


class NoteKind(StrEnum):
    """Subject of a note."""

    WORKER = "worker"
    MARK = "mark"
    METRICS = "metrics"
    ASIDE = "aside"
    TRIMMED = "trimmed"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Counters of a node on one worker."""

    stage: int
    worker: int
    node: str
    counters: OperatorNodeMetrics

    def to_json(self) -> dict[str, object]:
        """Return all fields as one JSON object."""
        head = {"stage": self.stage, "worker": self.worker, "node": self.node}
        return head | asdict(self.counters)

    @classmethod
    def from_json(cls, value: Json) -> NodeMetrics:
        """Read the result of `to_json`."""
        rest = dict(value)
        stage, worker, node = rest.pop("stage"), rest.pop("worker"), rest.pop("node")
        return cls(stage, worker, node, OperatorNodeMetrics(**rest))


def part(number: int) -> str:
    """Return the column of a part."""
    return f"p{number}"


def wire_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of a frame with these parts."""
    kinds = pa.int64(), pa.string(), pa.string(), pa.binary()
    head = [pa.field(name, kind) for name, kind in zip(HEAD, kinds, strict=True)]
    structs = [pa.struct([(field.name, field.type) for field in schema]) for schema in schemas]
    parts = [pa.field(part(number), struct) for number, struct in enumerate(structs)]
    return pa.schema([*head, *parts])


def filled(schema: pa.Schema, count: int, given: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Create rows with the columns of `wire_schema`, null where none is given."""
    columns = [
        given[field.name] if field.name in given else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def packed(schema: pa.Schema, number: int, times: pa.Array, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of one part to the columns of `wire_schema`."""
    column = part(number)
    structs = pa.StructArray.from_arrays(rows.columns, fields=list(schema.field(column).type))
    return filled(schema, rows.num_rows, {AT: times, column: structs})


def noted(
    schema: pa.Schema, kind: NoteKind, notes: Iterable[object], blob: bytes | None = None
) -> pa.RecordBatch:
    """Create notes with the columns of `wire_schema`, all with the same bytes or none."""
    texts = [json.dumps(note, default=plain, sort_keys=True) for note in notes]
    values = {KIND: [kind.value] * len(texts), NOTE: texts, BLOB: [blob] * len(texts)}
    given = {name: pa.array(each, schema.field(name).type) for name, each in values.items()}
    return filled(schema, len(texts), given)


def unpacked(batch: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the rows of one part, with exactly the types of `schema`; None without rows."""
    structs = batch.column(part(number))
    if structs.null_count == len(structs):
        return None
    if structs.null_count:
        structs = structs.filter(structs.is_valid())
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(structs.flatten(), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def row_text(row: object) -> str:
    """Format a row as one line of JSON: numbers as numbers, NaN and infinities as text."""
    return json.dumps(_finite(row), default=plain)


def plain(value: object) -> object:
    """Convert values that JSON lacks: ISO 8601 times, microseconds, hex bytes, otherwise text."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    return value.hex() if isinstance(value, bytes) else str(value)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
