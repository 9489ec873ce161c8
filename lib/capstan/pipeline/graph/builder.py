"""Builder of pipeline graphs from named nodes and edges. Follows LaminarDB's `DagBuilder`."""

from __future__ import annotations

from typing import Self

import pyarrow as pa

from capstan.pipeline.graph.errors import CycleDetected, DuplicateNode, EmptyDag
from capstan.pipeline.graph.graph import Dag, Node, NodeKind, numbered
from capstan.pipeline.graph.operator import Key, OperatorSpec
from capstan.pipeline.graph.validation import (
    DeclaredNode,
    check_connected,
    check_edges,
    resolve_node,
    topological_order,
)


class DagBuilder:
    """Collects nodes and edges; `build` validates them and returns the graph.

    Edges may name nodes that are declared later. Ids and ports follow the order of declaration.
    Every method returns the builder. A name that is declared twice raises `DuplicateNode`.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, DeclaredNode] = {}
        self._pairs: list[tuple[str, str]] = []

    def declare(self, declared: DeclaredNode) -> Self:
        """Declare a node of any kind."""
        if declared.name in self._nodes:
            message = f"two nodes have the name {declared.name}"
            raise DuplicateNode.create(message, name=declared.name)
        self._nodes[declared.name] = declared
        return self

    def source(self, name: str, schema: pa.Schema | None = None) -> Self:
        """Declare a source of events; None stands for unknown columns."""
        return self.declare(DeclaredNode(name, NodeKind.SOURCE, schema=schema))

    def operator(
        self,
        name: str,
        operator: OperatorSpec | None = None,
        *,
        schema: pa.Schema | None = None,
        key: Key | None = None,
    ) -> Self:
        """Declare a stateful operator.

        Args:
            operator: The operator. Without it, events pass through until an executor registers one.
            schema: Columns of the output; by default they follow from the operator.
            key: Key of the state, when `operator` does not define it.
        """
        return self.declare(DeclaredNode(name, NodeKind.OPERATOR, operator, schema, key))

    def stateless_operator(
        self, name: str, operator: OperatorSpec | None = None, *, schema: pa.Schema | None = None
    ) -> Self:
        """Declare an operator without state."""
        return self.declare(DeclaredNode(name, NodeKind.STATELESS, operator, schema))

    def materialized_view(
        self,
        name: str,
        operator: OperatorSpec | None = None,
        *,
        schema: pa.Schema | None = None,
        key: Key | None = None,
    ) -> Self:
        """Declare a view; a view without readers is collected like a sink."""
        return self.declare(DeclaredNode(name, NodeKind.VIEW, operator, schema, key))

    def sink(self, name: str, schema: pa.Schema | None = None) -> Self:
        """Declare a sink, which collects events."""
        return self.declare(DeclaredNode(name, NodeKind.SINK, schema=schema))

    def sink_for(self, upstream: str, name: str, schema: pa.Schema | None = None) -> Self:
        """Declare a sink and connect `upstream` to it."""
        return self.sink(name, schema).connect(upstream, name)

    def connect(self, source: str, target: str) -> Self:
        """Connect the output of `source` to the next input port of `target`.

        Raises:
            CycleDetected: `source` and `target` are the same node.
        """
        if source == target:
            raise CycleDetected.create(f"{source} would read itself", name=source)
        self._pairs.append((source, target))
        return self

    def build(self) -> Dag:
        """Validate the declarations and return the graph.

        Raises:
            DagError: The graph is invalid; each kind of fault has its own class.
        """
        if not self._nodes:
            raise EmptyDag.create("the graph has no nodes")
        check_edges(self._nodes, self._pairs)
        names = tuple(self._nodes)
        order = topological_order(names, self._pairs)
        check_connected(self._nodes, self._pairs)
        upstream: dict[str, list[str]] = {name: [] for name in names}
        for source, target in self._pairs:
            upstream[target].append(source)
        nodes: dict[str, Node] = {}
        for number in order:
            declared = self._nodes[names[number]]
            inputs = [nodes[source] for source in upstream[declared.name]]
            nodes[declared.name] = resolve_node(number, declared, inputs)
        ids = {name: number for number, name in enumerate(names)}
        edges = numbered((ids[source], ids[target]) for source, target in self._pairs)
        return Dag(tuple(nodes[name] for name in names), edges, order)
