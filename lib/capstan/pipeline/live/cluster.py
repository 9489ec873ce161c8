"""Several workers in one process, under a seeded schedule that can be had again.

Between any two workers messages keep their order; which worker takes the next step, and with which
of the messages that wait, is drawn. So every interleaving that processes and sockets could bring
about can come up, and one that fails comes up again with its seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from capstan.pipeline.keyed.messages import AbsBarrier, Data, Epoch, Message
from capstan.pipeline.live.agenda import Agenda
from capstan.pipeline.live.coordinator import Coordinator, Operation, Running
from capstan.pipeline.live.job import Job
from capstan.pipeline.live.wire import Wire
from capstan.pipeline.live.worker import Worker
from capstan.pipeline.state.errors import Misplaced, NotWhole, Stuck, UnknownWorker
from capstan.pipeline.state.keyed_snapshot import (
    KeyedSnapshot,
    OperatorStates,
    Proof,
    common_epoch,
    prove,
)


class Cluster:
    """A running job.

    Attributes:
        job: What every worker runs.
        seed: Of the schedule.
        coordinator: Of the workers.
        outputs: What came out, each with the worker.
        snapshot: The last snapshot that is whole, or None.
    """

    __slots__ = ("_agenda", "_workers", "coordinator", "job", "outputs", "seed", "snapshot")

    def __init__(self, job: Job, workers: Sequence[int], seed: int = 0) -> None:
        """A job on these workers.

        Args:
            job: What they run.
            workers: Their numbers.
            seed: Of the schedule.
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
        """The workers that run, those that are leaving among them."""
        return self._workers

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._agenda.steps

    @property
    def sources(self) -> tuple[int, ...]:
        """The workers that take records: those that leave do no more, those that join not yet.

        None do once the cluster is to suspend.
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
        """Put a record or an epoch into a worker's chain.

        Raises:
            UnknownWorker: It takes none.
        """
        if worker not in self.sources:
            known = ", ".join(map(str, self.sources)) or "none"
            suspended = self.coordinator.suspended
            why = "all have suspended: start the job again" if suspended else f"only: {known}"
            text = f"worker {worker} takes no records, {why}"
            raise UnknownWorker.create(text, worker=worker)
        self._workers[worker].feed(message)

    def step(self) -> bool:
        """Let one worker take one step; False when nothing can move.

        Raises:
            Stuck: Nothing can move, and something is not over.
        """
        if self._agenda.step():
            return True
        waiting = {n: worker.waiting for n, worker in self._workers.items() if worker.waiting}
        running = self.coordinator.running
        if running is not None or waiting:
            what = "records wait" if running is None else f"a {running.operation} is not over"
            text = f"{what}, and no worker can take a step; seed {self.seed}"
            raise Stuck.create(text, waiting=waiting, seed=self.seed)
        return False

    def run(self) -> None:
        """Take steps until nothing waits any more.

        Raises:
            Stuck: See `step`.
        """
        while self.step():
            pass

    def schedule(self) -> None:
        """Let the logics of all workers do what does not depend on messages."""
        for _, worker in sorted(self._workers.items()):
            for operator in worker.operators.values():
                operator.schedule()

    def begin_rescale(self, workers: Sequence[int]) -> None:
        """Let these be the workers, while records move.

        Raises:
            ConcurrentOperation: Something else runs.
        """
        running = self.coordinator.begin_rescale(workers)
        if running is not None:
            self._join(tuple(w for w in running.orders if w not in self._workers))
            self._order(running)

    def begin_snapshot(self) -> None:
        """Take a snapshot of what was fed until now; it is in `snapshot` once it is whole.

        Raises:
            ConcurrentOperation: Something else runs.
        """
        self._order(self.coordinator.begin_snapshot(keyed.operator_id for keyed in self.job.keyed))

    def begin_suspend(self) -> None:
        """Let all workers come to their end.

        Raises:
            ConcurrentOperation: Something else runs.
        """
        self._order(self.coordinator.begin_suspend())

    def states(self) -> Mapping[int, OperatorStates]:
        """By worker and operator the states of all keys, as they are."""
        return {
            number: {op: operator.store.snapshot() for op, operator in worker.operators.items()}
            for number, worker in sorted(self._workers.items())
        }

    def prove(self, before: Mapping[int, OperatorStates] | None = None) -> Proof:
        """Prove where keys are, when nothing moves: each once, each with its owner.

        Args:
            before: States from before, none of whose keys may be missing.

        Raises:
            Misplaced: Some are not.
        """
        placed = self.job.placed
        after = {
            w: {o: s for o, s in ops.items() if o in placed} for w, ops in self.states().items()
        }
        return prove(before, after, self.job.placement, self.coordinator.workers)

    def restore(self, snapshot: KeyedSnapshot) -> None:
        """Let the states of a snapshot take the place of all states, when nothing moves.

        Args:
            snapshot: Of these workers; see `KeyedSnapshot.rescaled`.

        Raises:
            NotWhole: It has states of operators that are not in the job.
            Misplaced: It is of other workers.
            StateLost, StateVersion, NoCodec: A state cannot be read; nothing was changed.
        """
        known = {keyed.operator_id for keyed in self.job.keyed}
        others = {op for states in snapshot.states.values() for op in states} - known
        if others:
            reason = f"the job has no operators {sorted(others)}, of which it has states"
            raise NotWhole.create(reason, reason=reason)
        if set(snapshot.states) != set(self._workers):
            text = f"a snapshot of workers {sorted(snapshot.states)}, not {sorted(self._workers)}"
            raise Misplaced.create(text)
        read = [
            (operator, operator.store.decode_all(snapshot.states[number].get(op, {})))
            for number, worker in self._workers.items()
            for op, operator in worker.operators.items()
        ]
        for operator, states in read:
            operator.store.states = states
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
