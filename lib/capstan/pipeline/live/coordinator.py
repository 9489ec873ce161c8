"""Begins snapshots and rescales, one at a time, and says when they are over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from capstan.pipeline.keyed.messages import AbsBarrier, Message, Reply, Rescale, SuspendMarker
from capstan.pipeline.state.errors import ConcurrentOperation


class Operation(StrEnum):
    """What a coordinator can do."""

    SNAPSHOT = "snapshot"
    RESCALE = "rescale"
    SUSPEND = "suspend"


@dataclass(frozen=True, slots=True)
class Running:
    """An operation that is not over.

    Attributes:
        operation: Which one.
        orders: What each worker was told to do.
        before: The workers before it.
        waiting: The workers that have not done it.
    """

    operation: Operation
    orders: dict[int, Message]
    before: tuple[int, ...]
    waiting: set[int] = field(default_factory=set)


class Coordinator:
    """Keeps the list of the workers, and what they are doing together.

    Attributes:
        workers: Those that take part.
        version: How many rescales there have been.
        snapshots: How many snapshots were begun.
        running: What is not over, or None.
        suspended: Whether all workers have suspended.
    """

    __slots__ = ("running", "snapshots", "suspended", "version", "workers")

    def __init__(self, workers: Iterable[int]) -> None:
        self.workers = tuple(sorted(workers))
        self.version = 0
        self.snapshots = 0
        self.running: Running | None = None
        self.suspended = False

    def begin_rescale(self, workers: Sequence[int]) -> Running | None:
        """Let these be the workers; None when they are already.

        Raises:
            ConcurrentOperation: Something else runs.
            ValueError: There would be none left.
        """
        self._check_free(Operation.RESCALE)
        after = tuple(sorted(set(workers)))
        if not after:
            message = "a job needs at least one worker"
            raise ValueError(message)
        if after == self.workers:
            return None
        self.version += 1
        order = Rescale(after, self.version)
        taking_part = {*self.workers, *after}
        return self._begin(Operation.RESCALE, dict.fromkeys(sorted(taking_part), order))

    def begin_snapshot(self, operators: Iterable[int]) -> Running:
        """Let every worker take its part of a snapshot.

        Raises:
            ConcurrentOperation: Something else runs.
        """
        self._check_free(Operation.SNAPSHOT)
        self.snapshots += 1
        asked = tuple(operators)
        orders = {w: AbsBarrier(self.snapshots, Reply(asked)) for w in self.workers}
        return self._begin(Operation.SNAPSHOT, dict(orders))

    def begin_suspend(self) -> Running:
        """Let every worker come to its end.

        Raises:
            ConcurrentOperation: Something else runs.
        """
        self._check_free(Operation.SUSPEND)
        return self._begin(Operation.SUSPEND, dict.fromkeys(self.workers, SuspendMarker()))

    def acknowledge(self, worker: int, message: Message) -> bool:
        """Note that an order has come out of a worker's chain; whether all is over by that."""
        running = self.running
        if running is None or running.orders.get(worker) != message:
            return False
        running.waiting.discard(worker)
        if running.waiting:
            return False
        self.running = None
        if isinstance(message, Rescale):
            self.workers = message.workers
        self.suspended = running.operation is Operation.SUSPEND
        return True

    def _begin(self, operation: Operation, orders: dict[int, Message]) -> Running:
        self.running = Running(operation, orders, self.workers, set(orders))
        return self.running

    def _check_free(self, operation: Operation) -> None:
        if self.running is not None:
            found = self.running.operation
            text = f"a {operation} was asked for while a {found} runs"
            raise ConcurrentOperation.create(text, running=found.value)
        if self.suspended:
            text = f"a {operation} was asked for, and all workers have suspended"
            raise ConcurrentOperation.create(text, running=Operation.SUSPEND.value)
