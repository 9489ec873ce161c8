"""The state of an operator as tables, and who owns their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from capstan.pipeline.graph.graph import Dag, Node
from capstan.pipeline.graph.operator import Key
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.operators.time_buffer import constant
from capstan.pipeline.state.errors import NotKeyed
from capstan.pipeline.state.key_hash import key_hashes
from capstan.pipeline.state.key_placement import HashPlacement


@dataclass(frozen=True, slots=True)
class KeptTables:
    """What is known of the tables that an operator's state consists of.

    Attributes:
        node: The operator's name.
        key: The columns that the tables lie by.
        ports: For each table the port by whose key columns it is kept; None for one that is the
            same on every worker.
    """

    node: str
    key: Key
    ports: tuple[int | None, ...]

    @classmethod
    def of(cls, dag: Dag, node: Node, lying: Mapping[str, Key] | None = None) -> KeptTables:
        """The tables of a node.

        Args:
            dag: The graph that it is in.
            node: The node.
            lying: By node the columns that its rows lie by, where these are not all of its key.

        Raises:
            NotKeyed: Its state is not kept by key.
        """
        key, ports = (lying or {}).get(node.name, node.key), ports_of(dag, node)
        if ports is None or key is None:
            text = f"the state of {node.name} is not kept by key"
            raise NotKeyed.create(text, operator=node.name)
        return cls(node.name, key, ports)

    @classmethod
    def at(cls, stage: Stage, name: str) -> KeptTables:
        """The tables of a node of a stage, by the columns that its rows lie by there.

        Raises:
            NotKeyed: Its state is not kept by key.
        """
        return cls.of(stage.dag, stage.dag.node(name), stage.partitioning())

    def hashes(self, rows: pa.Table, port: int) -> pa.Array:
        """The hash (int64) of each row's key; one and the same where all rows meet."""
        if self.key.is_global:
            return constant(0, rows.num_rows)
        return key_hashes([rows.column(name) for name in self.key.on(port)])

    def owners(
        self, hashes: pa.Array, workers: Sequence[int], placement: HashPlacement
    ) -> pa.Array:
        """The worker (int64) that owns each row; the first one where all rows meet."""
        if self.key.is_global:
            return constant(min(workers), len(hashes))
        return placement.owners(hashes, workers)


def ports_of(dag: Dag, node: Node) -> tuple[int | None, ...] | None:
    """For each table of an operator's state its port; None where the state is not tables."""
    if node.operator is None:
        return None
    inputs = [dag.nodes[edge.source].schema for edge in dag.inputs(node.id)]
    return node.operator.create(inputs).state_ports
