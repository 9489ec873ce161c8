"""The executor with all methods of LaminarDB's, which the conformance scenarios call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from capstan.pipeline.engine.executor import CAPACITY, DagExecutor
from capstan.pipeline.engine.metrics import DagExecutorMetrics, OperatorNodeMetrics
from capstan.pipeline.graph.errors import BackpressureFull
from capstan.pipeline.graph.events import Event
from capstan.pipeline.graph.graph import Dag, NodeRef
from capstan.pipeline.graph.operator import Operator
from capstan.pipeline.graph.signature import Signatures


class ScenarioExecutor(DagExecutor):
    """An executor whose operators, queues and watermarks can be set by hand."""

    __slots__ = ("_registered",)

    def __init__(self, dag: Dag, *, worker: int = 0, capacity: int = CAPACITY) -> None:
        super().__init__(dag, worker=worker, capacity=capacity)
        self._registered: set[str] = set()

    def reset_metrics(self) -> None:
        """Reset all counters to zero."""
        self._engine.counters = DagExecutorMetrics()
        for node in self._engine.nodes:
            node.metrics = OperatorNodeMetrics()

    def input_count(self, node: NodeRef) -> int:
        """Return the number of a node's inputs."""
        return len(self.dag.inputs(node))

    def register_operator(self, node: NodeRef, operator: Operator) -> None:
        """Make `operator` handle the events of a node from now on."""
        context = self._at(node)
        context.operator = operator
        self._registered.add(context.node)

    def fire_timers(self, up_to: int) -> None:
        """Fire the timers of all nodes up to a time, whatever their watermarks, and run."""
        engine = self._engine
        engine.check()
        for node in engine.order:
            engine._drain(node)
            engine._fire(node, up_to)
            if engine._moving:
                engine._advance(node)
        engine._moving = False

    def inject_events(self, node: NodeRef, events: Iterable[Event], port: int = 0) -> None:
        """Queue events at a node; they are processed before the next event given to it."""
        entry, events = self._ready(node), list(events)
        if len(entry.queue) + len(events) > self.capacity:
            message = (
                f"the queue of {entry.node} holds {self.capacity} events; {len(events)} do not fit"
            )
            raise BackpressureFull.create(message, capacity=self.capacity)
        entry.queue.extend((port, event) for event in events)

    def restore_watermarks(self, marks: Sequence[int | None]) -> None:
        """Restore the result of `checkpoint_watermarks`; no timer fires."""
        self._engine.tracker.restore(marks)
        for node, mark in zip(self._engine.nodes, marks, strict=True):
            node.watermark = mark
        self._engine.settle()

    def _signatures(self) -> Signatures:
        # The graph does not describe operators that were registered by hand.
        signatures = self.dag.signatures
        return {name: s for name, s in signatures.items() if name not in self._registered}
