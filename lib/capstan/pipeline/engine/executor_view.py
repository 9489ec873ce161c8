"""Read-only view of an executor."""

from __future__ import annotations

from dataclasses import replace

from capstan.pipeline.engine.metrics import DagExecutorMetrics, OperatorNodeMetrics
from capstan.pipeline.engine.node import NodeContext
from capstan.pipeline.engine.scheduler import Engine
from capstan.pipeline.graph.graph import Dag, NodeId, NodeKind, NodeRef


class ExecutorView:
    """Watermarks, counters and nodes of a running graph.

    Attributes:
        dag: The graph.
    """

    __slots__ = ("_engine", "dag")

    def __init__(self, dag: Dag, engine: Engine) -> None:
        self.dag = dag
        self._engine = engine

    def watermark(self, node: NodeRef) -> int | None:
        """Return the watermark of a node, or None before its first one.

        Raises:
            NodeNotFound: The graph has no such node.
        """
        return self._engine.tracker.get(node)

    def effective_watermark(self, node: NodeRef) -> int | None:
        """Return the watermark that a node's inputs allow; for a source, its own.

        Raises:
            NodeNotFound: The graph has no such node.
        """
        return self._engine.tracker.effective_watermark(node)

    def metrics(self) -> DagExecutorMetrics:
        """Return a copy of the executor's counters."""
        return replace(self._engine.counters)

    def node_metrics(self, node: NodeRef) -> OperatorNodeMetrics:
        """Return a copy of a node's counters.

        Raises:
            NodeNotFound: The graph has no such node.
        """
        return replace(self._at(node).metrics)

    def reset_metrics(self) -> None:
        """Reset all counters to zero."""
        self._engine.counters = DagExecutorMetrics()
        for node in self._engine.nodes:
            node.metrics = OperatorNodeMetrics()

    def source_nodes(self) -> tuple[NodeId, ...]:
        """Return the nodes without inputs."""
        return self.dag.sources

    def sink_nodes(self) -> tuple[NodeId, ...]:
        """Return the nodes without readers."""
        return self.dag.sinks

    def node_type(self, node: NodeRef) -> NodeKind:
        """Return the kind of a node.

        Raises:
            NodeNotFound: The graph has no such node.
        """
        return self.dag.node(node).kind

    def input_count(self, node: NodeRef) -> int:
        """Return the number of a node's inputs.

        Raises:
            NodeNotFound: The graph has no such node.
        """
        return len(self.dag.inputs(node))

    def _at(self, node: NodeRef) -> NodeContext:
        return self._engine.nodes[self.dag.node_id(node)]
