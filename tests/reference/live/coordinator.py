"""Coordinator of snapshots and rescales: begins one at a time, and detects its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.reference.errors import ConcurrentOperation
from tests.reference.live.messages import AbsBarrier, Message, Reply, Rescale, SuspendMarker


class Operation(StrEnum):
    """Operations of a coordinator."""

    SNAPSHOT = "snapshot"
    RESCALE = "rescale"
    SUSPEND = "suspend"


@dataclass(frozen=True, slots=True)
class Running:
    """A running operation.

    Attributes:
        operation: The operation.
        orders: The order for each worker.
        before: Workers before the operation.
        waiting: Workers that have not finished it.
    """

    operation: Operation
    orders: dict[int, Message]
    before: tuple[int, ...]
    waiting: set[int] = field(default_factory=set)


class Coordinator:
    """Knows the workers and their running operation.

    Attributes:
        workers: The workers.
        version: Number of rescales so far.
        snapshots: Number of snapshots begun so far.
        running: The running operation, or None.
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
        """Begin a rescale to these workers; return None when nothing changes.

        Raises:
            ConcurrentOperation: Another operation is running.
            ValueError: `workers` is empty.
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
        """Begin a snapshot on all workers.

        Raises:
            ConcurrentOperation: Another operation is running.
        """
        self._check_free(Operation.SNAPSHOT)
        self.snapshots += 1
        waiting = tuple(operators)
        orders = {w: AbsBarrier(self.snapshots, Reply(waiting)) for w in self.workers}
        return self._begin(Operation.SNAPSHOT, dict(orders))

    def begin_suspend(self) -> Running:
        """Begin to suspend all workers.

        Raises:
            ConcurrentOperation: Another operation is running.
        """
        self._check_free(Operation.SUSPEND)
        return self._begin(Operation.SUSPEND, dict.fromkeys(self.workers, SuspendMarker()))

    def acknowledge(self, worker: int, message: Message) -> bool:
        """Record that an order has passed a worker; return whether that ends the operation."""
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
            running = self.running.operation
            text = f"cannot begin a {operation} while a {running} is running"
            raise ConcurrentOperation.create(text, running=running.value)
        if self.suspended:
            text = f"cannot begin a {operation}: all workers have suspended"
            raise ConcurrentOperation.create(text, running=Operation.SUSPEND.value)
