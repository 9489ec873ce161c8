"""Errors of graphs, their executors and their checkpoints.

The names are those of LaminarDB's `DagError`. Raise each with `create`, which adds its code and its
hint; facts are in `fields`.
"""

from __future__ import annotations

from capstan.errors import CodedError, InvalidRequestError, SystemFailureError


class DagError(CodedError, InvalidRequestError):
    """Base of errors for an invalid graph, or an invalid request to an executor."""

    CODE = "CAP-DAG"


class EmptyDag(DagError):
    """Raised when a graph without nodes is built."""

    CODE = "CAP-DAG-EMPTY"
    HINT = "declare at least one source and one sink, and connect them"


class DuplicateNode(DagError):
    """Raised when two nodes have the same name; `name`."""

    CODE = "CAP-DAG-DUPLICATE-NODE"
    HINT = "give each node a unique name: it identifies the node's state"


class DuplicateEdge(DagError):
    """Raised when two nodes are connected twice; `source`, `target`."""

    CODE = "CAP-DAG-DUPLICATE-EDGE"
    HINT = "connect two nodes once: a second edge would deliver every event twice"


class NodeNotFound(DagError):
    """Raised for a node name or id that is not in the graph; `name`."""

    CODE = "CAP-DAG-NODE"
    HINT = "use the name or the id of a declared node"


class CycleDetected(DagError):
    """Raised when a node is reachable from itself; `name`."""

    CODE = "CAP-DAG-CYCLE"
    HINT = "remove an edge, so that the graph has no cycle"


class DisconnectedNode(DagError):
    """Raised for a source without readers, a sink without input, or an isolated node; `name`."""

    CODE = "CAP-DAG-DISCONNECTED"
    HINT = "connect the node, or remove it"


class WrongWay(DagError):
    """Raised for an edge into a source or out of a sink; `source`, `target`."""

    CODE = "CAP-DAG-WRONG-WAY"
    HINT = "A source has no inputs and a sink no outputs; use a view if you need both."


class FanOutLimitExceeded(DagError):
    """Raised when a node has too many readers; `name`, `count`, `limit`."""

    CODE = "CAP-DAG-FAN-OUT"
    HINT = "insert a node that forwards to some of the readers"


class SchemaMismatch(DagError):
    """Raised when columns do not match; `source`, `target`, `reason`."""

    CODE = "CAP-DAG-SCHEMA"
    HINT = "declare the columns that arrive, with the same positions and types"


class KeyNotDeclared(DagError):
    """Raised for a stateful operator without a declared key; `name`."""

    CODE = "CAP-DAG-KEY"
    HINT = "declare the key columns of its state, or GLOBAL if it needs all rows together"


class BackpressureFull(DagError):
    """Raised when a bounded buffer is full until its reader drains it; `capacity`."""

    CODE = "CAP-DAG-FULL"
    HINT = "drain the buffer, then continue"


class BarrierMismatch(DagError):
    """Raised when barriers of different checkpoints meet; `expected`, `found`."""

    CODE = "CAP-DAG-BARRIER"
    HINT = "finish one checkpoint on all inputs before the next begins"


class CheckpointInProgress(DagError):
    """Raised when a checkpoint begins while another one is running; `epoch`."""

    CODE = "CAP-DAG-CHECKPOINT-RUNNING"
    HINT = "finish the running checkpoint, or abandon it"


class CheckpointCorrupt(DagError):
    """Raised when bytes are not a complete checkpoint of a supported version; `reason`."""

    CODE = "CAP-DAG-CHECKPOINT-CORRUPT"
    HINT = "restore an earlier checkpoint"


class RestoreFailed(CodedError, SystemFailureError):
    """Raised when a node cannot restore its state; nothing was restored. `node`, `reason`."""

    CODE = "CAP-DAG-RESTORE"
    HINT = "restore into the same operators; the executor is unchanged"


class StateChanged(DagError):
    """Raised for a state that another graph or operator saved; `node`, `reason`.

    Nothing was restored.
    """

    CODE = "CAP-DAG-STATE-CHANGED"
    HINT = (
        "follow it under another name, which begins without state; if the code of a logic "
        "has changed, give the logic a new version and a migration"
    )


class OperatorFailed(CodedError, SystemFailureError):
    """Raised when an operator raised; `node`, `time`, `worker`, `port`, `cause`.

    The executor is unusable until a checkpoint is restored.
    """

    CODE = "CAP-DAG-OPERATOR"
    HINT = "fix the operator or the data; a run with a failed operator publishes nothing"


class LateOutput(DagError):
    """Raised when a sink emits a time that it has declared complete; `node`, `time`."""

    CODE = "CAP-DAG-LATE-OUTPUT"
    HINT = "divert late rows before they reach the sink"
