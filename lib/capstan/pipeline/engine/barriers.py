"""Barriers of checkpoints, and how the inputs of a node wait for each other behind them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

from capstan.pipeline.graph.errors import BarrierMismatch

Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """The cut between what belongs to a checkpoint and what comes after it.

    Attributes:
        checkpoint_id: Which checkpoint, from 1.
        epoch: Counts checkpoints that were begun, from 1.
    """

    checkpoint_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Aligned(Generic[Held]):
    """All inputs have reached the barrier.

    Attributes:
        barrier: The barrier.
        held: What came behind it on inputs that reached it earlier, in order of time, and at one
            time in order of arrival.
    """

    barrier: CheckpointBarrier
    held: tuple[Held, ...]


class BarrierAligner(Generic[Held]):
    """Waits until each of a number of inputs has reached the same barrier.

    Follows LaminarDB's `BarrierAligner`, except that barriers of different checkpoints never
    align, and that nothing that is held gets lost.

    Attributes:
        inputs: How many inputs there are.
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
        """Whether what now comes from `source` is behind its barrier."""
        return source in self._arrived

    def process_barrier(self, source: Hashable, barrier: CheckpointBarrier) -> Aligned[Held] | None:
        """Note that `source` has reached `barrier`.

        Returns:
            What was held, once the last input has reached it; None before.

        Raises:
            BarrierMismatch: Another checkpoint's barrier is pending, or `source` has reached
                this one already.
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
        """Hold `item` when it is behind its input's barrier; whether it was held."""
        if source not in self._arrived:
            return False
        self._held.append(item)
        return True

    def complete_checkpoint(self) -> tuple[Held, ...]:
        """End the wait, also an unfinished one; returns what is still held, in order of time."""
        held = tuple(sorted(self._held, key=self._time))
        self._barrier = None
        self._arrived.clear()
        self._held.clear()
        return held
