"""A running node: its queue, its timers, its outputs, and its operator's context."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

import pyarrow as pa

from capstan.pipeline.engine.metrics import OperatorNodeMetrics
from capstan.pipeline.graph.changelog import Change, Changelog
from capstan.pipeline.graph.errors import BackpressureFull, OperatorFailed, SchemaMismatch
from capstan.pipeline.graph.events import Event, OutputKey, OutputKind, Timer
from capstan.pipeline.graph.graph import Node
from capstan.pipeline.graph.operator import Operator
from capstan.pipeline.graph.validation import mismatch

Route = Callable[["NodeContext", Event], None]


class NodeContext:
    """A running node, and the `Context` of its operator."""

    def __init__(self, node: Node, worker: int, route: Route, changelog: Changelog) -> None:
        self.node = node.name
        self.worker = worker
        self.port = 0
        self.time = 0  # of the current event or timer, or the current watermark
        self.watermark: int | None = None
        self.id = node.id
        self.operator: Operator | None = None  # None when it forwards events
        self.targets: tuple[tuple[NodeContext, int], ...] = ()
        self.queue: deque[tuple[int, Event]] = deque()
        self.metrics = OperatorNodeMetrics()
        self.data: list[Event] = []
        self.aside: dict[OutputKey, list[Event]] = {}  # late rows and side outputs
        # Watermark declared by its operator that the executor has not taken yet.
        self.raised: int | None = None
        self.due = False  # whether a timer was set for a time that has already been reached
        self._schema = node.schema if node.schema.names else None
        self._late_key = OutputKey(node.name, OutputKind.LATE)
        self._change_key = OutputKey(node.name, OutputKind.CHANGE)
        self._route = route
        self._changelog = changelog
        self._firing: Timer | None = None
        self._timers: list[Timer] = []
        self._set: set[Timer] = set()

    def emit(self, batch: pa.RecordBatch, time: int | None = None) -> None:
        """Emit rows to all readers; empty batches are not sent."""
        rows = batch.num_rows
        if not rows:
            return
        if self._schema is not None and not self._schema.equals(batch.schema):
            self.check(batch)
        metrics = self.metrics
        metrics.events_out += 1
        metrics.rows_out += rows
        self._route(self, Event(self.time if time is None else time, batch))

    def late(self, batch: pa.RecordBatch) -> None:
        """Divert rows that arrived behind the watermark."""
        self.metrics.late_rows += batch.num_rows
        self._collect(self._late_key, batch)

    def side(self, name: str, batch: pa.RecordBatch) -> None:
        """Emit rows to a named side output."""
        self.metrics.side_rows += batch.num_rows
        self._collect(OutputKey(self.node, OutputKind.SIDE, name), batch)

    def change(self, batch: pa.RecordBatch, weight: int = 1) -> None:
        """Emit a change of a table: inserted (+1) or deleted (-1) rows."""
        change = Change(Event(self.time, batch), weight)
        self._check_recorded(self._changelog.record(self.node, change))

    def replace(self, before: pa.RecordBatch, after: pa.RecordBatch) -> None:
        """Emit both halves of a row update, or neither."""
        old, new = Event(self.time, before), Event(self.time, after)
        self._check_recorded(self._changelog.record_retraction(self.node, old, new))

    def set_timer(self, time: int, tag: str = "") -> None:
        """Request `on_timer` once the node's watermark reaches `time`."""
        if self._firing is not None and time <= self._firing.time:
            message = f"cannot set a timer for {time} while the one for {self._firing.time} fires"
            raise ValueError(message)
        timer = Timer(time, tag)
        if timer not in self._set:
            self._set.add(timer)
            heappush(self._timers, timer)
        if self.watermark is not None and time <= self.watermark:
            self.due = True

    def advance_watermark(self, to: int) -> None:
        """Declare that this node emits nothing before `to` from now on."""
        self.raised = to if self.raised is None else max(self.raised, to)

    def complete(self, mark: int) -> int | None:
        """Tell the operator that its watermark has reached `mark`; return its hold."""
        assert self.operator is not None
        self.time = mark
        self.operator.on_watermark(mark, self)
        return self.operator.hold()

    def fire(self, up_to: int) -> None:
        """Call the operator for each due timer, in order of time and tag."""
        self.due = False
        timers, operator = self._timers, self.operator
        while timers and timers[0].time <= up_to:
            timer = heappop(timers)
            self._set.discard(timer)
            assert operator is not None
            self.time, self._firing = timer.time, timer
            self.metrics.timers_fired += 1
            try:
                operator.on_timer(timer, self)
            finally:
                self._firing = None

    @property
    def timers(self) -> tuple[Timer, ...]:
        """Timers that have not fired, in order."""
        return tuple(sorted(self._timers))

    @timers.setter
    def timers(self, timers: tuple[Timer, ...]) -> None:
        self._timers = sorted(timers)
        self._set = set(timers)
        self.due = False

    def collected(self) -> dict[OutputKey, list[Event]]:
        """Return all outputs that no node reads, changes last; empty outputs are left out."""
        outputs = {OutputKey(self.node): self.data} if self.data else {}
        outputs |= {key: self.aside[key] for key in sorted(self.aside)}
        changes = [change.weighted() for change in self._changelog.peek(self.node)]
        return outputs | ({self._change_key: changes} if changes else {})

    def collect(self, outputs: dict[OutputKey, list[Event]]) -> None:
        """Replace everything that `collected` returns by `outputs`."""
        self._changelog.drain(self.node)
        for event in outputs.pop(self._change_key, []):
            self._changelog.record(self.node, Change.of(event))
        self.data = outputs.pop(OutputKey(self.node), [])
        self.aside = outputs

    def take(self) -> dict[OutputKey, list[Event]]:
        """Remove everything that `collected` returns, and return it."""
        outputs = self.collected()
        if outputs:
            self.collect({})
        return outputs

    def check(self, batch: pa.RecordBatch) -> None:
        """Refuse rows without the columns that the node declares."""
        if self._schema is None:
            return
        reason = mismatch(batch.schema, self._schema) if batch.schema.names else "no columns"
        if reason:
            message = f"rows at {self.node} have {reason}"
            raise SchemaMismatch.create(message, source=self.node, target=self.node, reason=reason)

    def failed(self, event: str, error: Exception) -> OperatorFailed:
        """Create the error of an operator that raised `error`; `event` completes its message."""
        cause = f"{type(error).__name__}: {error}"
        return OperatorFailed.create(
            f"{self.node} {event}: {cause}",
            node=self.node,
            time=self.time,
            worker=self.worker,
            port=self.port,
            cause=cause,
        )

    def _collect(self, key: OutputKey, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.aside.setdefault(key, []).append(Event(self.time, batch))

    def _check_recorded(self, recorded: bool) -> None:
        # A switched-off changelog is intended; a full one would lose changes.
        if not recorded and self._changelog.recording(self.node):
            capacity = self._changelog.capacity
            message = f"the changelog of {self.node} is full; it holds {capacity} changes"
            raise BackpressureFull.create(message, capacity=capacity)
