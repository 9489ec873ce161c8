"""What a worker knows of a stage, as rows of a table: cut up, and put together again.

A head says what its nodes know but for the tables of their states, and how many rows, with which
hashes of their keys, these have. Chunks have the rows. A chunk can be dealt without the others, so
that a state of any size is dealt by a shuffle; the head tells whether all of it has arrived.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.engine.checkpoint import DagCheckpoint, NodeCheckpoint, signatures_of
from capstan.pipeline.graph.arrow_ipc import (
    table_from_bytes,
    table_to_bytes,
    tables_from_bytes,
    tables_to_bytes,
)
from capstan.pipeline.graph.events import Timer
from capstan.pipeline.graph.operator import OperatorState
from capstan.pipeline.graph.signature import require_unchanged
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.state.errors import Misplaced, NotWhole, SnapshotCorrupt
from capstan.pipeline.state.key_placement import Modulo
from capstan.pipeline.state.state_tables import KeptTables, ports_of

CHUNK_ROWS: Final = 65_536
WHOLE: Final = -1
"""The table of a state that is not tables."""

PLACEMENT: Final = Modulo()
"""Where the tasks of a stage have their keys."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of one table of one operator's state on one worker.

    Attributes:
        worker: The worker.
        node: The operator's name.
        table: The table's position, or `WHOLE` for a state that is not tables.
        part: The chunk's position in it; chunks of several workers can have the same one.
        rows: How many rows it has.
        hashes: The sum of the hashes of their keys, modulo 2^64 and signed. Of rows that are the
            same on every worker, the digest of what they say.
        data: The rows as an Arrow stream, or the state.
        digest: The first 8 bytes of the BLAKE2b of `data`, signed.
    """

    worker: int
    node: str
    table: int
    part: int
    rows: int
    hashes: int
    data: bytes
    digest: int

    @classmethod
    def of(cls, place: tuple[int, str, int, int], rows: int, hashes: int, data: bytes) -> Chunk:
        """A chunk at a place: worker, node, table and part."""
        return cls(*place, rows, hashes, data, _digest(data))

    def require_intact(self) -> None:
        """Check that its data are those that were written.

        Raises:
            SnapshotCorrupt: They are not.
        """
        if _digest(self.data) != self.digest:
            reason = "the digest differs"
            text = f"a part of the state of {self.node} on worker {self.worker}: {reason}"
            raise SnapshotCorrupt.create(text, reason=reason, node=self.node, worker=self.worker)


@dataclass(frozen=True, slots=True)
class Total:
    """What the chunks of a table come to.

    Attributes:
        rows: How many rows they have.
        hashes: The sum of the hashes of their keys, as a chunk has it.
    """

    rows: int
    hashes: int

    def __add__(self, other: Total) -> Total:
        summed = (self.hashes + other.hashes + 2**63) % 2**64 - 2**63
        return Total(self.rows + other.rows, summed)


Totals = Mapping[tuple[str, int], Total]
"""By node and table."""


@dataclass(frozen=True, slots=True)
class StateHeader:
    """What one worker knows of a stage, but for the rows of its states.

    Attributes:
        nodes: By name; the data of their states are left out.
        totals: What the tables have.
        keys: How many keys each operator has state for, where it is kept by key.
    """

    nodes: Mapping[str, NodeCheckpoint]
    totals: Totals
    keys: Mapping[str, int]

    def to_json(self) -> str:
        """The head as a line of text."""
        nodes = {
            name: [
                known.watermark,
                [[timer.time, timer.tag] for timer in known.timers],
                known.state
                and [known.state.operator_id, known.state.version, known.state.signature],
            ]
            for name, known in self.nodes.items()
        }
        totals = [[*place, total.rows, total.hashes] for place, total in self.totals.items()]
        return json.dumps({"nodes": nodes, "totals": totals, "keys": dict(self.keys)})

    @classmethod
    def from_json(cls, text: str) -> StateHeader:
        """The head that `to_json` wrote; older ones have no signatures."""
        value = json.loads(text)
        nodes = {
            name: NodeCheckpoint(
                state and OperatorState(state[0], state[1], b"", *state[2:]),
                watermark,
                tuple(Timer(time, tag) for time, tag in timers),
            )
            for name, (watermark, timers, state) in value["nodes"].items()
        }
        totals = {
            (node, table): Total(rows, hashes) for node, table, rows, hashes in value["totals"]
        }
        return cls(nodes, totals, value["keys"])


def cut_up(
    stage: Stage, worker: int, checkpoint: DagCheckpoint, rows: int = CHUNK_ROWS
) -> tuple[StateHeader, list[Chunk]]:
    """What a worker knows of a stage, as a head and chunks of at most so many rows.

    Raises:
        NotWhole: Events wait at a node, or outputs have not been taken.
    """
    if checkpoint.outputs or any(known.queue for known in checkpoint.nodes.values()):
        reason = "not everything that was put in has come out"
        raise NotWhole.create(f"worker {worker} cannot be cut up: {reason}", reason=reason)
    chunks: list[Chunk] = []
    keys: dict[str, int] = {}
    for name, state in checkpoint.operators.items():
        node = stage.dag.node(name)
        if ports_of(stage.dag, node) is not None:
            mine, keys[name] = _cut_tables(stage, worker, name, state.data, rows)
            chunks += mine
        elif state.data:
            chunks.append(Chunk.of((worker, name, WHOLE, 0), 0, 0, state.data))
    nodes = {
        name: replace(known, state=known.state and replace(known.state, data=b""))
        for name, known in checkpoint.nodes.items()
    }
    totals = {place: total_of(mine) for place, mine in _by_table(chunks).items()}
    return StateHeader(nodes, totals, keys), chunks


def put_together(
    stage: Stage, worker: int, peers: int, head: StateHeader, chunks: Iterable[Chunk]
) -> DagCheckpoint:
    """What a worker knows, from its head and all of its chunks, in any order.

    Raises:
        NotWhole: A chunk is missing, or there twice, or not of this graph.
        StateChanged: A state was kept by another operator; naming the node.
        Misplaced: A key is there that another of the `peers` workers owns.
        SnapshotCorrupt: A chunk is not what was written.
    """
    if set(head.nodes) != {node.name for node in stage.dag.nodes}:
        here = ", ".join(node.name for node in stage.dag.nodes)
        text = f"a state of the nodes {', '.join(head.nodes)} does not fit {here}"
        raise NotWhole.create(text, reason="of another graph")
    require_unchanged(signatures_of(head.nodes), stage.dag.signatures)
    found = _by_table(_once(stage, chunks))
    for place in sorted({*found, *head.totals}):
        total, wanted = total_of(found.get(place, ())), head.totals.get(place)
        if total != wanted:
            text = f"{place[0]}: not all of its state is there on worker {worker}"
            raise NotWhole.create(text, reason="incomplete", node=place[0], worker=worker)
    nodes = {}
    for name, known in head.nodes.items():
        mine = [found[place] for place in sorted(found) if place[0] == name]
        if known.state is None or not mine:
            nodes[name] = known
            continue
        if mine[0][0].table == WHOLE:
            data = mine[0][0].data
        else:
            data = tables_to_bytes(_tables(stage, worker, peers, mine))
        nodes[name] = replace(known, state=replace(known.state, data=data))
    return DagCheckpoint(nodes)


def total_of(chunks: Iterable[Chunk]) -> Total:
    """What chunks of one table come to."""
    found = Total(0, 0)
    for chunk in chunks:
        found += Total(chunk.rows, chunk.hashes)
    return found


def is_common(stage: Stage, place: tuple[str, int]) -> bool:
    """Whether the rows of a table are the same on every worker."""
    name, table = place
    ports = ports_of(stage.dag, stage.dag.node(name))
    return ports is not None and table != WHOLE and ports[table] is None


def require_owned(kept: KeptTables, worker: int, owners: pa.Array) -> None:
    """Check that a worker owns all rows that it has.

    Raises:
        Misplaced: Others own some of them.
    """
    wrong = pc.sum(pc.not_equal(owners, worker)).as_py()
    if wrong:
        text = f"{kept.node}: {wrong} rows on worker {worker} that another one owns"
        raise Misplaced.create(text, node=kept.node, worker=worker, misplaced=wrong)


def sum_of(hashes: pa.Array) -> int:
    """The sum of hashes modulo 2^64, signed."""
    # Sums of whole words wrap around, as they should.
    return int(hashes.to_numpy(zero_copy_only=False).sum(dtype=np.int64))


def _cut_tables(
    stage: Stage, worker: int, name: str, data: bytes, size: int
) -> tuple[list[Chunk], int]:
    """The chunks of an operator's tables, and how many keys these have."""
    kept = KeptTables.at(stage, name)
    chunks: list[Chunk] = []
    every: list[pa.Array] = []
    for number, (table, port) in enumerate(zip(tables_from_bytes(data), kept.ports, strict=False)):
        place = worker, name, number
        if port is None:
            said = _digest(repr(table.to_pylist()).encode())
            data = table_to_bytes(table)
            chunks.append(Chunk.of((*place, 0), table.num_rows, said, data))
            continue
        hashes = kept.hashes(table, port)
        every.append(hashes)
        # A table without rows still has columns.
        for part, start in enumerate(range(0, max(1, table.num_rows), size)):
            rows, own = table.slice(start, size), hashes.slice(start, size)
            data = table_to_bytes(rows.combine_chunks())
            chunks.append(Chunk.of((*place, part), rows.num_rows, sum_of(own), data))
    return chunks, count_keys(every)


def _once(stage: Stage, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The chunks, checked; what is the same on every worker once, which may come from each."""
    seen: set[tuple[str, int, int]] = set()
    for chunk in chunks:
        chunk.require_intact()
        if is_common(stage, (chunk.node, chunk.table)):
            said = chunk.node, chunk.table, chunk.hashes
            if said in seen:
                continue
            seen.add(said)
        yield chunk


def _by_table(chunks: Iterable[Chunk]) -> dict[tuple[str, int], list[Chunk]]:
    found: dict[tuple[str, int], list[Chunk]] = {}
    for chunk in sorted(chunks, key=lambda each: (each.part, each.hashes, each.rows)):
        found.setdefault((chunk.node, chunk.table), []).append(chunk)
    return found


def _tables(stage: Stage, worker: int, peers: int, mine: list[list[Chunk]]) -> list[pa.Table]:
    """Tables from their chunks, each row with the worker that owns it."""
    kept = KeptTables.at(stage, mine[0][0].node)
    tables = []
    for chunks in mine:
        table = pa.concat_tables([table_from_bytes(chunk.data) for chunk in chunks])
        port = kept.ports[chunks[0].table]
        if port is not None:
            owners = kept.owners(kept.hashes(table, port), range(peers), PLACEMENT)
            require_owned(kept, worker, owners)
        tables.append(table)
    return tables


def count_keys(hashes: Sequence[pa.Array]) -> int:
    """How many keys have these hashes; two with one hash of 64 bits count as one."""
    found: int = pc.count_distinct(pa.chunked_array(hashes, pa.int64())).as_py()
    return found


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
