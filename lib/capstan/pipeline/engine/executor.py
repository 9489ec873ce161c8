"""Single-threaded executor of a graph, event by event. Follows LaminarDB's `DagExecutor`.

Each call runs until all queues are empty. Nodes run in topological order. A node first handles
its queued events under its old watermark, then the new watermark: timers before `on_watermark`.
So the rows that a node emits when a window closes reach its readers before the watermark does,
and a sink's outputs always precede the watermark that completes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from capstan.pipeline.engine.barriers import CheckpointBarrier, SourceGate
from capstan.pipeline.engine.checkpoint import DagCheckpoint
from capstan.pipeline.engine.checkpointing import restore, snapshot_of
from capstan.pipeline.engine.metrics import DagExecutorMetrics, OperatorNodeMetrics
from capstan.pipeline.engine.node import NodeContext
from capstan.pipeline.engine.scheduler import Engine
from capstan.pipeline.graph.changelog import Changelog
from capstan.pipeline.graph.errors import OperatorFailed
from capstan.pipeline.graph.events import END, Event, OutputKey
from capstan.pipeline.graph.graph import Dag, NodeId, NodeRef
from capstan.pipeline.graph.operator import Operator, require
from capstan.pipeline.graph.signature import Signatures

CAPACITY: Final = 2048


class DagExecutor:
    """The execution of a graph by one replay worker.

    Methods take a node's id or name, and raise `NodeNotFound` for another. Those that run nodes
    raise `OperatorFailed` once an operator has raised, until a checkpoint is restored, and
    `BackpressureFull` for too many events and watermarks behind a barrier.

    A node without an operator forwards events. The executor collects the outputs of nodes without
    readers, and everything that a node diverts: late rows, side outputs and changes.

    Attributes:
        worker: The replay worker that it runs for; errors name it.
        capacity: Maximum number of queued events per node. A node that emits more waits until its
            reader has made room, which counts as a stall.
    """

    def __init__(self, dag: Dag, *, worker: int = 0, capacity: int = CAPACITY) -> None:
        require(capacity >= 1, f"a queue needs a capacity of at least 1, not {capacity}")
        self.dag = dag
        self.worker = worker
        self.capacity = capacity
        self._engine = Engine(dag, worker, capacity)
        self._gate = SourceGate(dag.sources, capacity)

    @property
    def changelog(self) -> Changelog:
        """Changes that operators emit, with a switch for each node."""
        return self._engine.changelog

    @property
    def has_timers(self) -> bool:
        """Whether an operator has timers; then it should not get rows of several times at once."""
        kinds = [type(node.operator) for node in self._engine.nodes if node.operator is not None]
        return any(kind.on_timer is not Operator.on_timer for kind in kinds)

    def watermark(self, node: NodeRef) -> int | None:
        """Return the watermark of a node, or None before its first one."""
        return self._engine.tracker.get(node)

    def effective_watermark(self, node: NodeRef) -> int | None:
        """Return the watermark that a node's inputs allow; for a source, its own."""
        return self._engine.tracker.effective_watermark(node)

    def metrics(self) -> DagExecutorMetrics:
        """Return a copy of the executor's counters."""
        return replace(self._engine.counters)

    def node_metrics(self, node: NodeRef) -> OperatorNodeMetrics:
        """Return a copy of a node's counters."""
        return replace(self._at(node).metrics)

    @classmethod
    def from_dag(cls, dag: Dag, *, worker: int = 0, capacity: int = CAPACITY) -> DagExecutor:
        """Create an executor of `dag`, with the operators that its nodes declare."""
        return cls(dag, worker=worker, capacity=capacity)

    def process_event(self, node: NodeRef, event: Event) -> None:
        """Process an event at a node, usually a source, until all queues are empty.

        Raises:
            SchemaMismatch: The rows do not have the columns that a source declares.
        """
        entry = self._ready(node)
        if not self.dag.inputs(entry.id):
            entry.check(event.batch)
        if not self._gate.hold(entry.id, event):
            self._engine.put(entry, 0, event)
            self._engine.run()

    def process_watermark(self, node: NodeRef, to: int) -> list[tuple[NodeId, int]]:
        """Declare that nothing before `to` reaches a node from now on, and run.

        Timers of each node fire up to its own watermark; for a join that is the least watermark of
        its inputs.

        Returns:
            The nodes whose watermark moved, with the new watermarks, in order of execution.
        """
        entry = self._ready(node)
        if self._gate.hold(entry.id, to):
            return []
        self._engine.counters.watermarks_processed += 1
        if entry.watermark is not None and to <= entry.watermark:
            return []
        return self._engine.move(entry, to)

    def finish(self) -> list[tuple[NodeId, int]]:
        """End the input of all sources."""
        moved = []
        for source in self.dag.sources:
            moved += self.process_watermark(source, END)
        return moved

    def take_sink_outputs(self, node: NodeRef) -> list[Event]:
        """Remove and return the outputs collected at a node, in order.

        For a node without readers these are its data; for any other its late rows, its side
        outputs by name, and its changes.
        """
        context = self._at(node)
        if not context.targets:
            outputs, context.data = context.data, []
            return outputs
        return [event for events in context.take().values() for event in events]

    def take_all_sink_outputs(self) -> dict[OutputKey, list[Event]]:
        """Remove and return the outputs collected at all nodes; empty outputs are left out.

        Changes have their weight as a last column `_weight`.
        """
        outputs: dict[OutputKey, list[Event]] = {}
        for node in self._engine.nodes:
            outputs |= node.take()
        return outputs

    def checkpoint(self) -> DagCheckpoint:
        """Return the state of the whole executor, nodes in order of execution.

        Raises:
            OperatorFailed: An operator cannot return its state, or one failed earlier.
            CheckpointInProgress: Some sources wait behind a barrier.
        """
        self._engine.check()
        self._gate.check_open()
        return self._snapshot(None)

    def process_checkpoint_barrier(
        self, barrier: CheckpointBarrier, source: NodeRef | None = None
    ) -> DagCheckpoint | None:
        """Process a barrier, at one source or at all that have not reached it.

        Items that follow the barrier at a source wait until all sources have reached theirs. They
        are not in the checkpoint, and are processed after it in order of arrival.

        Returns:
            The checkpoint, once the barrier has reached all sources; None before.

        Raises:
            BarrierMismatch: The barrier of another checkpoint is pending, this source has already
                reached this one, the node is not a source, or the id is not after the last one.
        """
        self._engine.check()
        number = None if source is None else self.dag.node_id(source)
        aligned = self._gate.reach(barrier, number)
        if aligned is None:
            return None
        checkpoint = self._snapshot(barrier.checkpoint_id)
        self._gate.open(barrier.checkpoint_id)
        for held in aligned.held:
            if isinstance(held.item, Event):
                self.process_event(held.node, held.item)
            else:
                self.process_watermark(held.node, held.item)
        return checkpoint

    def restore(self, checkpoint: DagCheckpoint) -> None:
        """Restore a result of `checkpoint` or `process_checkpoint_barrier`: all of it or nothing.

        A failed executor is usable again afterwards. Counters keep their values.

        Raises:
            RestoreFailed: Names the node and the reason; nothing was changed.
            StateChanged: Another operator saved a state; nothing was changed.
        """
        engine = self._engine
        try:
            restore(engine.nodes, self.changelog, checkpoint, self._signatures())
        except OperatorFailed as error:
            engine.failure = error
            raise
        engine.tracker.restore([node.watermark for node in engine.nodes])
        engine.settle()
        engine.failure = None
        self._gate.open(checkpoint.checkpoint_id or 0)

    def checkpoint_watermarks(self) -> tuple[int | None, ...]:
        """Return the watermarks by node id; None for nodes without one."""
        return self._engine.tracker.marks()

    def _at(self, node: NodeRef) -> NodeContext:
        return self._engine.nodes[self.dag.node_id(node)]

    def _ready(self, node: NodeRef) -> NodeContext:
        context = self._at(node)
        self._engine.check()
        return context

    def _snapshot(self, checkpoint_id: int | None) -> DagCheckpoint:
        try:
            return snapshot_of(self._engine.order, self._signatures(), checkpoint_id)
        except OperatorFailed as error:
            self._engine.failure = error
            raise

    def _signatures(self) -> Signatures:
        return self.dag.signatures
