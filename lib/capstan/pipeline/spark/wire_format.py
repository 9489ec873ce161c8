"""The columns in which rows travel between Spark and the tasks of a stage.

A stage has several inputs and several outputs, each with columns of its own, and Spark's frames
have one schema. So rows of each input, or output, are in a struct of their own, and all but one of
these are null.

| column | meaning |
| --- | --- |
| `time` | BIGINT: the row's time |
| `kind`, `note` | STRING: what else a task has to say, as JSON; null in rows of data |
| `blob` | BINARY: the bytes of a note about state |
| `p0`, `p1`, ... | STRUCT: the rows of the first, the second part |
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Final

import pyarrow as pa

from capstan.pipeline.engine.metrics import OperatorNodeMetrics

AT: Final = "time"
KIND: Final = "kind"
NOTE: Final = "note"
BLOB: Final = "blob"
HEAD: Final = (AT, KIND, NOTE, BLOB)

TimedRows = tuple[pa.RecordBatch, pa.Array]
"""Rows, and their times (int64)."""


class NoteKind(StrEnum):
    """What a note is about."""

    WORKER = "worker"
    MARK = "mark"
    METRICS = "metrics"
    ASIDE = "aside"
    TRIMMED = "trimmed"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """The counters of a node on one worker.

    Attributes:
        stage: The stage that it ran in.
        worker: The replay worker.
        node: Its name.
        counters: What it counted.
    """

    stage: int
    worker: int
    node: str
    counters: OperatorNodeMetrics

    def to_json(self) -> dict[str, object]:
        """All of it in one object."""
        head = {"stage": self.stage, "worker": self.worker, "node": self.node}
        return head | asdict(self.counters)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> NodeMetrics:
        """What `to_json` gave."""
        rest = dict(value)
        stage, worker, node = rest.pop("stage"), rest.pop("worker"), rest.pop("node")
        assert isinstance(stage, int)
        assert isinstance(worker, int)
        counters = OperatorNodeMetrics(**{name: int(str(n)) for name, n in rest.items()})
        return cls(stage, worker, str(node), counters)


def part(number: int) -> str:
    """The column of a part."""
    return f"p{number}"


def row_struct(schema: pa.Schema) -> pa.StructType:
    """The type of a part with these columns."""
    return pa.struct([pa.field(field.name, field.type) for field in schema])


def travelling(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of a frame with these parts."""
    kinds = pa.int64(), pa.string(), pa.string(), pa.binary()
    head = [pa.field(name, kind) for name, kind in zip(HEAD, kinds, strict=True)]
    parts = [pa.field(part(n), row_struct(schema)) for n, schema in enumerate(schemas)]
    return pa.schema([*head, *parts])


def packed(schema: pa.Schema, number: int, times: pa.Array, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of one part, as `travelling` has them."""
    count = rows.num_rows
    empty = [pa.nulls(count, field.type) for field in list(schema)[1 : len(HEAD)]]
    columns: list[pa.Array] = [times, *empty]
    for position in range(len(HEAD), len(schema)):
        field = schema.field(position)
        if position != len(HEAD) + number:
            columns.append(pa.nulls(count, field.type))
        else:
            columns.append(pa.StructArray.from_arrays(rows.columns, fields=list(field.type)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def noted(
    schema: pa.Schema, kind: NoteKind, notes: Iterable[object], blob: bytes | None = None
) -> pa.RecordBatch:
    """Notes, as `travelling` has them, all with the same bytes or none."""
    texts = [json.dumps(note, default=plain, sort_keys=True) for note in notes]
    count = len(texts)
    columns = [
        pa.nulls(count, pa.int64()),
        pa.array([kind.value] * count, pa.string()),
        pa.array(texts, pa.string()),
        pa.array([blob] * count, pa.binary()),
        *(pa.nulls(count, field.type) for field in list(schema)[len(HEAD) :]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def marks(notes: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    """Node and watermark of notes that say how far a node has come."""
    for text in notes.column(NOTE).to_pylist():
        said = json.loads(text)
        yield said["node"], said["watermark"]


def unpacked(batch: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch | None:
    """The rows of one part, with exactly the types of `schema`; None when there are none."""
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


def row_text(row: Mapping[str, object]) -> str:
    """A row as one line of JSON: numbers as they are, floats without a number as text."""
    return json.dumps(_finite(row), default=plain)


def plain(value: object) -> object:
    """What JSON lacks: times in ISO 8601, lengths in microseconds, bytes in hex, else text."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    return value.hex() if isinstance(value, bytes) else str(value)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
