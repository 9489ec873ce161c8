"""The state of a pipeline's run on its way to the next one: as rows, and as notes of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final

import pyarrow as pa

from capstan.pipeline.engine.checkpoint import DagCheckpoint
from capstan.pipeline.engine.executor import DagExecutor
from capstan.pipeline.graph.arrow_ipc import batches_from_bytes, batches_to_bytes
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.spark.wire_format import TimedRows
from capstan.pipeline.state.chunks import Chunk, StateHeader, assemble, split
from capstan.pipeline.state.errors import NotWhole

_TIME: Final = "#time"


class KeptKind(StrEnum):
    """What a row of state has: see `capstan.pipeline.state.chunks` for the first two.

    The third has rows of a sink that have come out before their time, and wait for the run that
    writes it.
    """

    HEAD = "head"
    CHUNK = "chunk"
    AHEAD = "ahead"


@dataclass(frozen=True, slots=True)
class StateRow:
    """A row of state.

    Attributes:
        stage: The number of the stage.
        worker: The replay worker.
        kind: What it is.
        node: Whose state, or which sink's rows; None for a head.
        part_of: The table of the operator's state that it is a part of.
        part: Which part.
        rows: How many rows it has.
        hashes: The sum of the hashes of their keys; see `Chunk`.
        digest: Of `data`.
        head: The head as JSON.
        data: The rows.
    """

    stage: int
    worker: int
    kind: KeptKind
    node: str | None = None
    part_of: int | None = None
    part: int | None = None
    rows: int = 0
    hashes: int = 0
    digest: int | None = None
    head: str | None = None
    data: bytes | None = None

    @classmethod
    def of_head(cls, stage: int, worker: int, head: StateHeader) -> StateRow:
        """The row of a head."""
        return cls(stage, worker, KeptKind.HEAD, head=head.to_json())

    @classmethod
    def of_chunk(cls, stage: int, chunk: Chunk) -> StateRow:
        """The row of a chunk."""
        numbers = chunk.table, chunk.part, chunk.rows, chunk.hashes, chunk.digest
        return cls(
            stage, chunk.worker, KeptKind.CHUNK, chunk.node, *numbers, head=None, data=chunk.data
        )

    def chunk(self) -> Chunk:
        """The chunk that the row is of."""
        assert self.node is not None
        assert self.data is not None
        assert self.part_of is not None
        assert self.part is not None
        assert self.digest is not None
        place = self.worker, self.node, self.part_of, self.part
        return Chunk(*place, self.rows, self.hashes, self.data, self.digest)

    def place(self) -> dict[str, object]:
        """All but the data, as JSON; `of_place` reads it."""
        found = asdict(self)
        del found["data"]
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def of_place(cls, place: Mapping[str, object], data: bytes | None) -> StateRow:
        """The row that has this place and these data."""
        fields = {name: value for name, value in place.items() if value is not None}
        kind = KeptKind(str(fields.pop("kind")))
        return cls(kind=kind, data=data, **fields)  # type: ignore[arg-type]


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
"""The columns of rows of state."""


def batch_of(rows: Iterable[StateRow]) -> pa.RecordBatch:
    """Rows of state as Arrow has them, with `COLUMNS`."""
    return pa.RecordBatch.from_pylist([asdict(row) for row in rows], schema=COLUMNS)


def rows_of(batch: pa.RecordBatch) -> Iterator[StateRow]:
    """The rows that `batch_of` wrote; columns that are not there are null."""
    for at in range(batch.num_rows):
        # One at a time: the data of a row may be megabytes.
        (row,) = batch.slice(at, 1).to_pylist()
        yield StateRow.of_place(row, row.pop("data", None))


def rows_to_keep(
    stage: Stage, worker: int, executor: DagExecutor, ahead: Mapping[str, Iterable[TimedRows]]
) -> Iterator[StateRow]:
    """What a worker knows at the end of its run, where the stage has a key, and what waits.

    Raises:
        NotWhole: Something has not come out of the executor yet.
        OperatorFailed: An operator cannot give its state.
        NoHash: State is kept by a key that has no stable hash.
    """
    if stage.key is not None:
        head, chunks = split(stage, worker, executor.checkpoint())
        yield StateRow.of_head(stage.number, worker, head)
        for chunk in chunks:
            yield StateRow.of_chunk(stage.number, chunk)
    for node, waiting in ahead.items():
        for rows, times in waiting:
            timed = rows.append_column(_TIME, times)
            data = batches_to_bytes(timed.schema, [timed])
            yield StateRow(
                stage.number, worker, KeptKind.AHEAD, node, rows=rows.num_rows, data=data
            )


@dataclass(slots=True)
class Resumption:
    """What a task has been given of an earlier run.

    Attributes:
        stage: The stage that the task runs.
        peers: How many replay workers run it.
    """

    stage: Stage
    peers: int
    _heads: list[StateHeader] = field(default_factory=list)
    _chunks: list[Chunk] = field(default_factory=list)

    def take(self, row: StateRow) -> Iterator[tuple[str, TimedRows]]:
        """Take in a row of state; the rows of sinks that it has, by node."""
        if row.kind is KeptKind.HEAD:
            self._heads.append(StateHeader.from_json(row.head or ""))
        elif row.kind is KeptKind.CHUNK:
            self._chunks.append(row.chunk())
        else:
            for batch in batches_from_bytes(row.data or b""):
                yield row.node or "", (batch.drop_columns([_TIME]), batch.column(_TIME))

    def checkpoint(self, worker: int) -> DagCheckpoint:
        """What a worker knew.

        Raises:
            NotWhole: Not all of it is there, or it is of another graph.
            Misplaced: Another worker owns some of it.
            SnapshotCorrupt: A part is not what was written.
        """
        if len(self._heads) != 1:
            text = f"stage {self.stage.number} has {len(self._heads)} heads on worker {worker}"
            raise NotWhole.create(text, reason="not one head", worker=worker)
        return assemble(self.stage, worker, self.peers, self._heads[0], self._chunks)
