"""Puts a graph together by names, and checks it as a whole. Follows LaminarDB's `DagBuilder`."""

from __future__ import annotations

from typing import Self

import pyarrow as pa

from capstan.pipeline.graph.errors import CycleDetected, DuplicateNode, EmptyDag
from capstan.pipeline.graph.graph import Dag, Node, NodeKind, numbered
from capstan.pipeline.graph.operator import Key, OperatorSpec
from capstan.pipeline.graph.validation import (
    Declared,
    check_connected,
    check_edges,
    ordered,
    resolved,
)


class DagBuilder:
    """Collects nodes and edges; `build` makes the graph of them.

    Edges may name nodes that are declared later. Ids and ports follow the order of declaration.
    Each method returns the builder.
    """

    __slots__ = ("_nodes", "_pairs")

    def __init__(self) -> None:
        self._nodes: dict[str, Declared] = {}
        self._pairs: list[tuple[str, str]] = []

    def source(self, name: str, schema: pa.Schema | None = None) -> Self:
        """Declare where events come in.

        Args:
            name: Its name.
            schema: Their columns; without it nothing is known of them.

        Raises:
            DuplicateNode: The name is taken.
        """
        return self._add(Declared(name, NodeKind.SOURCE, schema=schema))

    def operator(
        self,
        name: str,
        operator: OperatorSpec | None = None,
        *,
        schema: pa.Schema | None = None,
        key: Key | None = None,
    ) -> Self:
        """Declare an operator with state.

        Args:
            name: Its name: the identity of its state.
            operator: What it does; without it events pass, until an executor registers one.
            schema: The columns that it puts out; without it they follow from the operator.
            key: What its state is kept by, where `operator` does not say so itself.

        Raises:
            DuplicateNode: The name is taken.
        """
        return self._add(Declared(name, NodeKind.OPERATOR, operator, schema, key))

    def stateless_operator(
        self,
        name: str,
        operator: OperatorSpec | None = None,
        *,
        schema: pa.Schema | None = None,
    ) -> Self:
        """Declare an operator that keeps nothing from one event to the next.

        Raises:
            DuplicateNode: The name is taken.
        """
        return self._add(Declared(name, NodeKind.STATELESS, operator, schema))

    def materialized_view(
        self,
        name: str,
        operator: OperatorSpec | None = None,
        *,
        schema: pa.Schema | None = None,
        key: Key | None = None,
    ) -> Self:
        """Declare a view: collected like a sink when nobody reads it.

        Raises:
            DuplicateNode: The name is taken.
        """
        return self._add(Declared(name, NodeKind.VIEW, operator, schema, key))

    def sink(self, name: str, schema: pa.Schema | None = None) -> Self:
        """Declare where events are collected.

        Raises:
            DuplicateNode: The name is taken.
        """
        return self._add(Declared(name, NodeKind.SINK, schema=schema))

    def sink_for(self, upstream: str, name: str, schema: pa.Schema | None = None) -> Self:
        """Declare a sink and connect `upstream` to it.

        Raises:
            DuplicateNode: The name is taken.
        """
        return self.sink(name, schema).connect(upstream, name)

    def connect(self, source: str, target: str) -> Self:
        """Let `target` read what `source` puts out, on its next port.

        Raises:
            CycleDetected: They are one node.
        """
        if source == target:
            raise CycleDetected.create(f"{source} would read itself", name=source)
        self._pairs.append((source, target))
        return self

    def fan_out(self, shared: str) -> FanOut:
        """Declare several readers of one node, which need no `connect`."""
        return FanOut(self, shared)

    def build(self) -> Dag:
        """The graph, checked.

        Raises:
            EmptyDag, NodeNotFound, WrongWay, DuplicateEdge, FanOutLimitExceeded, CycleDetected,
            DisconnectedNode, KeyNotDeclared, SchemaMismatch: See there; checked in this order.
        """
        if not self._nodes:
            raise EmptyDag.create("a graph without nodes")
        check_edges(self._nodes, self._pairs)
        names = tuple(self._nodes)
        order = ordered(names, self._pairs)
        check_connected(self._nodes, self._pairs)
        feeding: dict[str, list[str]] = {name: [] for name in names}
        for source, target in self._pairs:
            feeding[target].append(source)
        found: dict[str, Node] = {}
        for number in order:
            declared = self._nodes[names[number]]
            inputs = [found[source] for source in feeding[declared.name]]
            found[declared.name] = resolved(number, declared, inputs)
        ids = {name: number for number, name in enumerate(names)}
        edges = numbered((ids[source], ids[target]) for source, target in self._pairs)
        return Dag(tuple(found[name] for name in names), edges, order)

    def _add(self, declared: Declared) -> Self:
        if declared.name in self._nodes:
            message = f"two nodes are named {declared.name}"
            raise DuplicateNode.create(message, name=declared.name)
        self._nodes[declared.name] = declared
        return self


class FanOut:
    """Declares readers of one node; `done` returns to the builder."""

    __slots__ = ("_builder", "_shared")

    def __init__(self, builder: DagBuilder, shared: str) -> None:
        self._builder = builder
        self._shared = shared

    def branch(
        self,
        name: str,
        operator: OperatorSpec | None = None,
        *,
        schema: pa.Schema | None = None,
        key: Key | None = None,
    ) -> Self:
        """Declare an operator with state that reads the shared node."""
        self._builder.operator(name, operator, schema=schema, key=key)
        self._builder.connect(self._shared, name)
        return self

    def stateless_branch(
        self,
        name: str,
        operator: OperatorSpec | None = None,
        *,
        schema: pa.Schema | None = None,
    ) -> Self:
        """Declare an operator without state that reads the shared node."""
        self._builder.stateless_operator(name, operator, schema=schema)
        self._builder.connect(self._shared, name)
        return self

    def done(self) -> DagBuilder:
        """The builder."""
        return self._builder
