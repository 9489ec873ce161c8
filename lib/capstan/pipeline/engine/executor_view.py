"""What can be asked of an executor without changing what it computes."""

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
        """The watermark of a node, or None while it has none.

        Raises:
            NodeNotFound: There is no such node.
        """
        return self._engine.tracker.get(node)

    def effective_watermark(self, node: NodeRef) -> int | None:
        """What a node's inputs allow its watermark to be; of a source its own.

        Raises:
            NodeNotFound: There is no such node.
        """
        return self._engine.tracker.effective_watermark(node)

    def metrics(self) -> DagExecutorMetrics:
        """The counters of the whole, as they are now."""
        return replace(self._engine.counters)

    def node_metrics(self, node: NodeRef) -> OperatorNodeMetrics:
        """The counters of a node, as they are now.

        Raises:
            NodeNotFound: There is no such node.
        """
        return replace(self._at(node).metrics)

    def reset_metrics(self) -> None:
        """Set all counters to zero."""
        self._engine.counters = DagExecutorMetrics()
        for node in self._engine.nodes:
            node.metrics = OperatorNodeMetrics()

    def source_nodes(self) -> tuple[NodeId, ...]:
        """The nodes without inputs."""
        return self.dag.sources

    def sink_nodes(self) -> tuple[NodeId, ...]:
        """The nodes without readers."""
        return self.dag.sinks

    def node_type(self, node: NodeRef) -> NodeKind:
        """What a node was declared as.

        Raises:
            NodeNotFound: There is no such node.
        """
        return self.dag.node(node).kind

    def input_count(self, node: NodeRef) -> int:
        """How many inputs a node has.

        Raises:
            NodeNotFound: There is no such node.
        """
        return len(self.dag.inputs(node))

    def _at(self, node: NodeRef) -> NodeContext:
        return self._engine.nodes[self.dag.node_id(node)]
