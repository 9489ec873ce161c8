"""The immutable graph of a pipeline: nodes, edges, and properties derived from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Final

import pyarrow as pa

from capstan.pipeline.graph.errors import NodeNotFound
from capstan.pipeline.graph.operator import Key, OperatorSpec
from capstan.pipeline.graph.signature import Signature, signature_of

NodeId = int
"""Position of a node in the order of declaration, from 0."""

NodeRef = int | str
"""A node's id or its name."""

MAX_FAN_OUT: Final = 8
"""Maximum number of readers of a node."""

ANY_COLUMNS: Final = pa.schema([])
"""A schema without columns: the columns are unknown, and any schema matches."""


class NodeKind(StrEnum):
    """Kind with which a node was declared. The executor treats all kinds alike."""

    SOURCE = "source"
    OPERATOR = "operator"
    STATELESS = "stateless_operator"
    VIEW = "materialized_view"
    SINK = "sink"


class ChannelKind(StrEnum):
    """Numbers of writers and readers of an edge's ends; derived from the graph."""

    SPSC = "SPSC"
    SPMC = "SPMC"
    MPSC = "MPSC"


def operator_id(name: str) -> int:
    """Identify a node's state by 64 bits of the BLAKE2b hash of its name, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph; its name also identifies its state.

    Attributes:
        schema: Columns of the output; empty when they are unknown.
        operator: The operator, or None when the node forwards events.
        key: Key of the state, or None when the node has no state.
    """

    id: NodeId
    name: str
    kind: NodeKind
    schema: pa.Schema
    operator: OperatorSpec | None = None
    key: Key | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """A directed edge between two nodes; ports are counted from 0."""

    id: int
    source: NodeId
    target: NodeId
    source_port: int
    target_port: int
    channel: ChannelKind


@dataclass(frozen=True)
class Dag:
    """A validated graph; `DagBuilder.build` creates it.

    Nodes and edges are at the positions of their ids. The order of execution is topological, ties
    by id.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    execution_order: tuple[NodeId, ...]

    def node_id(self, node: NodeRef) -> NodeId:
        """Return the id of a node."""
        number = self._ids.get(node)
        if number is None:
            known = ", ".join(sorted(n.name for n in self.nodes))
            raise NodeNotFound.create(f"no node {node!r}; the nodes are: {known}", name=node)
        return number

    def node(self, node: NodeRef) -> Node:
        """Return the node with this name or id."""
        return self.nodes[self.node_id(node)]

    def inputs(self, node: NodeRef) -> tuple[Edge, ...]:
        """Return the edges into a node, in order of ports."""
        return self._inputs[self.node_id(node)]

    def outputs(self, node: NodeRef) -> tuple[Edge, ...]:
        """Return the edges out of a node, in order of ports."""
        return self._outputs[self.node_id(node)]

    @cached_property
    def sources(self) -> tuple[NodeId, ...]:
        """Nodes without inputs, by id."""
        return tuple(node.id for node in self.nodes if not self._inputs[node.id])

    @cached_property
    def sinks(self) -> tuple[NodeId, ...]:
        """Nodes without readers, by id; their outputs are collected."""
        return tuple(node.id for node in self.nodes if not self._outputs[node.id])

    @cached_property
    def shared_stages(self) -> Mapping[NodeId, tuple[NodeId, ...]]:
        """Nodes with several readers, and those readers in order of ports."""
        return {
            node.id: tuple(edge.target for edge in self._outputs[node.id])
            for node in self.nodes
            if len(self._outputs[node.id]) > 1
        }

    @cached_property
    def signatures(self) -> Mapping[str, Signature]:
        """Signatures of stateful operators and of all operators upstream of them, by node name.

        They are pickled with the graph. Compute them before the graph is shipped: the source text
        of code may differ on another machine.
        """
        stateful = [node.id for node in self.nodes if node.key is not None]
        signatures = {}
        for node in (self.nodes[number] for number in sorted(self.ancestors(*stateful))):
            if node.operator is not None:
                upstream = [self.nodes[edge.source] for edge in self._inputs[node.id]]
                inputs = [(source.name, source.schema) for source in upstream]
                signatures[node.name] = signature_of(node.operator, node.key, inputs)
        return signatures

    def ancestors(self, *nodes: NodeRef) -> frozenset[NodeId]:
        """Return all nodes upstream of these, and the nodes themselves."""
        visited: set[NodeId] = set()
        pending = [self.node_id(node) for node in nodes]
        while pending:
            current = pending.pop()
            if current not in visited:
                visited.add(current)
                pending += [edge.source for edge in self._inputs[current]]
        return frozenset(visited)

    def restricted_to(self, sinks: Iterable[NodeRef]) -> Dag:
        """The part of the graph that these nodes depend on: new ids, same names and ports."""
        numbers = sorted(self.ancestors(*sinks))
        new = {old: position for position, old in enumerate(numbers)}
        nodes = tuple(replace(self.nodes[number], id=new[number]) for number in numbers)
        # All inputs of a node that is kept are kept too.
        pairs = [(new[e.source], new[e.target]) for e in self.edges if e.target in new]
        order = tuple(new[node] for node in self.execution_order if node in new)
        return Dag(nodes, numbered(pairs), order)

    @cached_property
    def _ids(self) -> Mapping[NodeRef, NodeId]:
        return {ref: node.id for node in self.nodes for ref in (node.id, node.name)}

    @cached_property
    def _inputs(self) -> tuple[tuple[Edge, ...], ...]:
        return tuple(tuple(e for e in self.edges if e.target == node.id) for node in self.nodes)

    @cached_property
    def _outputs(self) -> tuple[tuple[Edge, ...], ...]:
        return tuple(tuple(e for e in self.edges if e.source == node.id) for node in self.nodes)


def numbered(pairs: Iterable[tuple[NodeId, NodeId]]) -> tuple[Edge, ...]:
    """Number edges, given as source and target; ids, ports and channels follow from their order."""
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
