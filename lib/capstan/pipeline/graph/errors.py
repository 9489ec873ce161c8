"""What can be wrong with a graph, a run of it, or a checkpoint, each as an error of its own.

The names are those of LaminarDB's `DagError`. Each is raised with `of`, which fills in its code and
its hint; the facts are in `fields`.
"""

from __future__ import annotations

from capstan.errors import CodedError, InvalidRequestError, SystemFailureError


class DagError(CodedError, InvalidRequestError):
    """Something that was asked of a graph or an executor cannot be meant as it stands."""

    CODE = "CAP-DAG"


class EmptyDag(DagError):
    """Raised by a build without nodes."""

    CODE = "CAP-DAG-EMPTY"
    HINT = "Declare at least a source and a sink, and connect them."


class DuplicateNode(DagError):
    """Raised when two nodes have one name; `name`."""

    CODE = "CAP-DAG-DUPLICATE-NODE"
    HINT = "Give each node a name of its own: it is the identity of the node's state."


class DuplicateEdge(DagError):
    """Raised when two nodes are connected twice; `source`, `target`."""

    CODE = "CAP-DAG-DUPLICATE-EDGE"
    HINT = "Connect two nodes once: a second edge would deliver every event twice."


class NodeNotFound(DagError):
    """Raised for a name or an id that is not of this graph; `name`."""

    CODE = "CAP-DAG-NODE"
    HINT = "Use the name or the id of a node that was declared."


class CycleDetected(DagError):
    """Raised when a node can be reached from itself; `name`."""

    CODE = "CAP-DAG-CYCLE"
    HINT = "Remove an edge: data has to flow one way."


class DisconnectedNode(DagError):
    """Raised for a source that nobody reads, a sink that nobody feeds, a lone node; `name`."""

    CODE = "CAP-DAG-DISCONNECTED"
    HINT = "Connect the node, or leave it out."


class WrongWay(DagError):
    """Raised for an edge into a source or out of a sink; `source`, `target`."""

    CODE = "CAP-DAG-WRONG-WAY"
    HINT = "A source has no inputs and a sink no outputs; use a view to do both."


class FanOutLimitExceeded(DagError):
    """Raised when a node has too many readers; `name`, `count`, `limit`."""

    CODE = "CAP-DAG-FAN-OUT"
    HINT = "Put a node between, and let it feed some of the readers."


class SchemaMismatch(DagError):
    """Raised when columns do not fit; `source`, `target`, `reason`."""

    CODE = "CAP-DAG-SCHEMA"
    HINT = "Make the declared columns those that arrive, by position and type."


class KeyNotDeclared(DagError):
    """Raised for a stateful operator that says nothing about its key; `name`."""

    CODE = "CAP-DAG-KEY"
    HINT = "Declare the key columns of its state, or GLOBAL where it needs all rows together."


class BaseTableSchemaNotFound(DagError):
    """Raised when a view reads a table that nobody described; `name`."""

    CODE = "CAP-DAG-BASE-TABLE"
    HINT = "Give the table's schema, or declare the view that makes it."


class BackpressureFull(DagError):
    """Raised when a bounded place is full and its reader has to come first; `capacity`."""

    CODE = "CAP-DAG-FULL"
    HINT = "Take what is there, then go on."


class BarrierMismatch(DagError):
    """Raised when barriers of different checkpoints meet; `expected`, `found`."""

    CODE = "CAP-DAG-BARRIER"
    HINT = "Finish one checkpoint on all inputs before the next begins."


class CheckpointInProgress(DagError):
    """Raised when a checkpoint is begun while another one runs; `epoch`."""

    CODE = "CAP-DAG-CHECKPOINT-RUNNING"
    HINT = "Finish the running checkpoint, or abandon it."


class NoCheckpointInProgress(DagError):
    """Raised when a checkpoint is finished that was never begun."""

    CODE = "CAP-DAG-NO-CHECKPOINT"
    HINT = "Begin a checkpoint first."


class CheckpointIncomplete(DagError):
    """Raised when a checkpoint is finished before all nodes reported; `pending`."""

    CODE = "CAP-DAG-CHECKPOINT-PENDING"
    HINT = "Let the nodes that are named report; the checkpoint goes on."


class CheckpointNotFound(DagError):
    """Raised when there is no checkpoint of that id; `checkpoint`."""

    CODE = "CAP-DAG-CHECKPOINT-UNKNOWN"
    HINT = "Only the newest checkpoints are kept; name one of those."


class CheckpointCorrupt(DagError):
    """Raised when bytes are not a whole checkpoint that this version reads; `reason`."""

    CODE = "CAP-DAG-CHECKPOINT-CORRUPT"
    HINT = "Restore an earlier checkpoint."


class RestoreFailed(CodedError, SystemFailureError):
    """Raised when a node cannot take its state back; nothing was restored. `node`, `reason`."""

    CODE = "CAP-DAG-RESTORE"
    HINT = "Restore into the same operators; the executor is as it was before."


class StateChanged(DagError):
    """Raised for a state that was kept by another graph or operator; `node`, `reason`.

    Nothing was restored.
    """

    CODE = "CAP-DAG-STATE-CHANGED"
    HINT = (
        "Follow it under another name, which begins with no state; or, where the code of a logic "
        "has changed, give the logic another version and a migration."
    )


class OperatorFailed(CodedError, SystemFailureError):
    """Raised when an operator raised; `node`, `time`, `worker`, `port`, `cause`.

    The executor is of no use afterwards, until a checkpoint is restored.
    """

    CODE = "CAP-DAG-OPERATOR"
    HINT = "Mend the operator or the data; a run with a failed operator publishes nothing."


class LateOutput(DagError):
    """Raised when a sink put out a time that it had declared complete; `node`, `time`."""

    CODE = "CAP-DAG-LATE-OUTPUT"
    HINT = "Divert late rows before they reach the sink."
