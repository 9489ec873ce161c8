"""Watermarks of a graph's nodes. Pure; follows LaminarDB's `DagWatermarkTracker`."""

from __future__ import annotations

from collections.abc import Sequence

from capstan.pipeline.graph.errors import RestoreFailed
from capstan.pipeline.graph.graph import Dag, NodeId, NodeRef


class WatermarkTracker:
    """The watermark of every node: nothing before it reaches the node.

    A node's watermark is the minimum of its inputs' promises, and unset until all inputs have one.
    It never decreases. A node promises its readers its own watermark, or less when its operator
    holds it back.
    """

    def __init__(self, dag: Dag) -> None:
        self._dag = dag
        self._inputs = [tuple(e.source for e in dag.inputs(n.id)) for n in dag.nodes]
        self._marks: list[int | None] = [None] * len(dag.nodes)
        self._holds: list[int | None] = [None] * len(dag.nodes)

    def get(self, node: NodeRef) -> int | None:
        """Return the watermark of a node, or None before its first one."""
        return self._marks[self._dag.node_id(node)]

    def effective_watermark(self, node: NodeRef) -> int | None:
        """Return the minimum of a node's input promises; for a source, its own watermark."""
        number = self._dag.node_id(node)
        return self._allowed(number) if self._inputs[number] else self._marks[number]

    def raise_to(self, node: NodeId, to: int) -> bool:
        """Raise one node's watermark; return whether it moved."""
        mark = self._marks[node]
        if mark is not None and to <= mark:
            return False
        self._marks[node] = to
        return True

    def follow(self, node: NodeId) -> bool:
        """Raise one node's watermark to what its inputs allow; return whether it moved."""
        allowed = self._allowed(node) if self._inputs[node] else None
        return allowed is not None and self.raise_to(node, allowed)

    def hold(self, node: NodeId, at: int | None) -> None:
        """Limit the node's promise to its readers to `at`; None lifts the limit."""
        self._holds[node] = at

    def marks(self) -> tuple[int | None, ...]:
        """Return the watermarks by node id, for a checkpoint."""
        return tuple(self._marks)

    def restore(self, marks: Sequence[int | None]) -> None:
        """Restore the result of `marks`."""
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
