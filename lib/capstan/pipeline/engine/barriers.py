"""Checkpoint barriers, and their alignment across the inputs of a node."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

from capstan.pipeline.graph.errors import BarrierMismatch

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

    Attributes:
        inputs: Number of inputs.
    """

    __slots__ = ("_arrived", "_barrier", "_held", "_time", "inputs")

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
