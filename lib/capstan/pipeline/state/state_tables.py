"""The tables of an operator's state, and the owners of their rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.graph import Dag, Node
from capstan.pipeline.graph.operator import Key
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.operators.time_buffer import constant
from capstan.pipeline.state.errors import Misplaced, NotKeyed
from capstan.pipeline.state.key_hash import key_hashes


def owners_of(hashes: pa.Array, peers: int) -> pa.Array:
    """Return which of `peers` workers (int64) owns the keys with these hashes (int64).

    In Spark SQL that is `pmod(hash, peers)`. Follows Malstrom's `index_select`, whose hash changes
    with releases.
    """
    return pa.array(hashes.to_numpy(zero_copy_only=False) % peers)


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
