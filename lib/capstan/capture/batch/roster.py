"""The roster: a tape's open workers, their held times, and the next free worker number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from capstan.capture.batch import classify
from capstan.capture.batch.commit_events import CLOSING, OPENING, Statement, moved
from capstan.core.config import MAX_WORKERS, ByColumn, ByKey, ByPartition, EventTime, Stream
from capstan.core.times import Time
from capstan.errors import InvalidRequestError
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.tape import index
from capstan.storage.tape.index import TapeState
from capstan.storage.tape.tape import Cut, Tape, append_workers, fenced


@dataclass(frozen=True, slots=True)
class OpenWorker:
    """An open worker that capture writes for; it holds one capability."""

    number: int
    label: str
    next_seq: int
    on_tape: Time
    held: Time  # decides what is late; the stream's frontier while opening


@dataclass(frozen=True, slots=True)
class Roster:
    """The workers of a tape between two micro-batches.

    Two processes that start from the same roster pick the same `free` number, so only one of them
    can register it.
    """

    commit: int  # the tape's last
    minimum: Time  # held before a worker's first event
    workers: tuple[OpenWorker, ...]
    free: int  # the first number never used
    greatest_time: int | None = None  # on tape, in microseconds, or the epoch

    @classmethod
    def load(cls, tape: Tape, cut: Cut) -> Roster:
        """Load the roster at a cut from `events` and `workers` alone."""
        # Includes workers that an unfinished batch has registered: they open with the next commit,
        # whatever it is. Otherwise they would hold the stream back from then on.

        # Read first: a number taken from now on conflicts with the one taken here.
        free = next_worker_number(tape)
        tape_state = index.tape_state(tape, cut)
        states = tape_state.workers
        if states and all(state.closed for state in states):
            raise InvalidRequestError(
                "CAP-CLOSED",
                f"stream {tape.name} is closed: it takes no more records",
                "capture later records as a new stream",
                stream=tape.name,
            )
        minimum = tape.time_type.minimum
        workers = []
        for state in states:
            if not state.closed:
                held = state.holdings[0][0]
                workers.append(OpenWorker(state.worker, state.label, state.events, held, held))
        greatest = _greatest_time(tape, tape_state, workers)
        roster = cls(cut.commit, minimum, tuple(workers), free, greatest)
        known = {state.worker for state in states}
        registered = index.worker_labels(tape, Cut(cut.commit + 1, cut.batch))
        if free > max(registered, default=-1) + 1:
            raise fenced(tape, cut.commit + 1)
        opening = {number: label for number, label in registered.items() if number not in known}
        return roster.opened_at(roster.frontier, opening)

    @property
    def frontier(self) -> Time:
        """The greatest lower bound of all held times; the minimum while there are no workers."""
        held = [worker.held for worker in self.workers] or [self.minimum]
        return Time(map(min, zip(*held, strict=True)))

    @property
    def labels(self) -> frozenset[str]:
        """The labels of the open workers."""
        return frozenset(worker.label for worker in self.workers)

    def before(self, number: int) -> Roster:
        """The roster without workers numbered `number` or higher."""
        older = tuple(worker for worker in self.workers if worker.number < number)
        return replace(self, workers=older, free=number)

    def positions(self) -> dict[int, int]:
        """The next `seq` of each worker."""
        return {worker.number: worker.next_seq for worker in self.workers}

    def with_new_workers(
        self, stream: Stream, batch_labels: Collection[str]
    ) -> tuple[Roster, Mapping[int, str]]:
        """The roster with a worker for every label declared or present in the micro-batch.

        Also its new workers, not yet registered. They open at the stream's frontier, so that
        complete times stay complete. `batch_labels` are ignored when labels are declared.
        """
        known = self.labels
        labels = [label for label in self._labels(stream, batch_labels) if label not in known]
        if not labels:
            return self, {}
        if len(known) + len(labels) > MAX_WORKERS:
            raise _too_many(stream)
        new_workers = {self.free + i: label for i, label in enumerate(labels)}
        return self.opened_at(self.frontier, new_workers), new_workers

    def register(
        self, tape: Tape, new_workers: Mapping[int, str], unless: Txn | None = None
    ) -> None:
        """Register new workers, before any events that name them."""
        if not new_workers:
            return
        commit = self.commit + 1
        # The first free number only rises; another process that has taken it has taken over.
        if not append_workers(tape, new_workers, commit, number=min(new_workers), unless=unless):
            raise fenced(tape, commit)

    def opened_at(self, frontier: Time, labels: Mapping[int, str]) -> Roster:
        """The roster with additional workers that hold `frontier` from the start."""
        added = [
            OpenWorker(number, label, 0, self.minimum, frontier) for number, label in labels.items()
        ]
        workers = sorted([*self.workers, *added], key=lambda worker: worker.number)
        return replace(
            self, workers=tuple(workers), free=max([self.free, *(n + 1 for n in labels)])
        )

    def _labels(self, stream: Stream, batch_labels: Collection[str]) -> list[str]:
        by = stream.workers
        if isinstance(by, ByKey):
            # Keyed workers open all at once: in the first batch or by a rescale.
            return [] if self.workers else [str(number) for number in range(by.count)]
        return list(by.labels) if isinstance(by, ByColumn) and by.labels else sorted(batch_labels)

    def assign(self, prepared: DataFrame, stream: Stream) -> DataFrame:
        """Prepared rows with `worker INT` (null if unknown) and `frontier BIGINT`, its held time.

        The frontier is the last coordinate of the held time: the event time if there is one.
        """
        keyed = isinstance(stream.workers, ByKey)
        held = {worker.held[-1] for worker in self.workers}
        if keyed:
            # The hash of a key selects one of the open workers, in their order.
            first = F.lit(self.workers[0].number)
            prepared = prepared.withColumn("worker", (F.col("worker") + first).cast("int"))
        if keyed and len(held) == 1:
            return prepared.withColumn("frontier", F.lit(held.pop()).cast("bigint"))
        rows = pa.table(
            {
                "label": pa.array([w.label for w in self.workers], pa.string()),
                "number": pa.array([w.number for w in self.workers], pa.int32()),
                "frontier": pa.array([w.held[-1] for w in self.workers], pa.int64()),
            }
        )
        roster = F.broadcast(prepared.sparkSession.createDataFrame(rows))
        kept = ("frontier", "data", "raw", "no_row", "at", *classify.further(prepared))
        if keyed:
            joined = prepared.drop("label").join(roster, F.col("worker") == F.col("number"), "left")
            return joined.select("worker", *kept)
        joined = prepared.drop("worker").join(roster, "label", "left")
        return joined.select(F.col("number").alias("worker"), *kept)

    def advance(self, stream: Stream, batch: int, greatest: Mapping[int, int | None]) -> Roster:
        """The roster after a micro-batch; `greatest` event times are in microseconds."""
        time = stream.time
        if not isinstance(time, EventTime):
            return self._moved(lambda _: Time((batch + 1,)))
        newest = {worker: at for worker, at in greatest.items() if at is not None}
        overall = max(newest.values(), default=None)
        if time.watermark == "stream" and overall is not None:
            newest = {worker.number: overall for worker in self.workers}

        def held(worker: OpenWorker) -> Time:
            event = worker.held[-1]
            if worker.number in newest:
                event = classify.watermark(time, newest[worker.number], event)
            return Time((batch + 1, event) if time.bitemporal else (event,))

        after = self._moved(held)
        if overall is None:
            return after
        last = overall - overall % classify.micros(time.every)
        seen = self.greatest_time
        return replace(after, greatest_time=last if seen is None else max(last, seen))

    def after_batch(self, batch: int) -> Roster:
        """The roster after a batch that advances no event time, only the epoch, if there is one."""
        return self._moved(
            lambda worker: Time((*(batch + 1 for _ in worker.held[1:]), worker.held[-1]))
        )

    def _moved(self, held: Callable[[OpenWorker], Time]) -> Roster:
        moved = (replace(worker, held=held(worker)) for worker in self.workers)
        return replace(self, workers=tuple(moved))

    def progress_since(self, before: Roster) -> list[Statement]:
        """The progress statements of a micro-batch: worker, rank, updates.

        One statement opens a worker before its messages, another advances it after them.
        """
        statements: list[Statement] = []
        for old, new in zip(before.workers, self.workers, strict=True):
            if old.on_tape != old.held:
                statements.append((old.number, OPENING, moved(old.on_tape, old.held)))
            if old.held != new.held:
                statements.append((old.number, CLOSING, moved(old.held, new.held)))
        return statements

    def committed(self, commit: int, events: Mapping[int, int]) -> Roster:
        """The roster after a commit with this number of events per worker."""
        moved = tuple(
            replace(
                worker, next_seq=worker.next_seq + events.get(worker.number, 0), on_tape=worker.held
            )
            for worker in self.workers
        )
        return replace(self, workers=moved, commit=commit)


def _too_many(stream: Stream) -> InvalidRequestError:
    by = stream.workers
    column = by.column if isinstance(by, ByColumn | ByPartition) else None
    source = "the source" if column is None else f"column {column}"
    values = "partitions" if column is None else "values"
    by_label = "list the expected values in workers.labels; or " if isinstance(by, ByColumn) else ""
    return InvalidRequestError(
        "CAP-WORKERS",
        f"stream {stream.name}: {source} has more than {MAX_WORKERS} {values}, and each "
        "needs a worker",
        f"{by_label}declare another stream with workers by a coarser column or by key",
        stream=stream.name,
    )


def next_worker_number(tape: Tape) -> int:
    """The first worker number that the tape has never used."""
    table = delta.open_table(tape.paths.workers)
    actions = pa.table(table.get_add_actions(flatten=True))
    last = delta.stat(actions, "max.worker")
    if len(last) < actions.num_rows:
        last = read_columns(tape.paths.workers, ["worker"], table)["worker"].to_pylist()
    return max(last, default=-1) + 1


def _greatest_time(tape: Tape, state: TapeState, workers: Collection[OpenWorker]) -> int | None:
    """The greatest time on tape, or the time to which the clock has advanced a worker."""
    minimum = tape.time_type.minimum[-1]
    held = [worker.held[-1] for worker in workers if worker.held[-1] > minimum]
    recorded = [] if state.greatest is None else [state.greatest]
    return max([*held, *recorded], default=None)
