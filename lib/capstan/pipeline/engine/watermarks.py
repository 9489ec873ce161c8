"""How far each node of a graph has come. Pure; follows LaminarDB's `DagWatermarkTracker`."""

from __future__ import annotations

from collections.abc import Sequence

from capstan.pipeline.graph.errors import RestoreFailed
from capstan.pipeline.graph.graph import Dag, NodeId, NodeRef


class WatermarkTracker:
    """The watermark of every node: nothing before it comes to the node any more.

    A node's watermark is the least of what its inputs promise, and unset until all of them have
    one. It never goes back. What a node promises its readers is its watermark, or less where its
    operator holds it back.
    """

    __slots__ = ("_dag", "_holds", "_inputs", "_marks")

    def __init__(self, dag: Dag) -> None:
        self._dag = dag
        self._inputs = [tuple(e.source for e in dag.inputs(n.id)) for n in dag.nodes]
        self._marks: list[int | None] = [None] * len(dag.nodes)
        self._holds: list[int | None] = [None] * len(dag.nodes)

    def get(self, node: NodeRef) -> int | None:
        """The watermark of a node, or None while it has none."""
        return self._marks[self._dag.node_id(node)]

    def effective_watermark(self, node: NodeRef) -> int | None:
        """What a node's inputs allow: the least of their promises; of a source its own."""
        found = self._dag.node_id(node)
        return self._allowed(found) if self._inputs[found] else self._marks[found]

    def update_watermark(self, node: NodeRef, to: int) -> list[tuple[NodeId, int]]:
        """Move a node and all after it.

        Returns:
            The nodes that moved with their new watermarks, in order of execution; none when `to`
            is not beyond what the node has.
        """
        start = self._dag.node_id(node)
        if not self.raise_to(start, to):
            return []
        moved = [(start, to)]
        for current in self._dag.execution_order:
            if current != start and self.follow(current):
                mark = self._marks[current]
                assert mark is not None
                moved.append((current, mark))
        return moved

    def raise_to(self, node: NodeId, to: int) -> bool:
        """Move one node alone; whether it moved."""
        mark = self._marks[node]
        if mark is not None and to <= mark:
            return False
        self._marks[node] = to
        return True

    def follow(self, node: NodeId) -> bool:
        """Move one node to what its inputs allow; whether it moved."""
        allowed = self._allowed(node) if self._inputs[node] else None
        return allowed is not None and self.raise_to(node, allowed)

    def hold(self, node: NodeId, at: int | None) -> None:
        """Let a node promise its readers no more than `at`; None lifts that."""
        self._holds[node] = at

    def marks(self) -> tuple[int | None, ...]:
        """The watermarks by node id, for a checkpoint."""
        return tuple(self._marks)

    def restore(self, marks: Sequence[int | None]) -> None:
        """Take back what `marks` gave.

        Raises:
            RestoreFailed: They are of another number of nodes.
        """
        if len(marks) != len(self._marks):
            reason = f"{len(marks)} watermarks for {len(self._marks)} nodes"
            raise RestoreFailed.create(f"not the watermarks of this graph: {reason}", reason=reason)
        self._marks[:] = marks

    def _allowed(self, node: NodeId) -> int | None:
        least: int | None = None
        for source in self._inputs[node]:
            promise = self._marks[source]
            if promise is None:
                return None
            held = self._holds[source]
            if held is not None and held < promise:
                promise = held
            if least is None or promise < least:
                least = promise
        return least
