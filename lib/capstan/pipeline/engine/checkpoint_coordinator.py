"""Checkpoints of several participants: begun together, counted when all have reported.

Follows LaminarDB's `DagCheckpointCoordinator` and recovery manager.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from capstan.pipeline.engine.barriers import CheckpointBarrier
from capstan.pipeline.graph.errors import (
    CheckpointIncomplete,
    CheckpointInProgress,
    CheckpointNotFound,
    NoCheckpointInProgress,
    NodeNotFound,
)
from capstan.pipeline.graph.operator import OperatorState

RETAINED: Final = 3


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """A checkpoint that all participants reported to.

    Attributes:
        barrier: Which one.
        states: What each reported, by name; None from those without state.
    """

    barrier: CheckpointBarrier
    states: Mapping[str, OperatorState | None]


class CheckpointCoordinator:
    """Numbers checkpoints, and says when one is whole.

    Attributes:
        nodes: The names of those that have to report.
        max_retained: How many finished checkpoints are kept; the oldest go first.
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
        """The barrier of the checkpoint that runs, or None."""
        return self._pending

    @property
    def completed(self) -> tuple[CheckpointResult, ...]:
        """The finished checkpoints that are kept, the oldest first."""
        return tuple(self._completed.values())

    @property
    def latest(self) -> CheckpointResult | None:
        """The newest finished checkpoint, or None."""
        return next(reversed(self._completed.values()), None)

    def trigger(self) -> CheckpointBarrier:
        """Begin a checkpoint.

        Raises:
            CheckpointInProgress: One runs already.
        """
        if self._pending is not None:
            epoch = self._pending.epoch
            raise CheckpointInProgress.create(
                f"a checkpoint runs already, epoch {epoch}", epoch=epoch
            )
        self._last_id += 1
        self._epoch += 1
        self._states = {}
        self._pending = CheckpointBarrier(self._last_id, self._epoch)
        return self._pending

    def on_node_snapshot_complete(self, node: str, state: OperatorState | None = None) -> bool:
        """Note that `node` has taken its snapshot; one that reports again counts once.

        Returns:
            Whether all have reported now; False when no checkpoint runs.

        Raises:
            NodeNotFound: Nobody of that name takes part.
        """
        if node not in self.nodes:
            known = ", ".join(self.nodes)
            raise NodeNotFound.create(f"no node {node!r} takes part, only: {known}", name=node)
        if self._pending is None:
            return False
        self._states.setdefault(node, state)
        return len(self._states) == len(self.nodes)

    def finalize(self) -> CheckpointResult:
        """End the checkpoint that runs, and keep it.

        Raises:
            NoCheckpointInProgress: None runs.
            CheckpointIncomplete: Some have not reported; the checkpoint goes on.
        """
        if self._pending is None:
            raise NoCheckpointInProgress.create("no checkpoint runs that could be finished")
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
        """Give up the checkpoint that runs, if any; its id is not used again."""
        self._pending = None

    def checkpoint(self, checkpoint_id: int) -> CheckpointResult:
        """A finished checkpoint that is kept.

        Raises:
            CheckpointNotFound: It never was, or is not kept any more.
        """
        found = self._completed.get(checkpoint_id)
        if found is None:
            kept = ", ".join(str(kept) for kept in self._completed) or "none"
            raise CheckpointNotFound.create(
                f"no checkpoint {checkpoint_id}; kept: {kept}", checkpoint=checkpoint_id
            )
        return found
