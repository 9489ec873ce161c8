"""Where barriers come in: sources behind theirs wait until all have reached it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from capstan.pipeline.engine.barriers import BarrierAligner, CheckpointBarrier
from capstan.pipeline.graph.errors import BackpressureFull, BarrierMismatch, CheckpointInProgress
from capstan.pipeline.graph.events import Event
from capstan.pipeline.graph.graph import NodeId


@dataclass(frozen=True, slots=True)
class BufferedItem:
    """What came to a source behind its barrier.

    Attributes:
        arrival: Counts what is held, from 1.
        node: The source.
        item: An event, or a watermark.
    """

    arrival: int
    node: NodeId
    item: Event | int


class SourceGate:
    """Holds what comes behind a barrier, in the order in which it came.

    An executor runs each event through to the end before the next, so nothing is under way inside
    the graph when its sources are aligned, and no node inside needs to wait.

    Attributes:
        last: The id of the last barrier that all sources reached.
    """

    __slots__ = ("_aligned", "_aligner", "_capacity", "_count", "_sources", "last")

    def __init__(self, sources: Sequence[NodeId], capacity: int) -> None:
        self._sources = tuple(sources)
        self._capacity = capacity
        self._count = 0
        self._aligned: tuple[BufferedItem, ...] = ()
        self.last = 0
        # By arrival: an event may only be late because of a watermark that came before it.
        self._aligner: BarrierAligner[BufferedItem] = BarrierAligner(
            len(self._sources), time=attrgetter("arrival")
        )

    def check_open(self) -> None:
        """Refuse while some sources wait.

        Raises:
            CheckpointInProgress: They do.
        """
        pending = self._aligner.pending
        if pending is not None:
            message = f"some sources wait behind the barrier of epoch {pending.epoch}"
            raise CheckpointInProgress.create(message, epoch=pending.epoch)

    def hold(self, node: NodeId, item: Event | int) -> bool:
        """Hold an event or a watermark, if its source is behind a barrier; whether it was held.

        Raises:
            BackpressureFull: As much is held already as may wait.
        """
        if not self._aligner.behind(node):
            return False
        if self._count >= self._capacity:
            message = f"{self._count} events and watermarks wait behind a barrier already"
            raise BackpressureFull.create(message, capacity=self._capacity)
        self._count += 1
        return self._aligner.buffer_if_aligned(node, BufferedItem(self._count, node, item))

    def reach(self, barrier: CheckpointBarrier, source: NodeId | None) -> bool:
        """Note that a source, or each that has not yet, has reached a barrier; whether all have.

        Raises:
            BarrierMismatch: Another checkpoint's barrier is pending, the source has reached this
                one already or is none, or the id is not after the last one's.
        """
        if barrier.checkpoint_id <= self.last:
            raise BarrierMismatch.create(
                f"barrier of checkpoint {barrier.checkpoint_id} after {self.last}",
                expected=self.last + 1,
                found=barrier.checkpoint_id,
            )
        if source is not None and source not in self._sources:
            found = barrier.checkpoint_id
            message = f"barriers come in at sources, and node {source} is none"
            raise BarrierMismatch.create(message, expected=found, found=found)
        waiting = [number for number in self._sources if not self._aligner.behind(number)]
        for number in waiting if source is None else [source]:
            aligned = self._aligner.process_barrier(number, barrier)
            if aligned is not None:
                self._aligned = aligned.held
                return True
        return False

    def open(self, checkpoint_id: int) -> tuple[BufferedItem, ...]:
        """Let out what is held, once the checkpoint has been taken."""
        held, self._aligned = self._aligned, ()
        self.last = checkpoint_id
        self._count = 0
        return held + self._aligner.complete_checkpoint()

    def reset(self, last: int) -> None:
        """Forget what is held, and go on after the barrier `last`."""
        self.open(last)
