"""Chunks of a stage's state dealt to more or fewer workers, with the proof that none is lost.

Each chunk is dealt alone, so that a shuffle of all of them is a rescale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.engine.checkpoint import DagCheckpoint
from capstan.pipeline.graph.arrow_ipc import table_from_bytes, table_to_bytes
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.state.checkpoint_rescale import at_several_points, together
from capstan.pipeline.state.chunks import (
    PLACEMENT,
    Chunk,
    StateHeader,
    Total,
    count_keys,
    is_common,
    require_owned,
    sum_of,
    total_of,
)
from capstan.pipeline.state.errors import Misplaced, NotWhole
from capstan.pipeline.state.key_placement import HashPlacement
from capstan.pipeline.state.state_tables import KeptTables


def deal(
    stage: Stage, chunk: Chunk, before: int, after: int, placement: HashPlacement = PLACEMENT
) -> Iterator[Chunk]:
    """The rows of a chunk as chunks of the workers that own their keys from now on.

    Rows that are the same on every worker go to each of them.

    Args:
        stage: The stage.
        chunk: The chunk.
        before: How many workers there were.
        after: How many there will be.
        placement: Who owns a key.

    Raises:
        NotKeyed: It is of a state that is not kept by key.
        Misplaced: A key was with another worker than its owner.
        SnapshotCorrupt: The chunk is not what was written.
    """
    chunk.require_intact()
    kept = KeptTables.at(stage, chunk.node)
    port = kept.ports[chunk.table]
    if port is None:
        yield from (replace(chunk, worker=worker) for worker in range(after))
        return
    rows = table_from_bytes(chunk.data)
    hashes = kept.hashes(rows, port)
    require_owned(kept, chunk.worker, kept.owners(hashes, range(before), placement))
    owners = kept.owners(hashes, range(after), placement)
    for worker in range(after):
        mine = pc.equal(owners, worker)
        own = rows.filter(mine)
        # Without rows, one is still needed: it has the columns.
        if own.num_rows or not chunk.part:
            place = worker, chunk.node, chunk.table, chunk.part
            data = table_to_bytes(own.combine_chunks())
            yield Chunk.of(place, own.num_rows, sum_of(hashes.filter(mine)), data)


def merged(stage: Stage, heads: Mapping[int, StateHeader]) -> StateHeader:
    """What the heads of all workers say together, with the sums of their totals and keys.

    Raises:
        NotWhole: The workers are not at one point, or not of this graph.
        NotKeyed: They have timers that differ.
    """
    # States of other versions are as far apart as watermarks of sources are.
    versions = {
        tuple((name, known.state and known.state.version) for name, known in head.nodes.items())
        for head in heads.values()
    }
    if len(versions) > 1:
        reason = "states are of several versions"
        raise NotWhole.create(f"workers cannot be dealt: {reason}", reason=reason)
    common = together(stage.dag, {w: DagCheckpoint(head.nodes) for w, head in heads.items()})
    states = next(iter(heads.values())).nodes
    nodes = {name: replace(known, state=states[name].state) for name, known in common.items()}
    totals: dict[tuple[str, int], Total] = {}
    keys: dict[str, int] = {}
    for head in heads.values():
        for place, total in head.totals.items():
            totals[place] = _with(stage, place, totals.get(place), total)
        for name, count in head.keys.items():
            keys[name] = keys.get(name, 0) + count
    return StateHeader(nodes, totals, keys)


@dataclass(slots=True)
class Arrivals:
    """What has arrived at a worker of a stage that chunks were dealt to.

    Attributes:
        stage: The stage.
        worker: The worker.
        peers: How many there are now.
    """

    stage: Stage
    worker: int
    peers: int
    _totals: dict[tuple[str, int], Total] = field(default_factory=dict)
    _hashes: dict[str, list[pa.Array]] = field(default_factory=dict)

    def add(self, chunk: Chunk, placement: HashPlacement = PLACEMENT) -> None:
        """Count a chunk in, and check that the worker owns the keys of its rows.

        Raises:
            Misplaced: Another one owns some of them.
            SnapshotCorrupt: The chunk is not what was dealt.
        """
        chunk.require_intact()
        place = chunk.node, chunk.table
        kept = KeptTables.at(self.stage, chunk.node)
        port = kept.ports[chunk.table]
        if port is None:
            return
        hashes = kept.hashes(table_from_bytes(chunk.data), port)
        require_owned(kept, self.worker, kept.owners(hashes, range(self.peers), placement))
        self._totals[place] = self._totals.get(place, Total(0, 0)) + total_of([chunk])
        self._hashes.setdefault(chunk.node, []).append(hashes)

    def head(self, before: StateHeader) -> StateHeader:
        """The worker's head, where that of all workers before, merged, is known."""
        common = {p: total for p, total in before.totals.items() if is_common(self.stage, p)}
        keys = {name: count_keys(self._hashes.get(name, [])) for name in before.keys}
        return StateHeader(before.nodes, self._totals | common, keys)


def require_none_lost(stage: Stage, before: StateHeader, after: Iterable[StateHeader]) -> None:
    """Check that all workers together have the rows and the keys that there were.

    Each of them owns the keys that it has, so that none of these is with two of them.

    Args:
        stage: The stage.
        before: The heads of the workers before, merged.
        after: The heads of the workers that chunks were dealt to.

    Raises:
        Misplaced: Rows or keys were lost on the way, or are there twice.
    """
    heads = list(after)
    for place, total in before.totals.items():
        if is_common(stage, place):
            continue
        found = Total(0, 0)
        for head in heads:
            found += head.totals.get(place, Total(0, 0))
        keys = sum(head.keys.get(place[0], 0) for head in heads)
        if (found, keys) != (total, before.keys.get(place[0], 0)):
            text = (
                f"{place[0]}: {total.rows} rows of {before.keys.get(place[0], 0)} keys before, "
                f"{found.rows} of {keys} after"
            )
            raise Misplaced.create(text, node=place[0], lost=total.rows - found.rows)


def _with(stage: Stage, place: tuple[str, int], known: Total | None, total: Total) -> Total:
    if known is None:
        return total
    if not is_common(stage, place):
        return known + total
    if known != total:
        reason = at_several_points(place[0])
        raise NotWhole.create(f"workers cannot be dealt: {reason}", reason=reason, node=place[0])
    return total
