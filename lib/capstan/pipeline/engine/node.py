"""A node while it runs: its queue, its timers, what it put out, and what its operator sees."""

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
from capstan.pipeline.graph.validation import why_unfit

Route = Callable[["NodeContext", Event], None]


class NodeContext:
    """The running form of a node, and the `Context` of its operator.

    Attributes:
        node: Its name.
        worker: The replay worker that runs it.
        port: The input of the event that is being handled.
        time: Of the event, the timer or the watermark that is being handled.
        watermark: Its own, or None.
        id: Its id.
        operator: What it does, or None when it passes events on.
        targets: Who reads it, each with the port.
        queue: Events that wait, each with its port.
        metrics: Its counters.
        data: What it put out and nobody reads.
        aside: Its late rows and side outputs.
        raised: The watermark that its operator declared, until the executor has taken it.
        due: Whether a timer was set that has been reached already.
    """

    __slots__ = (
        "_changelog",
        "_firing",
        "_late_key",
        "_route",
        "_schema",
        "_set",
        "_timers",
        "aside",
        "data",
        "due",
        "id",
        "metrics",
        "node",
        "operator",
        "port",
        "queue",
        "raised",
        "targets",
        "time",
        "watermark",
        "worker",
    )

    def __init__(self, node: Node, worker: int, route: Route, changelog: Changelog) -> None:
        self.node = node.name
        self.worker = worker
        self.port = 0
        self.time = 0
        self.watermark: int | None = None
        self.id = node.id
        self.operator: Operator | None = None
        self.targets: tuple[tuple[NodeContext, int], ...] = ()
        self.queue: deque[tuple[int, Event]] = deque()
        self.metrics = OperatorNodeMetrics()
        self.data: list[Event] = []
        self.aside: dict[OutputKey, list[Event]] = {}
        self.raised: int | None = None
        self.due = False
        self._schema = node.schema if node.schema.names else None
        self._late_key = OutputKey(node.name, OutputKind.LATE)
        self._route = route
        self._changelog = changelog
        self._firing: Timer | None = None
        self._timers: list[Timer] = []
        self._set: set[Timer] = set()

    def emit(self, batch: pa.RecordBatch, time: int | None = None) -> None:
        """Put out rows to all readers; those without rows are not sent."""
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
        """Put aside rows that came behind the watermark."""
        self.metrics.late_rows += batch.num_rows
        self._collect(self._late_key, batch)

    def side(self, name: str, batch: pa.RecordBatch) -> None:
        """Put out rows beside the main output, under a name."""
        self.metrics.side_rows += batch.num_rows
        self._collect(OutputKey(self.node, OutputKind.SIDE, name), batch)

    def change(self, batch: pa.RecordBatch, weight: int = 1) -> None:
        """Put out a change of a table: rows that came (+1) or went (-1)."""
        change = Change(Event(self.time, batch), weight)
        self._recorded(self._changelog.record(self.node, change))

    def replace(self, before: pa.RecordBatch, after: pa.RecordBatch) -> None:
        """Put out both halves of a change of rows, or neither."""
        old, new = Event(self.time, before), Event(self.time, after)
        self._recorded(self._changelog.record_retraction(self.node, old, new))

    def set_timer(self, time: int, tag: str = "") -> None:
        """Ask for `on_timer` once the node's watermark has reached `time`."""
        if self._firing is not None and time <= self._firing.time:
            message = f"a timer for {time} was set while the one for {self._firing.time} fires"
            raise ValueError(message)
        timer = Timer(time, tag)
        if timer not in self._set:
            self._set.add(timer)
            heappush(self._timers, timer)
        if self.watermark is not None and time <= self.watermark:
            self.due = True

    def advance_watermark(self, to: int) -> None:
        """Declare that this node puts out nothing before `to` any more."""
        self.raised = to if self.raised is None else max(self.raised, to)

    def fire(self, up_to: int) -> None:
        """Call the operator for each timer that is due, in order of time and tag."""
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
        """The timers that have not fired, in order."""
        return tuple(sorted(self._timers))

    @timers.setter
    def timers(self, timers: tuple[Timer, ...]) -> None:
        self._timers = sorted(timers)
        self._set = set(timers)
        self.due = False

    def collected(self) -> dict[OutputKey, list[Event]]:
        """All that was put out and nobody reads, but changes; only keys that have some."""
        found = {OutputKey(self.node): self.data} if self.data else {}
        return found | {key: self.aside[key] for key in sorted(self.aside)}

    def collect(self, outputs: dict[OutputKey, list[Event]]) -> None:
        """Let `outputs` take the place of all that `collected` gives."""
        self.data = outputs.pop(OutputKey(self.node), [])
        self.aside = outputs

    def check(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that do not have the columns that the node declares.

        Raises:
            SchemaMismatch: Naming the node and the column.
        """
        reason = "" if self._schema is None else why_unfit(batch.schema, self._schema)
        if reason or (self._schema is not None and not batch.schema.names):
            reason = reason or "no columns"
            message = f"rows at {self.node} have {reason}"
            raise SchemaMismatch.create(message, source=self.node, target=self.node, reason=reason)

    def failed(self, what: str, error: Exception) -> OperatorFailed:
        """The error of an operator that raised `error`; `what` follows its name in the message."""
        cause = f"{type(error).__name__}: {error}"
        return OperatorFailed.create(
            f"{self.node} {what}: {cause}",
            node=self.node,
            time=self.time,
            worker=self.worker,
            port=self.port,
            cause=cause,
        )

    def _collect(self, key: OutputKey, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.aside.setdefault(key, []).append(Event(self.time, batch))

    def _recorded(self, done: bool) -> None:
        # Switched off is a choice; full is a loss.
        if not done and self._changelog.recording(self.node):
            capacity = self._changelog.capacity
            message = f"the changelog of {self.node} holds {capacity} changes and is full"
            raise BackpressureFull.create(message, capacity=capacity)
