"""Checkpoints of a graph on n workers, dealt to m: a pure function, with its proof.

Only what is kept by key can be dealt: the tables of an operator's state go row by row to the owner
of the row's key. Anything else has to be the same on every worker, or is refused. All workers have
to be at one barrier: nothing waits at a node, nothing that was put out is left, the watermarks of
sources are equal. Behind an operator that holds its watermark back by what it has, the least of
the workers' counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.engine.checkpoint import DagCheckpoint, NodeCheckpoint
from capstan.pipeline.engine.executor import DagExecutor
from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.graph import Dag, Node
from capstan.pipeline.graph.operator import Key, OperatorState
from capstan.pipeline.graph.signature import require_unchanged
from capstan.pipeline.operators.ordering import group_ids
from capstan.pipeline.operators.time_buffer import constant
from capstan.pipeline.state.errors import Misplaced, NotKeyed, NotWhole
from capstan.pipeline.state.key_placement import HashPlacement
from capstan.pipeline.state.keyed_snapshot import Proof
from capstan.pipeline.state.state_tables import KeptTables

_WORKER: Final = "#worker"

Checkpoints = Mapping[int, DagCheckpoint]
"""By worker."""


@dataclass(frozen=True, slots=True)
class Rescaled:
    """Checkpoints on other workers than those that took them.

    Attributes:
        checkpoints: By worker.
        proofs: By node with keyed state, how many keys there are and how many have moved.
    """

    checkpoints: Checkpoints
    proofs: Mapping[str, Proof]


def rescaled(
    dag: Dag,
    checkpoints: Checkpoints,
    workers: Sequence[int],
    placement: HashPlacement,
    lying: Mapping[str, Key] | None = None,
) -> Rescaled:
    """Deal what workers know to other workers, each key to its owner.

    The state of an operator whose key is `GLOBAL` goes to the first worker.

    Args:
        dag: What all of them run.
        checkpoints: Of every worker, at one barrier.
        workers: Who goes on.
        placement: Who of them owns a key; also, who of the workers before did.
        lying: By node the columns that its rows lie by, where these are not all of its key; see
            `Stage.lying`.

    Raises:
        NotKeyed: A node has a state that is not kept by key, or timers that differ.
        NotWhole: The workers are not at one barrier, or not of this graph.
        StateChanged: A state was kept by another operator; naming the node.
        Misplaced: A key was with another worker than its owner; or, which would be a defect, is
            so afterwards, or is lost.
    """
    common = together(dag, checkpoints)
    after = sorted(workers)
    nodes: dict[int, dict[str, NodeCheckpoint]] = {worker: {} for worker in after}
    proofs: dict[str, Proof] = {}
    for node in dag.nodes:
        before = {worker: each.nodes[node.name] for worker, each in checkpoints.items()}
        states = {w: known.state for w, known in before.items() if known.state is not None}
        dealt, proof = _node(dag, node, lying, states, after, placement)
        if proof is not None:
            proofs[node.name] = proof
        for worker in after:
            nodes[worker][node.name] = replace(common[node.name], state=dealt.get(worker))
    number = next(iter(checkpoints.values())).checkpoint_id
    made = {worker: DagCheckpoint(nodes[worker], {}, number) for worker in after}
    return Rescaled(made, proofs)


def together(dag: Dag, checkpoints: Checkpoints) -> dict[str, NodeCheckpoint]:
    """What the nodes of all workers know together, but for the states of their operators.

    Raises:
        NotWhole: They are not at one barrier, or not of this graph.
        StateChanged: A state was kept by another operator; naming the node.
        NotKeyed: They have timers that differ.
    """
    _check_whole(dag, checkpoints)
    for each in checkpoints.values():
        require_unchanged(each.signatures, dag.signatures)
    found = {}
    for node in dag.nodes:
        known = [each.nodes[node.name] for each in checkpoints.values()]
        marks = [each.watermark for each in known]
        least = None if None in marks else min(mark for mark in marks if mark is not None)
        found[node.name] = replace(known[0], state=None, watermark=least)
    return found


def restore_all(executors: Mapping[int, DagExecutor], checkpoints: Checkpoints) -> None:
    """Put checkpoints back into executors: all of them or, when one fails, none.

    Args:
        executors: By worker.
        checkpoints: Of exactly these workers.

    Raises:
        NotWhole: They are of other workers.
        RestoreFailed: A state cannot be read, or is of another version; naming the node.
        StateChanged: A state was kept by another operator; naming the node.
    """
    if set(executors) != set(checkpoints):
        raise _not_whole(f"of workers {sorted(checkpoints)}, for workers {sorted(executors)}")
    DagExecutor.restore_together([(each, checkpoints[w]) for w, each in executors.items()])


def at_several_points(node: str) -> str:
    """Why the state of a node that workers have brought to several points cannot be dealt."""
    return (
        f"{node} is not at one point on all workers; so are windows that overlap behind an "
        "operator that holds its watermark back, which go on with as many workers as before"
    )


def _check_whole(dag: Dag, checkpoints: Checkpoints) -> None:
    if not checkpoints:
        raise _not_whole("no checkpoints")
    names = {node.name for node in dag.nodes}
    first = next(iter(checkpoints.values()))
    for worker, each in checkpoints.items():
        if set(each.nodes) != names:
            raise _not_whole(f"worker {worker} has nodes {sorted(each.nodes)}")
        if each.outputs:
            raise _not_whole(f"worker {worker} has outputs that were not taken")
        if each.checkpoint_id != first.checkpoint_id:
            raise _not_whole(f"worker {worker} is at checkpoint {each.checkpoint_id}")
        for name, known in each.nodes.items():
            if known.queue:
                raise _not_whole(f"events wait at {name} on worker {worker}")
            if not dag.inputs(name) and known.watermark != first.nodes[name].watermark:
                raise _not_whole(f"{name} is at {known.watermark} on worker {worker}")
            if known.timers != first.nodes[name].timers:
                text = f"{name} has timers on worker {worker} that others do not have"
                raise NotKeyed.create(text, operator=name, worker=worker)


def _node(
    dag: Dag,
    node: Node,
    lying: Mapping[str, Key] | None,
    states: Mapping[int, OperatorState],
    workers: Sequence[int],
    placement: HashPlacement,
) -> tuple[dict[int, OperatorState], Proof | None]:
    if not states:
        return {}, None
    if len({(state.operator_id, state.version) for state in states.values()}) > 1:
        raise _not_whole(f"{node.name} has states of several versions")
    first = next(iter(states.values()))
    if not any(state.data for state in states.values()):
        return dict.fromkeys(workers, first), None
    kept = KeptTables.of(dag, node, lying)
    dealer = _Dealer(kept, tuple(sorted(states)), tuple(workers), placement)
    tables = {w: tables_from_bytes(state.data) for w, state in states.items()}
    dealt = dealer.deal(tables)
    made = {w: replace(first, data=tables_to_bytes(dealt[w])) for w in workers}
    return made, dealer.prove(tables, dealt)


@dataclass(frozen=True, slots=True)
class _Dealer:
    """Deals the tables of one operator.

    Attributes:
        kept: What is known of them.
        before: The workers that have the tables.
        after: The workers that get them.
        placement: Who owns a key.
    """

    kept: KeptTables
    before: tuple[int, ...]
    after: tuple[int, ...]
    placement: HashPlacement

    def deal(self, tables: Mapping[int, Sequence[pa.Table]]) -> dict[int, list[pa.Table]]:
        """The tables of each worker afterwards."""
        dealt: dict[int, list[pa.Table]] = {worker: [] for worker in self.after}
        for number, port in enumerate(self.kept.ports):
            parts = [each[number] for each in tables.values() if len(each) > number]
            if not parts:
                continue
            if port is None:
                self._check_equal(parts)
                for mine in dealt.values():
                    mine.append(parts[0])
                continue
            rows = self._together(parts)
            owners = self._owners(rows, port, self.after)
            for worker, mine in dealt.items():
                mine.append(rows.filter(pc.equal(owners, worker)).combine_chunks())
        return dealt

    def prove(
        self, before: Mapping[int, Sequence[pa.Table]], after: Mapping[int, Sequence[pa.Table]]
    ) -> Proof:
        """Prove that each key is with its owner, before and after, and that no row is lost.

        Raises:
            Misplaced: Some are not.
        """
        for number, port in enumerate(self.kept.ports):
            if port is None:
                continue
            rows = [_rows(each, number) for each in (before, after)]
            if rows[0] != rows[1]:
                text = f"{self.kept.node}: {rows[0]} rows before, {rows[1]} after"
                raise Misplaced.create(text, node=self.kept.node, lost=rows[0] - rows[1])
        was, now = self._keys(before, self.before), self._keys(after, self.after)
        if was is None or now is None:
            # An operator that never had a row may have no tables.
            return Proof(0, 0, dict.fromkeys(self.after, 0))
        names = was.column_names[:-1]
        both = group_ids(pa.concat_tables([was.select(names), now.select(names)]), names)
        old, new = both[: was.num_rows], both[was.num_rows :]
        known = pc.sum(pc.is_in(old, value_set=new)).as_py() or 0
        if not was.num_rows == now.num_rows == known:
            text = f"{self.kept.node}: {was.num_rows} keys before, {now.num_rows} after"
            raise Misplaced.create(text, node=self.kept.node, lost=was.num_rows - now.num_rows)
        here = now.column(_WORKER).take(pc.index_in(old, value_set=new))
        moved = pc.sum(pc.not_equal(here, was.column(_WORKER))).as_py() or 0
        held = Counter(now.column(_WORKER).to_pylist())
        return Proof(now.num_rows, moved, {worker: held[worker] for worker in self.after})

    def _keys(
        self, tables: Mapping[int, Sequence[pa.Table]], workers: Sequence[int]
    ) -> pa.Table | None:
        """The distinct keys and the worker of each, which is proved to be the owner."""
        found: list[pa.Table] = []
        for worker, mine in tables.items():
            for rows, port in zip(mine, self.kept.ports, strict=False):
                if port is None:
                    continue
                self._check_owner(rows, port, worker, workers)
                # Where all rows meet there is one key, the same for all.
                keys = [rows.column(name) for name in self.kept.key.on(port)] or [
                    constant(0, rows.num_rows)
                ]
                names = [f"k{n}" for n in range(len(keys))]
                found.append(pa.table([*keys, constant(worker, rows.num_rows)], [*names, _WORKER]))
        if not found:
            return None
        every = pa.concat_tables(found)
        return every.group_by(every.column_names, use_threads=False).aggregate([])

    def _check_owner(self, rows: pa.Table, port: int, worker: int, workers: Sequence[int]) -> None:
        wrong = pc.sum(pc.not_equal(self._owners(rows, port, workers), worker)).as_py()
        if wrong:
            text = f"{self.kept.node}: {wrong} rows on worker {worker} that another one owns"
            raise Misplaced.create(text, node=self.kept.node, worker=worker, misplaced=wrong)

    def _owners(self, rows: pa.Table, port: int, workers: Sequence[int]) -> pa.Array:
        return self.kept.owners(self.kept.hashes(rows, port), workers, self.placement)

    def _together(self, parts: Sequence[pa.Table]) -> pa.Table:
        if any(part.schema != parts[0].schema for part in parts):
            raise _not_whole(f"{self.kept.node} has states with different columns")
        return pa.concat_tables(parts)

    def _check_equal(self, parts: Sequence[pa.Table]) -> None:
        if any(part != parts[0] for part in parts):
            raise _not_whole(at_several_points(self.kept.node))


def _rows(tables: Mapping[int, Sequence[pa.Table]], number: int) -> int:
    return sum(each[number].num_rows for each in tables.values() if len(each) > number)


def _not_whole(reason: str) -> NotWhole:
    return NotWhole.create(f"these checkpoints cannot be dealt: {reason}", reason=reason)
