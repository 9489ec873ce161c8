"""The state that one run of a pipeline passes to the next, as rows and as notes of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final

import pyarrow as pa

from capstan.core.json_object import Json
from capstan.pipeline.engine.checkpoint import DagCheckpoint
from capstan.pipeline.engine.executor import DagExecutor
from capstan.pipeline.graph.arrow_ipc import batches_from_bytes, batches_to_bytes
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.spark.wire_format import TimedRows
from capstan.pipeline.state.chunks import Chunk, StateHeader, assemble, split
from capstan.pipeline.state.errors import NotWhole

_TIME: Final = "#time"


class StateKind(StrEnum):
    """Kind of a row of state; see `capstan.pipeline.state.chunks` for the first two.

    The third has rows of a sink that were emitted before their time, and wait for the run that
    writes it.
    """

    HEAD = "head"
    CHUNK = "chunk"
    AHEAD = "ahead"


@dataclass(frozen=True, slots=True)
class StateRow:
    """A row of state; see `Chunk`."""

    stage: int
    worker: int
    kind: StateKind
    node: str | None = None  # of the state, or sink of the rows; None for a header
    part_of: int | None = None  # the table of the operator's state
    part: int | None = None
    rows: int = 0
    hashes: int = 0
    digest: int | None = None
    head: str | None = None
    data: bytes | None = None

    @classmethod
    def from_header(cls, stage: int, worker: int, header: StateHeader) -> StateRow:
        """Create the row of a header."""
        return cls(stage, worker, StateKind.HEAD, head=header.to_json())

    @classmethod
    def from_chunk(cls, stage: int, chunk: Chunk) -> StateRow:
        """Create the row of a chunk."""
        numbers = chunk.table, chunk.part, chunk.rows, chunk.hashes, chunk.digest
        return cls(
            stage, chunk.worker, StateKind.CHUNK, chunk.node, *numbers, head=None, data=chunk.data
        )

    def chunk(self) -> Chunk:
        """Return the chunk of the row."""
        assert self.node is not None
        assert self.data is not None
        assert self.part_of is not None
        assert self.part is not None
        assert self.digest is not None
        place = self.worker, self.node, self.part_of, self.part
        return Chunk(*place, self.rows, self.hashes, self.data, self.digest)

    def place(self) -> dict[str, object]:
        """Return everything but the data, as JSON; `from_place` reads it."""
        fields = asdict(self)
        del fields["data"]
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_place(cls, place: Json, data: bytes | None) -> StateRow:
        """Create the row with this place and these data."""
        fields = {name: value for name, value in place.items() if value is not None}
        return cls(kind=StateKind(fields.pop("kind")), data=data, **fields)


COLUMNS: Final = pa.schema(
    [
        ("stage", pa.int32()),
        ("worker", pa.int32()),
        ("kind", pa.string()),
        ("node", pa.string()),
        ("part_of", pa.int32()),
        ("part", pa.int32()),
        ("rows", pa.int64()),
        ("hashes", pa.int64()),
        ("digest", pa.int64()),
        ("head", pa.string()),
        ("data", pa.binary()),
    ]
)
"""Columns of rows of state."""


def batch_of(rows: Iterable[StateRow]) -> pa.RecordBatch:
    """Convert rows of state to a batch with `COLUMNS`."""
    return pa.RecordBatch.from_pylist([asdict(row) for row in rows], schema=COLUMNS)


def rows_of(batch: pa.RecordBatch) -> Iterator[StateRow]:
    """Read the rows that `batch_of` wrote; missing columns are null."""
    for at in range(batch.num_rows):
        # One at a time: the data of a row can be megabytes.
        (row,) = batch.slice(at, 1).to_pylist()
        yield StateRow.from_place(row, row.pop("data", None))


def final_state(
    stage: Stage, worker: int, executor: DagExecutor, ahead: Mapping[str, Iterable[TimedRows]]
) -> Iterator[StateRow]:
    """Yield a worker's final state, if the stage has a key, and the output for a later run."""
    if stage.key is not None:
        header, chunks = split(stage, worker, executor.checkpoint())
        yield StateRow.from_header(stage.number, worker, header)
        for chunk in chunks:
            yield StateRow.from_chunk(stage.number, chunk)
    for node, waiting in ahead.items():
        for rows, times in waiting:
            timed = rows.append_column(_TIME, times)
            data = batches_to_bytes(timed.schema, [timed])
            yield StateRow(
                stage.number, worker, StateKind.AHEAD, node, rows=rows.num_rows, data=data
            )


@dataclass(slots=True)
class Resumption:
    """The state that a task continues from."""

    stage: Stage
    peers: int
    _heads: list[StateHeader] = field(default_factory=list)
    _chunks: list[Chunk] = field(default_factory=list)

    def take(self, row: StateRow) -> Iterator[tuple[str, TimedRows]]:
        """Take a row of state; yield its early output, if any, by node."""
        if row.kind is StateKind.HEAD:
            self._heads.append(StateHeader.from_json(row.head or ""))
        elif row.kind is StateKind.CHUNK:
            self._chunks.append(row.chunk())
        else:
            for batch in batches_from_bytes(row.data or b""):
                yield row.node or "", (batch.drop_columns([_TIME]), batch.column(_TIME))

    def checkpoint(self, worker: int) -> DagCheckpoint:
        """Return the saved checkpoint of a worker."""
        if len(self._heads) != 1:
            text = f"stage {self.stage.number} has {len(self._heads)} headers on worker {worker}"
            raise NotWhole.create(text, reason="not exactly one header", worker=worker)
        return assemble(self.stage, worker, self.peers, self._heads[0], self._chunks)
