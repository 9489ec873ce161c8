"""Checkpoint barriers, and their alignment across the inputs of a node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

from capstan.pipeline.graph.errors import BackpressureFull, BarrierMismatch, CheckpointInProgress
from capstan.pipeline.graph.events import Event
from capstan.pipeline.graph.graph import NodeId

Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """The boundary between a checkpoint and what follows it; ids and epochs count from 1."""

    checkpoint_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Aligned(Generic[Held]):
    """All inputs have reached the barrier; held items are in order of time, then of arrival."""

    barrier: CheckpointBarrier
    held: tuple[Held, ...]


class BarrierAligner(Generic[Held]):
    """Waits until a number of inputs have all reached the same barrier.

    Follows LaminarDB's `BarrierAligner`, except that barriers of different checkpoints never
    align, and that no held item is lost.
    """

    def __init__(self, inputs: int, time: Callable[[Held], int] = attrgetter("time")) -> None:
        self.inputs = inputs
        self._time = time
        self._barrier: CheckpointBarrier | None = None
        self._arrived: set[Hashable] = set()
        self._held: list[Held] = []

    @property
    def pending(self) -> CheckpointBarrier | None:
        """The barrier that some inputs have reached, or None."""
        return self._barrier

    def behind(self, source: Hashable) -> bool:
        """Whether items that now arrive from `source` follow its barrier."""
        return source in self._arrived

    def process_barrier(self, source: Hashable, barrier: CheckpointBarrier) -> Aligned[Held] | None:
        """Record that `source` has reached `barrier`.

        Returns:
            The held items, once the last input has reached it; None before.

        Raises:
            BarrierMismatch: The barrier of another checkpoint is pending, or `source` has already
                reached this one.
        """
        if self._barrier is not None and (self._barrier != barrier or source in self._arrived):
            raise BarrierMismatch.create(
                f"barrier of checkpoint {barrier.checkpoint_id} from {source!r} while checkpoint "
                f"{self._barrier.checkpoint_id} is pending",
                expected=self._barrier.checkpoint_id,
                found=barrier.checkpoint_id,
            )
        self._barrier = barrier
        self._arrived.add(source)
        if len(self._arrived) < self.inputs:
            return None
        held = tuple(sorted(self._held, key=self._time))
        self._held.clear()
        return Aligned(barrier, held)

    def buffer_if_aligned(self, source: Hashable, item: Held) -> bool:
        """Hold `item` if its input has reached the barrier; return whether it was held."""
        if source not in self._arrived:
            return False
        self._held.append(item)
        return True

    def complete_checkpoint(self) -> tuple[Held, ...]:
        """End the alignment, even an unfinished one; return the held items in order of time."""
        held = tuple(sorted(self._held, key=self._time))
        self._barrier = None
        self._arrived.clear()
        self._held.clear()
        return held


@dataclass(frozen=True, slots=True)
class BufferedItem:
    """An item that reached a source after its barrier; arrivals count from 1."""

    arrival: int
    node: NodeId
    item: Event | int


class SourceGate:
    """Holds items that follow a barrier, in order of arrival.

    An executor runs each event to completion before the next. So the graph is empty when its
    sources are aligned, and its inner nodes need no alignment.
    """

    def __init__(self, sources: Sequence[NodeId], capacity: int) -> None:
        self._sources = tuple(sources)
        self._capacity = capacity
        self._count = 0
        self.last = 0  # the last barrier that all sources have reached
        # By arrival: only a watermark that arrived before an event may make it late.
        self._aligner: BarrierAligner[BufferedItem] = BarrierAligner(
            len(self._sources), time=attrgetter("arrival")
        )

    def check_open(self) -> None:
        """Refuse while some sources wait behind a barrier."""
        pending = self._aligner.pending
        if pending is not None:
            message = f"sources are waiting behind the barrier of epoch {pending.epoch}"
            raise CheckpointInProgress.create(message, epoch=pending.epoch)

    def hold(self, node: NodeId, item: Event | int) -> bool:
        """Hold an event or a watermark if its source is behind a barrier; return whether it was."""
        if not self._aligner.behind(node):
            return False
        if self._count >= self._capacity:
            message = f"{self._count} events and watermarks already wait behind a barrier"
            raise BackpressureFull.create(message, capacity=self._capacity)
        self._count += 1
        return self._aligner.buffer_if_aligned(node, BufferedItem(self._count, node, item))

    def reach(
        self, barrier: CheckpointBarrier, source: NodeId | None
    ) -> Aligned[BufferedItem] | None:
        """Record a barrier at one source, or at all that remain; None until all have it."""
        if barrier.checkpoint_id <= self.last:
            raise BarrierMismatch.create(
                f"barrier of checkpoint {barrier.checkpoint_id} after {self.last}",
                expected=self.last + 1,
                found=barrier.checkpoint_id,
            )
        if source is not None and source not in self._sources:
            expected = barrier.checkpoint_id
            message = f"barriers enter at sources, but node {source} is not a source"
            raise BarrierMismatch.create(message, expected=expected, found=expected)
        remaining = [number for number in self._sources if not self._aligner.behind(number)]
        for number in remaining if source is None else [source]:
            aligned = self._aligner.process_barrier(number, barrier)
            if aligned is not None:
                return aligned
        return None

    def open(self, last: int) -> None:
        """Continue after the barrier `last`, without the items that are still held."""
        self.last = last
        self._count = 0
        self._aligner.complete_checkpoint()
