"""A worker's state of a stage as rows of a table: splitting and assembly.

The header has everything except the tables of states, and for each table the number of rows and the
sum of the hashes of their keys. Chunks have the rows. Each chunk can be rescaled alone, so a
shuffle rescales a state of any size; the header shows whether all of it has arrived.
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
from capstan.pipeline.graph.graph import Dag, Node
from capstan.pipeline.graph.operator import Key, OperatorState
from capstan.pipeline.graph.signature import require_unchanged
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.operators.time_buffer import constant
from capstan.pipeline.state.errors import Misplaced, NotKeyed, NotWhole, SnapshotCorrupt
from capstan.pipeline.state.key_hash import key_hashes, owners_of

CHUNK_ROWS: Final = 65_536
WHOLE: Final = -1
"""The table number of a state that does not consist of tables."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one table of an operator's state on one worker."""

    worker: int
    node: str
    table: int  # its position, or `WHOLE` for a state that does not consist of tables
    part: int  # position in the table; chunks of several workers can have the same
    rows: int
    # Sum of the hashes of their keys, modulo 2^64 and signed. For rows that are the same on every
    # worker, the digest of their content.
    hashes: int
    data: bytes  # the rows as an Arrow stream, or the state
    digest: int  # first 8 bytes of the BLAKE2b hash of `data`, signed

    @classmethod
    def create(cls, place: tuple[int, str, int, int], rows: int, hashes: int, data: bytes) -> Chunk:
        """Create a chunk with its digest; its place is worker, node, table and part."""
        return cls(*place, rows, hashes, data, _digest(data))

    def require_intact(self) -> None:
        """Check that its data are unchanged."""
        if _digest(self.data) != self.digest:
            reason = "the digest differs"
            text = f"a chunk of the state of {self.node} on worker {self.worker}: {reason}"
            raise SnapshotCorrupt.create(text, reason=reason, node=self.node, worker=self.worker)


@dataclass(frozen=True, slots=True)
class Total:
    """Totals of the chunks of a table."""

    rows: int
    hashes: int

    def __add__(self, other: Total) -> Total:
        summed = (self.hashes + other.hashes + 2**63) % 2**64 - 2**63
        return Total(self.rows + other.rows, summed)


Totals = Mapping[tuple[str, int], Total]
"""Totals by node and table."""


@dataclass(frozen=True, slots=True)
class StateHeader:
    """A worker's state of a stage, without the rows of operator states; keys are counted."""

    nodes: Mapping[str, NodeCheckpoint]
    totals: Totals
    keys: Mapping[str, int]

    def to_json(self) -> str:
        """Serialize the header as one line of JSON."""
        nodes = {
            name: [
                node.watermark,
                [[timer.time, timer.tag] for timer in node.timers],
                node.state and [node.state.operator_id, node.state.version, node.state.signature],
            ]
            for name, node in self.nodes.items()
        }
        totals = [[*place, total.rows, total.hashes] for place, total in self.totals.items()]
        return json.dumps({"nodes": nodes, "totals": totals, "keys": dict(self.keys)})

    @classmethod
    def from_json(cls, text: str) -> StateHeader:
        """Read a header that `to_json` wrote; older ones have no signatures."""
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


@dataclass(frozen=True, slots=True)
class StateTables:
    """Description of the tables of an operator's state."""

    node: str
    key: Key
    # Whose key columns partition each table; None if all workers have the same.
    ports: tuple[int | None, ...]

    @classmethod
    def at(cls, stage: Stage, name: str) -> StateTables:
        """Describe the tables of a node as its stage partitions them."""
        node = stage.dag.node(name)
        key, ports = stage.partitioning().get(name, node.key), ports_of(stage.dag, node)
        if ports is None or key is None:
            raise NotKeyed.create(f"the state of {name} is not keyed", operator=name)
        return cls(name, key, ports)

    def hashes(self, rows: pa.Table, port: int) -> pa.Array:
        """Return the hash (int64) of each row's key; all are equal for a global key."""
        if self.key.is_global:
            return constant(0, rows.num_rows)
        return key_hashes([rows.column(name) for name in self.key.on(port)])

    def owners(self, hashes: pa.Array, peers: int) -> pa.Array:
        """Return which of `peers` workers (int64) owns each row; the first one for a global key."""
        if self.key.is_global:
            return constant(0, len(hashes))
        return owners_of(hashes, peers)

    def require_owned(self, worker: int, hashes: pa.Array, peers: int) -> None:
        """Check that a worker owns all of its rows."""
        wrong = pc.sum(pc.not_equal(self.owners(hashes, peers), worker)).as_py()
        if wrong:
            text = f"{self.node}: worker {worker} has {wrong} rows that another worker owns"
            raise Misplaced.create(text, node=self.node, worker=worker, misplaced=wrong)


def ports_of(dag: Dag, node: Node) -> tuple[int | None, ...] | None:
    """Return the port of each table of an operator's state; None without tables."""
    if node.operator is None:
        return None
    inputs = [dag.nodes[edge.source].schema for edge in dag.inputs(node.id)]
    return node.operator.create(inputs).state_ports


def split(
    stage: Stage, worker: int, checkpoint: DagCheckpoint, rows: int = CHUNK_ROWS
) -> tuple[StateHeader, list[Chunk]]:
    """Split a worker's state of a stage into a header and chunks of at most `rows` rows."""
    if checkpoint.outputs or any(saved.queue for saved in checkpoint.nodes.values()):
        reason = "events or outputs are still pending"
        raise NotWhole.create(f"cannot split the state of worker {worker}: {reason}", reason=reason)
    chunks: list[Chunk] = []
    keys: dict[str, int] = {}
    for name, state in checkpoint.operators.items():
        node = stage.dag.node(name)
        if ports_of(stage.dag, node) is not None:
            table_chunks, keys[name] = _split_tables(stage, worker, name, state.data, rows)
            chunks += table_chunks
        elif state.data:
            chunks.append(Chunk.create((worker, name, WHOLE, 0), 0, 0, state.data))
    nodes = {
        name: replace(saved, state=saved.state and replace(saved.state, data=b""))
        for name, saved in checkpoint.nodes.items()
    }
    totals = {place: total_of(group) for place, group in _by_table(chunks).items()}
    return StateHeader(nodes, totals, keys), chunks


def assemble(
    stage: Stage, worker: int, peers: int, head: StateHeader, chunks: Iterable[Chunk]
) -> DagCheckpoint:
    """Assemble a worker's state of a stage from its header and all of its chunks, in any order."""
    if set(head.nodes) != {node.name for node in stage.dag.nodes}:
        names = ", ".join(node.name for node in stage.dag.nodes)
        text = f"the state has the nodes {', '.join(head.nodes)}, the stage has {names}"
        raise NotWhole.create(text, reason="of another graph")
    require_unchanged(signatures_of(head.nodes), stage.dag.signatures)
    tables = _by_table(_without_copies(stage, chunks))
    for place in sorted({*tables, *head.totals}):
        if total_of(tables.get(place, ())) != head.totals.get(place):
            text = f"the state of {place[0]} on worker {worker} is incomplete"
            raise NotWhole.create(text, reason="incomplete", node=place[0], worker=worker)
    nodes = {}
    for name, saved in head.nodes.items():
        groups = [tables[place] for place in sorted(tables) if place[0] == name]
        if saved.state is None or not groups:
            nodes[name] = saved
            continue
        if groups[0][0].table == WHOLE:
            data = groups[0][0].data
        else:
            data = tables_to_bytes(_tables(stage, worker, peers, groups))
        nodes[name] = replace(saved, state=replace(saved.state, data=data))
    return DagCheckpoint(nodes)


def total_of(chunks: Iterable[Chunk]) -> Total:
    """Add up the chunks of one table."""
    total = Total(0, 0)
    for chunk in chunks:
        total += Total(chunk.rows, chunk.hashes)
    return total


def is_common(stage: Stage, place: tuple[str, int]) -> bool:
    """Whether the rows of a table are the same on every worker."""
    name, table = place
    ports = ports_of(stage.dag, stage.dag.node(name))
    return ports is not None and table != WHOLE and ports[table] is None


def sum_of(hashes: pa.Array) -> int:
    """Add up hashes modulo 2^64, signed."""
    # Sums of 64-bit integers wrap around, as intended.
    return int(hashes.to_numpy(zero_copy_only=False).sum(dtype=np.int64))


def _split_tables(
    stage: Stage, worker: int, name: str, data: bytes, size: int
) -> tuple[list[Chunk], int]:
    """Split an operator's tables into chunks; also return the number of their keys."""
    state = StateTables.at(stage, name)
    chunks: list[Chunk] = []
    all_hashes: list[pa.Array] = []
    for number, (table, port) in enumerate(zip(tables_from_bytes(data), state.ports, strict=False)):
        place = worker, name, number
        if port is None:
            digest = _digest(repr(table.to_pylist()).encode())
            data = table_to_bytes(table)
            chunks.append(Chunk.create((*place, 0), table.num_rows, digest, data))
            continue
        hashes = state.hashes(table, port)
        all_hashes.append(hashes)
        # A table without rows still needs a chunk with its columns.
        for part, start in enumerate(range(0, max(1, table.num_rows), size)):
            rows, row_hashes = table.slice(start, size), hashes.slice(start, size)
            data = table_to_bytes(rows.combine_chunks())
            total = sum_of(row_hashes)
            chunks.append(Chunk.create((*place, part), rows.num_rows, total, data))
    return chunks, count_keys(all_hashes)


def _without_copies(stage: Stage, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the intact chunks, and only one copy of those that are the same on every worker."""
    seen: set[tuple[str, int, int]] = set()
    for chunk in chunks:
        chunk.require_intact()
        if is_common(stage, (chunk.node, chunk.table)):
            content = chunk.node, chunk.table, chunk.hashes
            if content in seen:
                continue
            seen.add(content)
        yield chunk


def _by_table(chunks: Iterable[Chunk]) -> dict[tuple[str, int], list[Chunk]]:
    tables: dict[tuple[str, int], list[Chunk]] = {}
    for chunk in sorted(chunks, key=lambda chunk: (chunk.part, chunk.hashes, chunk.rows)):
        tables.setdefault((chunk.node, chunk.table), []).append(chunk)
    return tables


def _tables(stage: Stage, worker: int, peers: int, groups: list[list[Chunk]]) -> list[pa.Table]:
    """Concatenate the chunks of each table; check that the worker owns all rows."""
    state = StateTables.at(stage, groups[0][0].node)
    tables = []
    for chunks in groups:
        table = pa.concat_tables([table_from_bytes(chunk.data) for chunk in chunks])
        port = state.ports[chunks[0].table]
        if port is not None:
            state.require_owned(worker, state.hashes(table, port), peers)
        tables.append(table)
    return tables


def count_keys(hashes: Sequence[pa.Array]) -> int:
    """Count the distinct hashes; two keys with equal 64-bit hashes count as one."""
    count: int = pc.count_distinct(pa.chunked_array(hashes, pa.int64())).as_py()
    return count


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
