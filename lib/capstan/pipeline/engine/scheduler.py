"""Scheduler of a graph's nodes in one thread: of the events between them, and their watermarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TypeVar, TypeVarTuple

from capstan.pipeline.engine.metrics import DagExecutorMetrics
from capstan.pipeline.engine.node import NodeContext
from capstan.pipeline.graph.changelog import Changelog
from capstan.pipeline.graph.errors import OperatorFailed, RestoreFailed
from capstan.pipeline.graph.events import Event
from capstan.pipeline.graph.graph import Dag, NodeId, NodeRef

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class WatermarkTracker:
    """The watermark of every node: nothing before it reaches the node.

    Follows LaminarDB's `DagWatermarkTracker`.

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


class Engine:
    """The running nodes of a graph in order of execution; unusable after a failure."""

    def __init__(self, dag: Dag, worker: int, capacity: int) -> None:
        self._capacity = capacity
        self._moving = False
        self.changelog = Changelog(node.name for node in dag.nodes)
        self.counters = DagExecutorMetrics()
        self.failure: OperatorFailed | None = None
        self.tracker = WatermarkTracker(dag)
        self.nodes = [NodeContext(n, worker, self._route, self.changelog) for n in dag.nodes]
        for node in dag.nodes:
            context = self.nodes[node.id]
            context.targets = tuple(
                (self.nodes[edge.target], edge.target_port) for edge in dag.outputs(node.id)
            )
            if node.operator is not None:
                inputs = [dag.nodes[edge.source].schema for edge in dag.inputs(node.id)]
                context.operator = node.operator.create(inputs)
        self.order = [self.nodes[number] for number in dag.execution_order]

    def check(self) -> None:
        """Refuse to continue after a failure."""
        if self.failure is not None:
            raise self.failure

    def put(self, node: NodeContext, port: int, event: Event) -> None:
        """Queue an event at a node; a full queue is drained first."""
        if len(node.queue) >= self._capacity:
            # A reader comes after all nodes upstream of it, so it cannot be running already.
            self.counters.backpressure_stalls += 1
            self._drain(node)
        node.queue.append((port, event))

    def run(self) -> None:
        """Run each node on its queue, and take the watermarks that operators declare."""
        skipped = 0
        for node in self.order:
            if node.queue:
                self._drain(node)
            else:
                skipped += 1
            if self._moving:
                self._advance(node)
        self._moving = False
        self.counters.nodes_skipped += skipped

    def move(self, node: NodeContext, to: int) -> list[tuple[NodeId, int]]:
        """Raise a node's watermark and run; return the nodes that moved, in order of execution."""
        node.advance_watermark(to)
        moved = []
        for current in self.order:
            self._drain(current)
            mark = self._advance(current)
            if mark is not None:
                moved.append((current.id, mark))
        self._moving = False
        return moved

    def settle(self) -> None:
        """Query all operators again for their holds, after a restore of their states."""
        self._moving = False
        for node in self.nodes:
            self.tracker.hold(node.id, None if node.operator is None else node.operator.hold())

    def _route(self, node: NodeContext, event: Event) -> None:
        targets = node.targets
        if not targets:
            node.data.append(event)
            return
        counters = self.counters
        counters.events_routed += 1
        if len(targets) > 1:
            counters.multicast_publishes += 1
        capacity = self._capacity
        for target, port in targets:
            if len(target.queue) < capacity:
                target.queue.append((port, event))
            else:
                self.put(target, port, event)

    def _drain(self, node: NodeContext) -> None:
        queue = node.queue
        if not queue:
            return
        operator, metrics, counters = node.operator, node.metrics, self.counters
        while queue:
            node.port, event = queue.popleft()
            rows = event.batch.num_rows
            counters.events_processed += 1
            metrics.events_in += 1
            metrics.invocations += 1
            metrics.rows_in += rows
            if operator is None:
                metrics.events_out += 1
                metrics.rows_out += rows
                self._route(node, event)
                continue
            node.time = event.time
            self._call(node, operator.process, event.batch, node)
        if node.due and node.watermark is not None:
            self._fire(node, node.watermark)
        if node.raised is not None:
            self._moving = True

    def _advance(self, node: NodeContext) -> int | None:
        moved = None
        while self._next_mark(node):
            moved = node.watermark = self.tracker.get(node.id)
            assert moved is not None
            self._fire(node, moved)
            if node.operator is not None:
                self.tracker.hold(node.id, self._call(node, node.complete, moved))
        return moved

    def _next_mark(self, node: NodeContext) -> bool:
        raised, node.raised = node.raised, None
        moved = raised is not None and self.tracker.raise_to(node.id, raised)
        return self.tracker.follow(node.id) or moved

    def _fire(self, node: NodeContext, up_to: int) -> None:
        self._call(node, node.fire, up_to)
        if node.raised is not None:
            self._moving = True

    def _call(self, node: NodeContext, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a node's operator, and add the time that it takes to the node's."""
        start = perf_counter_ns()
        try:
            result = call(*args)
        except OperatorFailed:
            raise  # A reader failed while this node was waiting for it.
        except Exception as error:
            event = f"failed at time {node.time} on worker {node.worker}"
            self.failure = node.failed(event, error)
            raise self.failure from error
        node.metrics.total_time_ns += perf_counter_ns() - start
        return result
