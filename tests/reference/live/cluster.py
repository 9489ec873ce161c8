"""Several workers in one process, under a reproducible seeded schedule.

Messages between two workers keep their order. The schedule draws which worker takes the next step,
and with which waiting message. So every interleaving that processes and sockets could produce can
occur, and a failing one is reproduced by its seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from capstan.pipeline.keyed.stateful_functions import Data
from capstan.pipeline.state.errors import Misplaced, NotWhole
from tests.reference.errors import Stuck, UnknownWorker
from tests.reference.keyed_snapshot import KeyedSnapshot, OperatorStates, Proof, common_epoch, prove
from tests.reference.live.agenda import Agenda
from tests.reference.live.coordinator import Coordinator, Operation, Running
from tests.reference.live.job import Job
from tests.reference.live.messages import AbsBarrier, Epoch, Message
from tests.reference.live.wire import Wire
from tests.reference.live.worker import Worker


class Cluster:
    """A running job.

    Attributes:
        job: The job of every worker.
        seed: Seed of the schedule.
        coordinator: Coordinator of the workers.
        outputs: Output, each with its worker.
        snapshot: The last complete snapshot, or None.
    """

    __slots__ = ("_agenda", "_workers", "coordinator", "job", "outputs", "seed", "snapshot")

    def __init__(self, job: Job, workers: Sequence[int], seed: int = 0) -> None:
        """Start a job.

        Args:
            job: The job.
            workers: Numbers of the workers.
            seed: Seed of the schedule.
        """
        self.job = job
        self.seed = seed
        self.coordinator = Coordinator(workers)
        self.outputs: list[tuple[int, Data[object] | Epoch]] = []
        self.snapshot: KeyedSnapshot | None = None
        self._agenda = Agenda(seed)
        self._workers: dict[int, Worker] = {}
        self._join(self.coordinator.workers)

    @property
    def workers(self) -> Mapping[int, Worker]:
        """The running workers, including those that are leaving."""
        return self._workers

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return self._agenda.steps

    @property
    def sources(self) -> tuple[int, ...]:
        """Workers that accept records: not those that are leaving or still joining.

        Empty once the cluster suspends.
        """
        if self.coordinator.suspended:
            return ()
        running = self.coordinator.running
        if running is None or running.operation is Operation.SNAPSHOT:
            return self.coordinator.workers
        if running.operation is Operation.SUSPEND:
            return ()
        return tuple(w for w in running.before if w in _after(running))

    def feed(self, worker: int, message: Data[object] | Epoch) -> None:
        """Send a record or an epoch to a worker.

        Raises:
            UnknownWorker: The worker accepts no records.
        """
        if worker not in self.sources:
            known = ", ".join(map(str, self.sources)) or "none"
            suspended = self.coordinator.suspended
            reason = "the job is suspended; restart it" if suspended else f"only: {known}"
            text = f"worker {worker} accepts no records, {reason}"
            raise UnknownWorker.create(text, worker=worker)
        self._workers[worker].feed(message)

    def step(self) -> bool:
        """Let one worker take one step; return False when none can.

        Raises:
            Stuck: No step is possible, but work is left.
        """
        if self._agenda.step():
            return True
        waiting = {n: worker.waiting for n, worker in self._workers.items() if worker.waiting}
        running = self.coordinator.running
        if running is not None or waiting:
            problem = "records wait" if running is None else f"a {running.operation} is unfinished"
            text = f"{problem}, and no worker can take a step; seed {self.seed}"
            raise Stuck.create(text, waiting=waiting, seed=self.seed)
        return False

    def run(self) -> None:
        """Take steps until no message waits.

        Raises:
            Stuck: See `step`.
        """
        while self.step():
            pass

    def schedule(self) -> None:
        """Call `on_schedule` of the logics of all workers."""
        for _, worker in sorted(self._workers.items()):
            for operator in worker.operators.values():
                operator.schedule()

    def begin_rescale(self, workers: Sequence[int]) -> None:
        """Begin a rescale to these workers, while records move.

        Raises:
            ConcurrentOperation: Another operation is running.
        """
        running = self.coordinator.begin_rescale(workers)
        if running is not None:
            self._join(tuple(w for w in running.orders if w not in self._workers))
            self._order(running)

    def begin_snapshot(self) -> None:
        """Begin a snapshot of everything fed so far; `snapshot` has it once it is complete.

        Raises:
            ConcurrentOperation: Another operation is running.
        """
        self._order(self.coordinator.begin_snapshot(keyed.operator_id for keyed in self.job.keyed))

    def begin_suspend(self) -> None:
        """Begin to suspend all workers.

        Raises:
            ConcurrentOperation: Another operation is running.
        """
        self._order(self.coordinator.begin_suspend())

    def states(self) -> Mapping[int, OperatorStates]:
        """Return the current states of all keys, by worker and operator."""
        return {
            number: {op: operator.snapshot() for op, operator in worker.operators.items()}
            for number, worker in sorted(self._workers.items())
        }

    def prove(self, before: Mapping[int, OperatorStates] | None = None) -> Proof:
        """Verify the placement of keys, when no message moves: each once, with its owner.

        Args:
            before: Earlier states, none of whose keys may be missing.

        Raises:
            Misplaced: Some keys are not with their owner.
        """
        placed = self.job.placed
        after = {
            w: {o: s for o, s in ops.items() if o in placed} for w, ops in self.states().items()
        }
        return prove(before, after, self.job.placement, self.coordinator.workers)

    def restore(self, snapshot: KeyedSnapshot) -> None:
        """Replace all states by those of a snapshot, when no message moves.

        Args:
            snapshot: A snapshot of these workers; see `KeyedSnapshot.rescaled`.

        Raises:
            NotWhole: The snapshot has operators that the job lacks.
            Misplaced: The snapshot has other workers.
            StateLost, StateVersion, NoCodec: A state cannot be decoded; nothing was changed.
        """
        known = {keyed.operator_id for keyed in self.job.keyed}
        others = {op for states in snapshot.states.values() for op in states} - known
        if others:
            reason = f"the job lacks the operators {sorted(others)} of the snapshot"
            raise NotWhole.create(reason, reason=reason)
        if set(snapshot.states) != set(self._workers):
            text = (
                f"the snapshot has workers {sorted(snapshot.states)}, not {sorted(self._workers)}"
            )
            raise Misplaced.create(text)
        read = [
            (
                operator,
                {k: operator.decode(k, s) for k, s in snapshot.states[number].get(op, {}).items()},
            )
            for number, worker in self._workers.items()
            for op, operator in worker.operators.items()
        ]
        for operator, states in read:
            operator.states = states
            operator.epoch = snapshot.epoch
        for worker in self._workers.values():
            for end in worker.exchanges.values():
                end.start_from(snapshot.epoch)

    def _join(self, numbers: Sequence[int]) -> None:
        workers, version = self.coordinator.workers, self.coordinator.version
        running = self.coordinator.running
        before = version - 1 if running is not None else version
        for number in numbers:
            self._workers[number] = Worker(
                number, workers, before, self.job, self._agenda, self._send, self._out
            )

    def _order(self, running: Running) -> None:
        for worker, order in running.orders.items():
            self._workers[worker].feed(order)

    def _send(self, exchange: int, sender: int, receiver: int, message: Wire) -> None:
        self._workers[receiver].receive(exchange, sender, message)

    def _out(self, worker: int, message: Message) -> None:
        if isinstance(message, Data | Epoch):
            self.outputs.append((worker, message))
            return
        running = self.coordinator.running
        if running is None or not self.coordinator.acknowledge(worker, message):
            return
        if running.operation is Operation.SNAPSHOT:
            self.snapshot = self._whole(running)
        if running.operation is Operation.RESCALE:
            for gone in set(running.before) - set(self.coordinator.workers):
                self._leave(gone)

    def _whole(self, running: Running) -> KeyedSnapshot:
        states: dict[int, OperatorStates] = {}
        epochs: dict[tuple[int, int], int | None] = {}
        placed = self.job.placed
        for worker, order in running.orders.items():
            assert isinstance(order, AbsBarrier)
            assert order.reply.complete
            states[worker] = order.reply.snapshots
            epochs |= {(worker, op): e for op, e in order.reply.epochs.items() if op in placed}
        number = self.coordinator.snapshots
        return KeyedSnapshot(number, states, common_epoch(epochs), placed)

    def _leave(self, number: int) -> None:
        worker = self._workers.pop(number)
        held = sum(n for op, n in worker.held.items() if op in self.job.placed)
        if held or worker.waiting:
            text = f"worker {number} left with {held} keys and {worker.waiting} messages"
            raise Misplaced.create(text, worker=number, seed=self.seed)


def _after(running: Running) -> tuple[int, ...]:
    (order, *_) = running.orders.values()
    workers = getattr(order, "workers", ())
    return tuple(workers)
