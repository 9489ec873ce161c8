"""Runs a graph, event by event, in one thread. Follows LaminarDB's `DagExecutor`.

Each call runs until nothing waits any more. Nodes take their turn in topological order: first the
events that wait, under the node's old watermark; then the new watermark, timers before
`on_watermark`. So what a node puts out when a window closes reaches its readers before they learn
that its time is over, and a sink's outputs always come before the watermark that completes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from capstan.pipeline.engine.barriers import CheckpointBarrier
from capstan.pipeline.engine.checkpoint import DagCheckpoint
from capstan.pipeline.engine.checkpointing import Restoring, restore_all, snapshot_of
from capstan.pipeline.engine.executor_view import ExecutorView
from capstan.pipeline.engine.multicast_buffer import MulticastBuffer
from capstan.pipeline.engine.node import NodeContext
from capstan.pipeline.engine.scheduler import Engine
from capstan.pipeline.engine.source_gate import SourceGate
from capstan.pipeline.graph.changelog import Changelog
from capstan.pipeline.graph.errors import BackpressureFull, OperatorFailed
from capstan.pipeline.graph.events import END, Event, OutputKey, OutputKind
from capstan.pipeline.graph.graph import Dag, NodeId, NodeRef
from capstan.pipeline.graph.operator import Operator
from capstan.pipeline.graph.signature import Signatures

CAPACITY: Final = 2048


class DagExecutor(ExecutorView):
    """One replay worker's run of a graph.

    Nodes are named by id or by name. A node without an operator passes events on. What nodes
    without readers put out is collected there, and so is what any node puts aside (late rows, side
    outputs, changes).

    Attributes:
        dag: The graph.
        worker: The replay worker that it runs for; errors name it.
        capacity: How many events wait at a node at most. A node that puts out more has to wait
            until its reader has made room, which counts as a stall.
    """

    __slots__ = ("_gate", "_registered", "capacity", "worker")

    def __init__(self, dag: Dag, *, worker: int = 0, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            message = f"at least one event has to fit in a queue, not {capacity}"
            raise ValueError(message)
        super().__init__(dag, Engine(dag, worker, capacity))
        self.worker = worker
        self.capacity = capacity
        self._gate = SourceGate(dag.sources, capacity)
        self._registered: set[str] = set()

    @property
    def changelog(self) -> Changelog:
        """What operators put out as changes, and the switches of that."""
        return self._engine.changelog

    @property
    def has_timers(self) -> bool:
        """Whether an operator has timers, so that rows at several times should not come at once."""
        kinds = [type(node.operator) for node in self._engine.nodes if node.operator is not None]
        return any(kind.on_timer is not Operator.on_timer for kind in kinds)

    @classmethod
    def from_dag(cls, dag: Dag, *, worker: int = 0, capacity: int = CAPACITY) -> DagExecutor:
        """An executor of `dag`, with operators made from what its nodes declare."""
        return cls(dag, worker=worker, capacity=capacity)

    def register_operator(self, node: NodeRef, operator: Operator) -> None:
        """Let `operator` handle the events of a node from now on.

        Raises:
            NodeNotFound: There is no such node.
        """
        found = self._at(node)
        found.operator = operator
        self._registered.add(found.node)

    def process_event(self, node: NodeRef, event: Event) -> None:
        """Put an event in at a node, mostly a source, and run until nothing waits.

        Raises:
            NodeNotFound: There is no such node.
            SchemaMismatch: The rows do not have the columns that a source declares.
            OperatorFailed: An operator raised, now or before.
            BackpressureFull: Too much waits behind a barrier.
        """
        entry = self._ready(node)
        if not self.dag.inputs(entry.id):
            entry.check(event.batch)
        if not self._gate.hold(entry.id, event):
            self._engine.put(entry, 0, event)
            self._engine.run()

    def process_watermark(self, node: NodeRef, to: int) -> list[tuple[NodeId, int]]:
        """Declare that nothing before `to` comes to a node any more, and run.

        Timers of each node fire up to its own watermark, which for a join is the least of its
        inputs'.

        Returns:
            The nodes that moved with their new watermarks, in order of execution.

        Raises:
            NodeNotFound: There is no such node.
            OperatorFailed: An operator raised, now or before.
            BackpressureFull: Too much waits behind a barrier.
        """
        entry = self._ready(node)
        if self._gate.hold(entry.id, to):
            return []
        self._engine.counters.watermarks_processed += 1
        if entry.watermark is not None and to <= entry.watermark:
            return []
        return self._engine.move(entry, to)

    def finish(self) -> list[tuple[NodeId, int]]:
        """Declare that nothing comes any more, at all sources."""
        moved = []
        for source in self.dag.sources:
            moved += self.process_watermark(source, END)
        return moved

    def fire_timers(self, up_to: int) -> None:
        """Fire the timers of all nodes up to a time, whatever their watermarks are, and run.

        Raises:
            OperatorFailed: An operator raised, now or before.
        """
        self._engine.check()
        self._engine.fire(up_to)

    def inject_events(self, node: NodeRef, events: Iterable[Event], port: int = 0) -> None:
        """Let events wait at a node; they are handled before the next one that is put in.

        Raises:
            NodeNotFound: There is no such node.
            BackpressureFull: They do not all fit; none was put in.
        """
        entry, events = self._ready(node), list(events)
        if len(entry.queue) + len(events) > self.capacity:
            message = f"{len(events)} more events at {entry.node}, {self.capacity} may wait there"
            raise BackpressureFull.create(message, capacity=self.capacity)
        entry.queue.extend((port, event) for event in events)

    def take_sink_outputs(self, node: NodeRef) -> list[Event]:
        """Take what was collected at a node, in order.

        At a node without readers that is its data; at another one what it put aside: late rows,
        side outputs by name, changes.

        Raises:
            NodeNotFound: There is no such node.
        """
        found = self._at(node)
        if not found.targets:
            taken, found.data = found.data, []
            return taken
        taken = [event for events in found.collected().values() for event in events]
        found.collect({})
        return taken + [change.weighted() for change in self.changelog.drain(found.node)]

    def take_all_sink_outputs(self) -> dict[OutputKey, list[Event]]:
        """Take everything that was collected at any node; only keys that have some.

        Changes have their weight as a last column `_weight`.
        """
        taken: dict[OutputKey, list[Event]] = {}
        for node in self._engine.nodes:
            taken |= node.collected()
            node.collect({})
            changes = [change.weighted() for change in self.changelog.drain(node.node)]
            if changes:
                taken[OutputKey(node.node, OutputKind.CHANGE)] = changes
        return taken

    def share_sink_outputs(self, node: NodeRef, ring: MulticastBuffer[Event]) -> int:
        """Move what was collected at a node without readers to a ring, as much as fits.

        Returns:
            How many events are left, until the ring's slowest reader has read on.

        Raises:
            NodeNotFound: There is no such node.
        """
        found = self._at(node)
        waiting = found.data
        moved = min(ring.free, len(waiting))
        for event in waiting[:moved]:
            ring.publish(event)
        del waiting[:moved]
        return len(waiting)

    def checkpoint(self) -> DagCheckpoint:
        """Everything that the executor knows now, nodes in order of execution.

        Raises:
            OperatorFailed: An operator cannot give its state, or one failed before.
            CheckpointInProgress: Some sources wait behind a barrier.
        """
        self._engine.check()
        self._gate.check_open()
        return self._snapshot(None)

    def process_checkpoint_barrier(
        self, barrier: CheckpointBarrier, source: NodeRef | None = None
    ) -> DagCheckpoint | None:
        """Take in a barrier, at one source or at all that have not had it.

        What comes to a source behind its barrier waits until all sources have reached theirs. It
        is not in the checkpoint, and is handled after it in the order in which it came.

        Returns:
            The checkpoint, once the barrier has reached all sources; None before.

        Raises:
            NodeNotFound: There is no such node.
            BarrierMismatch: Another checkpoint's barrier is pending, this source has had it, the
                node is no source, or its id is not after the last one's.
            OperatorFailed: An operator raised, now or before.
        """
        self._engine.check()
        number = None if source is None else self.dag.node_id(source)
        if not self._gate.reach(barrier, number):
            return None
        taken = self._snapshot(barrier.checkpoint_id)
        for held in self._gate.open(barrier.checkpoint_id):
            if isinstance(held.item, Event):
                self.process_event(held.node, held.item)
            else:
                self.process_watermark(held.node, held.item)
        return taken

    def restore(self, checkpoint: DagCheckpoint, *, allow_missing: bool = False) -> None:
        """Take back everything that a checkpoint knows; all of it or nothing.

        A failed executor is of use again afterwards. Counters stay as they are.

        Args:
            checkpoint: What `checkpoint` or `process_checkpoint_barrier` gave.
            allow_missing: Leave out nodes that only the checkpoint knows, and let nodes that only
                this graph knows keep their operators as they are.

        Raises:
            RestoreFailed: Naming the node and the reason; nothing was changed.
            StateChanged: A state is that of another operator; nothing was changed.
        """
        self.restore_together([(self, checkpoint)], allow_missing=allow_missing)

    @classmethod
    def restore_together(
        cls, pairs: Sequence[tuple[DagExecutor, DagCheckpoint]], *, allow_missing: bool = False
    ) -> None:
        """Let several executors take back a checkpoint each: all of them or none.

        Raises:
            RestoreFailed: Naming the node and the reason; nothing was changed.
            StateChanged: A state is that of another operator; nothing was changed.
        """
        parts = [executor._restoring(checkpoint) for executor, checkpoint in pairs]
        try:
            restore_all(parts, allow_missing=allow_missing)
        except OperatorFailed as error:
            for executor, _ in pairs:
                executor._engine.failure = error
            raise
        for executor, checkpoint in pairs:
            executor._restored(checkpoint)

    def checkpoint_watermarks(self) -> tuple[int | None, ...]:
        """The watermarks by node id; None where there is none."""
        return self._engine.tracker.marks()

    def restore_watermarks(self, marks: Sequence[int | None]) -> None:
        """Take back what `checkpoint_watermarks` gave; no timer fires.

        Raises:
            RestoreFailed: They are of another number of nodes.
        """
        self._engine.tracker.restore(marks)
        for node, mark in zip(self._engine.nodes, marks, strict=True):
            node.watermark = mark
        self._engine.settle()

    def _ready(self, node: NodeRef) -> NodeContext:
        found = self._at(node)
        self._engine.check()
        return found

    def _snapshot(self, checkpoint_id: int | None) -> DagCheckpoint:
        try:
            return snapshot_of(
                self._engine.order, self.changelog, self._signatures(), checkpoint_id
            )
        except OperatorFailed as error:
            self._engine.failure = error
            raise

    def _restoring(self, checkpoint: DagCheckpoint) -> Restoring:
        return Restoring(self._engine.nodes, self.changelog, checkpoint, self._signatures())

    def _restored(self, checkpoint: DagCheckpoint) -> None:
        engine = self._engine
        engine.tracker.restore([node.watermark for node in engine.nodes])
        engine.settle()
        engine.failure = None
        self._gate.reset(checkpoint.checkpoint_id or 0)

    def _signatures(self) -> Signatures:
        # Of operators that were put in by hand the graph knows nothing.
        every = self.dag.signatures
        return {name: each for name, each in every.items() if name not in self._registered}
