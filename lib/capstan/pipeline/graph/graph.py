"""The graph of a pipeline: nodes, edges, and what follows from them. Immutable once built."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

import pyarrow as pa

from capstan.pipeline.graph.errors import NodeNotFound
from capstan.pipeline.graph.operator import Key, OperatorSpec
from capstan.pipeline.graph.signature import Signature, signature_of

NodeId = int
"""The position of a node in the order of declaration, from 0."""

NodeRef = int | str
"""A node by its id or its name."""

MAX_FAN_OUT: Final = 8
"""How many readers a node may have."""

ANY_COLUMNS: Final = pa.schema([])
"""A schema without columns: nothing is known of the rows, and it fits all."""


class NodeKind(StrEnum):
    """What a node was declared as. The executor treats all alike."""

    SOURCE = "source"
    OPERATOR = "operator"
    STATELESS = "stateless_operator"
    VIEW = "materialized_view"
    SINK = "sink"


class ChannelKind(StrEnum):
    """How many write to an edge's target and read from its source; derived, never given."""

    SPSC = "SPSC"
    SPMC = "SPMC"
    MPSC = "MPSC"


def operator_id(name: str) -> int:
    """The identity of the state of a node of that name: 64 bits of its BLAKE2b hash."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph.

    Attributes:
        id: Its position in the order of declaration.
        name: Its name, and the identity of its state.
        kind: What it was declared as.
        schema: The columns that it puts out; none when they are not known.
        operator: What it does with events, or None when it passes them on.
        key: What its state is kept by, or None when it has no state.
    """

    id: NodeId
    name: str
    kind: NodeKind
    schema: pa.Schema
    operator: OperatorSpec | None = None
    key: Key | None = None

    @property
    def operator_id(self) -> int:
        """A number that follows from the name alone, the same in every process and release."""
        return operator_id(self.name)


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of a graph.

    Attributes:
        id: Its position in the order of declaration.
        source: The node that writes.
        target: The node that reads.
        source_port: Which of the source's outputs it is, from 0.
        target_port: Which of the target's inputs it is, from 0.
        channel: How many write and read here.
    """

    id: int
    source: NodeId
    target: NodeId
    source_port: int
    target_port: int
    channel: ChannelKind


@dataclass(frozen=True)
class Dag:
    """A graph that has been checked; `DagBuilder.build` makes it.

    Attributes:
        nodes: By id.
        edges: By id.
        execution_order: Ids such that a node comes after all that feed it; ties by id.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    execution_order: tuple[NodeId, ...]
    _ids: Mapping[NodeRef, NodeId] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids: dict[NodeRef, NodeId] = {node.id: node.id for node in self.nodes}
        ids |= {node.name: node.id for node in self.nodes}
        object.__setattr__(self, "_ids", ids)

    def node_id(self, node: NodeRef) -> NodeId:
        """The id of a node.

        Raises:
            NodeNotFound: There is no such name or id.
        """
        found = self._ids.get(node)
        if found is None:
            known = ", ".join(sorted(n.name for n in self.nodes))
            raise NodeNotFound.create(f"no node {node!r} among: {known}", name=node)
        return found

    def node(self, node: NodeRef) -> Node:
        """The node of that name or id.

        Raises:
            NodeNotFound: There is no such name or id.
        """
        return self.nodes[self.node_id(node)]

    def inputs(self, node: NodeRef) -> tuple[Edge, ...]:
        """The edges into a node, in order of ports."""
        return self._inputs[self.node_id(node)]

    def outputs(self, node: NodeRef) -> tuple[Edge, ...]:
        """The edges out of a node, in order of ports."""
        return self._outputs[self.node_id(node)]

    @cached_property
    def sources(self) -> tuple[NodeId, ...]:
        """The nodes without inputs, by id."""
        return tuple(node.id for node in self.nodes if not self._inputs[node.id])

    @cached_property
    def sinks(self) -> tuple[NodeId, ...]:
        """The nodes without readers, by id: what they put out is collected."""
        return tuple(node.id for node in self.nodes if not self._outputs[node.id])

    @cached_property
    def shared_stages(self) -> Mapping[NodeId, tuple[NodeId, ...]]:
        """The nodes with several readers, and these readers, in order of ports."""
        return {
            node.id: tuple(edge.target for edge in self._outputs[node.id])
            for node in self.nodes
            if len(self._outputs[node.id]) > 1
        }

    @cached_property
    def signatures(self) -> Mapping[str, Signature]:
        """By name the signatures of the operators that have state, and of all that feed these.

        They go along when the graph is pickled. So whoever ships it should have asked for them:
        the text of code may be another one elsewhere.
        """
        stateful = [node.id for node in self.nodes if node.key is not None]
        kept = frozenset[NodeId]().union(*(self.ancestors(node) for node in stateful))
        found = {}
        for node in (self.nodes[number] for number in sorted(kept)):
            if node.operator is not None:
                feeding = [self.nodes[edge.source] for edge in self._inputs[node.id]]
                inputs = [(each.name, each.schema) for each in feeding]
                found[node.name] = signature_of(node.operator, node.key, inputs)
        return found

    def ancestors(self, node: NodeRef) -> frozenset[NodeId]:
        """All nodes that what `node` puts out depends on, itself among them."""
        found: set[NodeId] = set()
        waiting = [self.node_id(node)]
        while waiting:
            current = waiting.pop()
            if current not in found:
                found.add(current)
                waiting += [edge.source for edge in self._inputs[current]]
        return frozenset(found)

    def restricted_to(self, sinks: Iterable[NodeRef]) -> Dag:
        """The part of the graph that these nodes depend on; ids are given anew.

        Nodes keep names, and so the identity of their state; inputs keep their ports.

        Raises:
            NodeNotFound: There is no such name or id.
        """
        kept = sorted(frozenset[NodeId]().union(*(self.ancestors(sink) for sink in sinks)))
        return self.subgraph(kept)

    def subgraph(self, kept: Iterable[NodeId]) -> Dag:
        """These nodes and the edges among them, in the order that they have here."""
        new = {old: position for position, old in enumerate(sorted(kept))}
        nodes = tuple(
            Node(new[n.id], n.name, n.kind, n.schema, n.operator, n.key)
            for n in self.nodes
            if n.id in new
        )
        pairs = [
            (new[e.source], new[e.target]) for e in self.edges if {e.source, e.target} <= {*new}
        ]
        order = tuple(new[node] for node in self.execution_order if node in new)
        return Dag(nodes, numbered(pairs), order)

    @cached_property
    def _inputs(self) -> tuple[tuple[Edge, ...], ...]:
        return tuple(tuple(e for e in self.edges if e.target == node.id) for node in self.nodes)

    @cached_property
    def _outputs(self) -> tuple[tuple[Edge, ...], ...]:
        return tuple(tuple(e for e in self.edges if e.source == node.id) for node in self.nodes)


def numbered(pairs: Iterable[tuple[NodeId, NodeId]]) -> tuple[Edge, ...]:
    """The edges for pairs of source and target: ids, ports and channels follow from their order."""
    pairs = tuple(pairs)
    writers: dict[NodeId, int] = {}
    readers: dict[NodeId, int] = {}
    ports = []
    for source, target in pairs:
        ports.append((readers.get(source, 0), writers.get(target, 0)))
        readers[source] = readers.get(source, 0) + 1
        writers[target] = writers.get(target, 0) + 1
    return tuple(
        Edge(position, source, target, *ports[position], _channel(writers[target], readers[source]))
        for position, (source, target) in enumerate(pairs)
    )


def _channel(writers: int, readers: int) -> ChannelKind:
    if writers > 1:
        return ChannelKind.MPSC
    return ChannelKind.SPMC if readers > 1 else ChannelKind.SPSC
