"""Rescale of a stage's chunks to more or fewer workers, verified to lose none.

Each chunk is rescaled alone, so a shuffle of all chunks is a rescale. Only keyed state can be
rescaled: the rows of an operator's tables go to the owners of their keys. Any other state must be
the same on every worker. All workers must be at one barrier, with equal watermarks of sources.
Behind an operator that holds its watermark back, the minimum of the workers counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.engine.checkpoint import NodeCheckpoint, signatures_of
from capstan.pipeline.graph.arrow_ipc import table_from_bytes, table_to_bytes
from capstan.pipeline.graph.signature import require_unchanged
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.state.chunks import (
    Chunk,
    StateHeader,
    StateTables,
    Total,
    count_keys,
    is_common,
    sum_of,
    total_of,
)
from capstan.pipeline.state.errors import Misplaced, NotKeyed, NotWhole


def rescale_chunk(stage: Stage, chunk: Chunk, before: int, after: int) -> Iterator[Chunk]:
    """Split a chunk by the new owners of its keys; rows without keys go to all of them."""
    chunk.require_intact()
    state = StateTables.at(stage, chunk.node)
    port = state.ports[chunk.table]
    if port is None:
        yield from (replace(chunk, worker=worker) for worker in range(after))
        return
    rows = table_from_bytes(chunk.data)
    hashes = state.hashes(rows, port)
    state.require_owned(chunk.worker, hashes, before)
    owners = state.owners(hashes, after)
    for worker in range(after):
        owned = pc.equal(owners, worker)
        owned_rows = rows.filter(owned)
        # A table without rows still needs one chunk with its columns.
        if owned_rows.num_rows or not chunk.part:
            place = worker, chunk.node, chunk.table, chunk.part
            data = table_to_bytes(owned_rows.combine_chunks())
            yield Chunk.create(place, owned_rows.num_rows, sum_of(hashes.filter(owned)), data)


def merge_headers(stage: Stage, headers: Mapping[int, StateHeader]) -> StateHeader:
    """Merge the headers of all workers; totals and numbers of keys are added up."""
    nodes = _merge_nodes(stage, headers)
    # Workers with different state versions are not at one point either.
    versions = {
        tuple((name, node.state and node.state.version) for name, node in header.nodes.items())
        for header in headers.values()
    }
    if len(versions) > 1:
        raise _not_whole("states have several versions")
    totals: dict[tuple[str, int], Total] = {}
    keys: dict[str, int] = {}
    for header in headers.values():
        for place, total in header.totals.items():
            totals[place] = _merge_totals(stage, place, totals.get(place), total)
        for name, count in header.keys.items():
            keys[name] = keys.get(name, 0) + count
    return StateHeader(nodes, totals, keys)


@dataclass(slots=True)
class Arrivals:
    """The chunks that have arrived at a worker of a stage in a rescale."""

    stage: Stage
    worker: int
    peers: int
    _totals: dict[tuple[str, int], Total] = field(default_factory=dict)
    _hashes: dict[str, list[pa.Array]] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """Count a chunk, and check that the worker owns the keys of its rows."""
        chunk.require_intact()
        place = chunk.node, chunk.table
        state = StateTables.at(self.stage, chunk.node)
        port = state.ports[chunk.table]
        if port is None:
            return
        hashes = state.hashes(table_from_bytes(chunk.data), port)
        state.require_owned(self.worker, hashes, self.peers)
        self._totals[place] = self._totals.get(place, Total(0, 0)) + total_of([chunk])
        self._hashes.setdefault(chunk.node, []).append(hashes)

    def header(self, before: StateHeader) -> StateHeader:
        """Return the worker's header, given the merged header from before the rescale."""
        common = {p: total for p, total in before.totals.items() if is_common(self.stage, p)}
        keys = {name: count_keys(self._hashes.get(name, [])) for name in before.keys}
        return StateHeader(before.nodes, self._totals | common, keys)


def require_none_lost(stage: Stage, before: StateHeader, after: Iterable[StateHeader]) -> None:
    """Check that all workers together have the same rows and keys as before."""
    headers = list(after)
    for place, total in before.totals.items():
        if is_common(stage, place):
            continue
        arrived = Total(0, 0)
        for header in headers:
            arrived += header.totals.get(place, Total(0, 0))
        keys = sum(header.keys.get(place[0], 0) for header in headers)
        if (arrived, keys) != (total, before.keys.get(place[0], 0)):
            text = (
                f"{place[0]}: {total.rows} rows of {before.keys.get(place[0], 0)} keys before, "
                f"{arrived.rows} of {keys} after"
            )
            raise Misplaced.create(text, node=place[0], lost=total.rows - arrived.rows)


def _merge_nodes(stage: Stage, headers: Mapping[int, StateHeader]) -> dict[str, NodeCheckpoint]:
    names = {node.name for node in stage.dag.nodes}
    first = next(iter(headers.values()), StateHeader({}, {}, {}))
    for worker, header in headers.items():
        if set(header.nodes) != names:
            raise _not_whole(f"worker {worker} has the nodes {sorted(header.nodes)}")
        for name, node in header.nodes.items():
            if not stage.dag.inputs(name) and node.watermark != first.nodes[name].watermark:
                raise _not_whole(f"{name} is at {node.watermark} on worker {worker}")
            if node.timers != first.nodes[name].timers:
                text = f"the timers of {name} on worker {worker} differ from those of others"
                raise NotKeyed.create(text, operator=name, worker=worker)
        require_unchanged(signatures_of(header.nodes), stage.dag.signatures)
    merged = {}
    for name, node in first.nodes.items():
        marks = [header.nodes[name].watermark for header in headers.values()]
        least = None if None in marks else min(mark for mark in marks if mark is not None)
        merged[name] = replace(node, watermark=least)
    return merged


def _merge_totals(
    stage: Stage, place: tuple[str, int], merged: Total | None, total: Total
) -> Total:
    if merged is None:
        return total
    if not is_common(stage, place):
        return merged + total
    if merged != total:
        raise _not_whole(
            f"{place[0]} is not at one point on all workers, like overlapping windows behind an "
            "operator that holds its watermark back; continue with the same number of workers",
            node=place[0],
        )
    return total


def _not_whole(reason: str, **fields: object) -> NotWhole:
    return NotWhole.create(f"these states cannot be rescaled: {reason}", reason=reason, **fields)
