"""Counters of an executor and of its nodes, with the meanings that LaminarDB gives them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DagExecutorMetrics:
    """Counters of a whole executor.

    Attributes:
        events_processed: Events that a node took in, counted at every node.
        events_routed: Events that a node passed on, once however many read it.
        multicast_publishes: Those of them that several read.
        backpressure_stalls: How often a node had to wait until its readers had made room.
        nodes_skipped: Nodes that had nothing to do when their turn came.
        watermarks_processed: Watermarks that were given, also those that moved nothing.
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
        events_in: Events that it took in.
        events_out: Events that it put out as data.
        invocations: Calls of its operator with an event, a timer or a watermark; of a node
            without operator the events that it passed on.
        total_time_ns: What these calls took, in nanoseconds; nothing for a node without operator.
        rows_in: Rows of the events that it took in.
        rows_out: Rows that it put out as data.
        late_rows: Rows that it put aside as late.
        side_rows: Rows that it put out beside.
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
