"""Coordinator of checkpoints that several participants take together. Reference implementation.

No product code path uses it. Follows LaminarDB's `DagCheckpointCoordinator` and recovery manager.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from capstan.pipeline.engine.barriers import CheckpointBarrier
from capstan.pipeline.graph.errors import CheckpointInProgress, NodeNotFound
from capstan.pipeline.graph.operator import OperatorState
from tests.reference.errors import CheckpointIncomplete, CheckpointNotFound, NoCheckpointInProgress

RETAINED: Final = 3


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """A checkpoint that all participants have reported.

    Attributes:
        barrier: Its barrier.
        states: Reported states by node name; None for nodes without state.
    """

    barrier: CheckpointBarrier
    states: Mapping[str, OperatorState | None]


class CheckpointCoordinator:
    """Numbers checkpoints and detects when one is complete.

    Attributes:
        nodes: Names of the participants.
        max_retained: Number of finished checkpoints to keep; the oldest are dropped first.
    """

    __slots__ = ("_completed", "_epoch", "_last_id", "_pending", "_states", "max_retained", "nodes")

    def __init__(self, nodes: Iterable[str], max_retained: int = RETAINED) -> None:
        self.nodes = tuple(nodes)
        self.max_retained = max_retained
        self._last_id = 0
        self._epoch = 0
        self._pending: CheckpointBarrier | None = None
        self._states: dict[str, OperatorState | None] = {}
        self._completed: OrderedDict[int, CheckpointResult] = OrderedDict()

    @property
    def pending(self) -> CheckpointBarrier | None:
        """The barrier of the running checkpoint, or None."""
        return self._pending

    @property
    def completed(self) -> tuple[CheckpointResult, ...]:
        """The finished checkpoints that are kept, oldest first."""
        return tuple(self._completed.values())

    @property
    def latest(self) -> CheckpointResult | None:
        """The newest finished checkpoint, or None."""
        return next(reversed(self._completed.values()), None)

    def trigger(self) -> CheckpointBarrier:
        """Begin a checkpoint.

        Raises:
            CheckpointInProgress: Another checkpoint is running.
        """
        if self._pending is not None:
            epoch = self._pending.epoch
            message = f"a checkpoint is already running, epoch {epoch}"
            raise CheckpointInProgress.create(message, epoch=epoch)
        self._last_id += 1
        self._epoch += 1
        self._states = {}
        self._pending = CheckpointBarrier(self._last_id, self._epoch)
        return self._pending

    def on_node_snapshot_complete(self, node: str, state: OperatorState | None = None) -> bool:
        """Record that `node` has taken its snapshot; only its first report counts.

        Returns:
            Whether all participants have reported; False when no checkpoint is running.

        Raises:
            NodeNotFound: No participant has this name.
        """
        if node not in self.nodes:
            known = ", ".join(self.nodes)
            raise NodeNotFound.create(f"node {node!r} is not a participant: {known}", name=node)
        if self._pending is None:
            return False
        self._states.setdefault(node, state)
        return len(self._states) == len(self.nodes)

    def finalize(self) -> CheckpointResult:
        """Finish the running checkpoint and keep it.

        Raises:
            NoCheckpointInProgress: No checkpoint is running.
            CheckpointIncomplete: Some participants have not reported; the checkpoint stays open.
        """
        if self._pending is None:
            raise NoCheckpointInProgress.create("no checkpoint is running")
        pending = tuple(node for node in self.nodes if node not in self._states)
        if pending:
            raise CheckpointIncomplete.create(
                f"checkpoint {self._pending.checkpoint_id} waits for: {', '.join(pending)}",
                pending=list(pending),
            )
        result = CheckpointResult(self._pending, dict(self._states))
        self._completed[result.barrier.checkpoint_id] = result
        while len(self._completed) > self.max_retained:
            self._completed.popitem(last=False)
        self._pending = None
        return result

    def abandon(self) -> None:
        """Abandon the running checkpoint, if any; its id is not reused."""
        self._pending = None

    def checkpoint(self, checkpoint_id: int) -> CheckpointResult:
        """Return a finished checkpoint that is kept.

        Raises:
            CheckpointNotFound: There was none with this id, or it has been dropped.
        """
        result = self._completed.get(checkpoint_id)
        if result is None:
            kept = ", ".join(str(kept) for kept in self._completed) or "none"
            raise CheckpointNotFound.create(
                f"no checkpoint {checkpoint_id}; kept: {kept}", checkpoint=checkpoint_id
            )
        return result
