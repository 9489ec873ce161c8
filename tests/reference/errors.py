"""Errors that only the reference engines raise."""

from __future__ import annotations

from capstan.errors import CodedError, SystemFailureError
from capstan.pipeline.graph.errors import DagError
from capstan.pipeline.state.errors import StateError


class MixedAlignment(StateError):
    """Raised when inputs have reached a barrier and a suspend marker at once; `waiting`."""

    CODE = "CAP-STATE-ALIGNMENT"
    HINT = "finish the snapshot before you suspend the job"


class Suspended(StateError):
    """Raised when a message is sent after a suspend marker."""

    CODE = "CAP-STATE-SUSPENDED"
    HINT = "restart the job; it continues from its last snapshot"


class DuplicateOperator(StateError):
    """Raised when two stateful operators have the same name; `name`."""

    CODE = "CAP-STATE-DUPLICATE"
    HINT = "give each stateful operator a unique name: it identifies the operator's state"


class UnknownWorker(StateError):
    """Raised for a worker that is not part of the job or accepts no more records; `worker`."""

    CODE = "CAP-STATE-WORKER"
    HINT = "send records to one of the workers that the coordinator names"


class ConcurrentOperation(StateError):
    """Raised when a snapshot or rescale begins while another one is running; `running`."""

    CODE = "CAP-STATE-BUSY"
    HINT = "wait for the running operation to finish, then try again"


class Stuck(CodedError, SystemFailureError):
    """Raised when workers wait for each other and none can proceed; `waiting`."""

    CODE = "CAP-STATE-STUCK"
    HINT = "this is a defect of the runtime; its seed and schedule reproduce it"


class BaseTableSchemaNotFound(DagError):
    """Raised when a view reads a table without a schema; `name`."""

    CODE = "CAP-DAG-BASE-TABLE"
    HINT = "provide the table's schema, or declare the view that produces it"


class NoCheckpointInProgress(DagError):
    """Raised when a checkpoint is finished that was never begun."""

    CODE = "CAP-DAG-NO-CHECKPOINT"
    HINT = "begin a checkpoint first"


class CheckpointIncomplete(DagError):
    """Raised when a checkpoint is finished before all nodes have reported; `pending`."""

    CODE = "CAP-DAG-CHECKPOINT-PENDING"
    HINT = "wait for the listed nodes to report; the checkpoint is still running"


class CheckpointNotFound(DagError):
    """Raised when no checkpoint has the given id; `checkpoint`."""

    CODE = "CAP-DAG-CHECKPOINT-UNKNOWN"
    HINT = "only the newest checkpoints are kept; choose one of those"
