"""The tables of an operator's state, and the owners of their rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.graph import Dag, Node
from capstan.pipeline.graph.operator import Key
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.operators.time_buffer import constant
from capstan.pipeline.state.errors import Misplaced, NotKeyed
from capstan.pipeline.state.key_hash import key_hash, key_hashes


class Modulo:
    """Owner is the worker at the position of the hash modulo the number of workers.

    A pure function of the key and the workers, and the same in Spark SQL: `sql` is an expression
    over `h`, the stable hash of the key, and an array `ws` of workers in ascending order. Follows
    Malstrom's `index_select`, whose hash changes with releases.

    >>> Modulo().owner("a", [7])
    7
    """

    __slots__ = ()
    sql: ClassVar = "element_at(ws, cast(pmod(h, size(ws)) AS INT) + 1)"

    def owner(self, key: Hashable, workers: Sequence[int]) -> int:
        """Return the owner of `key`."""
        ordered = sorted(required(workers))
        return ordered[key_hash(key) % len(ordered)]

    def owners(self, hashes: pa.Array, workers: Sequence[int]) -> pa.Array:
        """Return the owners (int64) of keys with these hashes (int64)."""
        ordered = np.array(sorted(required(workers)), np.int64)
        return pa.array(ordered[hashes.to_numpy(zero_copy_only=False) % len(ordered)])


def required(workers: Sequence[int]) -> Sequence[int]:
    """The workers; refused when there are none."""
    if not workers:
        message = "a placement needs at least one worker"
        raise ValueError(message)
    return workers


PLACEMENT: Final = Modulo()
"""Placement of keys on the tasks of a stage."""


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
        return PLACEMENT.owners(hashes, range(peers))

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
