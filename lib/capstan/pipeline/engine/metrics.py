"""Counters of an executor and of its nodes, with LaminarDB's meanings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DagExecutorMetrics:
    """Counters of an executor.

    Attributes:
        events_processed: Events that nodes received, counted at every node.
        events_routed: Events that nodes forwarded, counted once for any number of readers.
        multicast_publishes: Forwarded events that have several readers.
        backpressure_stalls: Times a node waited until its readers had made room.
        nodes_skipped: Nodes that had nothing to do when their turn came.
        watermarks_processed: Watermarks received, including those that moved nothing.
    """

    events_processed: int = 0
    events_routed: int = 0
    multicast_publishes: int = 0
    backpressure_stalls: int = 0
    nodes_skipped: int = 0
    watermarks_processed: int = 0


@dataclass(slots=True)
class OperatorNodeMetrics:
    """Counters of a node.

    Attributes:
        events_in: Events received.
        events_out: Events emitted as data.
        invocations: Calls of the operator with an event, a timer or a watermark; for a node without
            an operator, the events forwarded.
        total_time_ns: Duration of these calls in nanoseconds; 0 without an operator.
        rows_in: Rows of the events received.
        rows_out: Rows emitted as data.
        late_rows: Rows diverted as late.
        side_rows: Rows emitted to side outputs.
        timers_fired: Timers that fired.
    """

    events_in: int = 0
    events_out: int = 0
    invocations: int = 0
    total_time_ns: int = 0
    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    side_rows: int = 0
    timers_fired: int = 0
