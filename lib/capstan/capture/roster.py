"""The roster: which workers a tape has, what each holds, and which number comes next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from capstan.capture import classify
from capstan.capture.progress_events import CLOSING, OPENING, Statement, moved
from capstan.core.config import MOST_WORKERS, ByColumn, ByKey, ByPartition, EventTime, Stream
from capstan.core.times import Time
from capstan.errors import InvalidRequestError
from capstan.storage import delta
from capstan.storage.arrow_scan import read_columns
from capstan.storage.tape import index
from capstan.storage.tape.index import TapeState
from capstan.storage.tape.tape import Cut, Tape, append_workers, fenced


@dataclass(frozen=True, slots=True)
class OpenWorker:
    """A worker that capture writes for; it holds one capability.

    Attributes:
        number: The worker.
        label: What it stands for.
        next_seq: The position of its next event.
        on_tape: The time it holds as the tape tells it.
        held: The time it is judged by: the stream's frontier, for one that is just being opened.
    """

    number: int
    label: str
    next_seq: int
    on_tape: Time
    held: Time


@dataclass(frozen=True, slots=True)
class Roster:
    """The workers of a tape between two micro-batches.

    Attributes:
        commit: The ordinal of the tape's last commit.
        minimum: The time that a worker holds before its first event.
        workers: By number.
        free: The first number that no worker has had. Two that go on from one roster take the same
            one, so that only one of them can write down whom it gives it to.
        seen: The greatest event time on tape in microseconds (or epoch, where times have none), or
            None.
    """

    commit: int
    minimum: Time
    workers: tuple[OpenWorker, ...]
    free: int
    seen: int | None = None

    @classmethod
    def load(cls, tape: Tape, cut: Cut) -> Roster:
        """The roster at a cut, from `events` and `workers` alone.

        With the workers that an unfinished batch has written down: they open with the next commit,
        whatever it is, or they would hold the stream back from then on.

        Raises:
            InvalidRequestError: `CAP-CLOSED` when the stream is closed.
            FencedError: `CAP-FENCED` when another process has written down workers of a later
                commit.
        """
        # Before all else: a number that is taken from now on is in the way of who takes this one.
        free = number_of_next(tape)
        found = index.tape_state(tape, cut)
        states = found.workers
        if states and all(state.closed for state in states):
            raise InvalidRequestError(
                "CAP-CLOSED",
                f"stream {tape.name} is closed: no record can come any more",
                "capture what follows as a new stream",
                stream=tape.name,
            )
        minimum = tape.time_type.minimum
        workers = []
        for state in states:
            if not state.closed:
                held = state.holdings[0][0]
                workers.append(OpenWorker(state.worker, state.label, state.events, held, held))
        roster = cls(cut.commit, minimum, tuple(workers), free, _seen(tape, found, workers))
        there = {state.worker for state in states}
        written = index.worker_labels(tape, Cut(cut.commit + 1, cut.batch))
        if free > max(written, default=-1) + 1:
            raise fenced(tape, cut.commit + 1)
        fresh = {n: label for n, label in written.items() if n not in there}
        return roster.opened_at(roster.frontier, fresh)

    @property
    def frontier(self) -> Time:
        """The greatest time that is before all held ones; the minimum while there is no worker."""
        held = [worker.held for worker in self.workers] or [self.minimum]
        return Time(map(min, zip(*held, strict=True)))

    @property
    def labels(self) -> frozenset[str]:
        """What the workers stand for."""
        return frozenset(worker.label for worker in self.workers)

    def before(self, number: int) -> Roster:
        """The roster without the workers from a number on."""
        kept = tuple(worker for worker in self.workers if worker.number < number)
        return replace(self, workers=kept, free=number)

    def positions(self) -> dict[int, int]:
        """The next `seq` by worker."""
        return {worker.number: worker.next_seq for worker in self.workers}

    def with_labels(
        self, stream: Stream, found: Collection[str]
    ) -> tuple[Roster, Mapping[int, str]]:
        """The roster with a worker for every label that is declared, or is in the micro-batch.

        Args:
            stream: The declaration.
            found: Labels of the micro-batch; they do not count where labels are declared.

        Returns:
            The roster, and the workers that are new: they open at the stream's frontier, so that
            what was complete stays complete, and have yet to be written down.

        Raises:
            InvalidRequestError: `CAP-WORKERS` when they are too many.
        """
        known = self.labels
        labels = [label for label in self._labels(stream, found) if label not in known]
        if not labels:
            return self, {}
        if len(known) + len(labels) > MOST_WORKERS:
            raise _too_many(stream)
        fresh = {self.free + i: label for i, label in enumerate(labels)}
        return self.opened_at(self.frontier, fresh), fresh

    def write_down(self, tape: Tape, fresh: Mapping[int, str]) -> None:
        """Write down new workers, before the events that name them.

        Raises:
            FencedError: `CAP-FENCED` when another process has taken their numbers.
        """
        if not fresh:
            return
        opened = self.commit + 1
        # The first free number only rises; another process that has taken it has taken over.
        if not append_workers(tape, fresh, opened, number=min(fresh)):
            raise fenced(tape, opened)

    def opened_at(self, frontier: Time, labels: Mapping[int, str]) -> Roster:
        """The roster with further workers, which are judged by a frontier from the beginning."""
        added = [OpenWorker(n, x, 0, self.minimum, frontier) for n, x in labels.items()]
        everyone = sorted([*self.workers, *added], key=lambda worker: worker.number)
        return replace(
            self, workers=tuple(everyone), free=max([self.free, *(n + 1 for n in labels)])
        )

    def _labels(self, stream: Stream, found: Collection[str]) -> list[str]:
        by = stream.workers
        if isinstance(by, ByKey):
            # All of them open at once: in the first batch, or by a rescale.
            return [] if self.workers else [str(number) for number in range(by.count)]
        return list(by.labels) if isinstance(by, ByColumn) and by.labels else sorted(found)

    def assign(self, prepared: DataFrame, stream: Stream) -> DataFrame:
        """Prepared rows with `worker INT` (null: unknown) and the `frontier BIGINT` it holds.

        The frontier is the last coordinate: the event time, where there is one.
        """
        keyed = isinstance(stream.workers, ByKey)
        held = {worker.held[-1] for worker in self.workers}
        if keyed:
            # The hash of a key names one of those that are open, in their order.
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
        if keyed:
            joined = prepared.drop("label").join(roster, F.col("worker") == F.col("number"), "left")
            return joined.select("worker", "frontier", "data", "raw", "at")
        joined = prepared.drop("worker").join(roster, "label", "left")
        return joined.select(F.col("number").alias("worker"), "frontier", "data", "raw", "at")

    def advance(self, stream: Stream, batch: int, greatest: Mapping[int, int | None]) -> Roster:
        """The roster after a micro-batch.

        Args:
            stream: The declaration.
            batch: The micro-batch.
            greatest: Per worker with records, the greatest event time in microseconds.
        """
        time = stream.time
        if not isinstance(time, EventTime):
            return self._moved(lambda _: Time((batch + 1,)))
        present = {worker: at for worker, at in greatest.items() if at is not None}
        everywhere = max(present.values(), default=None)
        if time.watermark == "stream" and everywhere is not None:
            present = {worker.number: everywhere for worker in self.workers}

        def held(worker: OpenWorker) -> Time:
            event = worker.held[-1]
            if worker.number in present:
                event = classify.watermark(time, present[worker.number], event)
            return Time((batch + 1, event) if time.bitemporal else (event,))

        after = self._moved(held)
        if everywhere is None:
            return after
        last = everywhere - everywhere % classify.micros(time.every)
        return replace(after, seen=last if self.seen is None else max(last, self.seen))

    def past(self, batch: int) -> Roster:
        """The roster after a batch that moves no event time; its number does, if times have it."""
        return self._moved(
            lambda worker: Time((*(batch + 1 for _ in worker.held[1:]), worker.held[-1]))
        )

    def _moved(self, held: Callable[[OpenWorker], Time]) -> Roster:
        moved = (replace(worker, held=held(worker)) for worker in self.workers)
        return replace(self, workers=tuple(moved))

    def progress_since(self, before: Roster) -> list[Statement]:
        """The progress statements of a micro-batch: worker, rank, updates.

        One opens a worker before its messages, the other moves it on after them.
        """
        statements: list[Statement] = []
        for old, new in zip(before.workers, self.workers, strict=True):
            if old.on_tape != old.held:
                statements.append((old.number, OPENING, moved(old.on_tape, old.held)))
            if old.held != new.held:
                statements.append((old.number, CLOSING, moved(old.held, new.held)))
        return statements

    def written(self, commit: int, events: Mapping[int, int]) -> Roster:
        """The roster once a commit with so many events per worker stands on the tape."""
        moved = tuple(
            replace(
                worker,
                next_seq=worker.next_seq + events.get(worker.number, 0),
                on_tape=worker.held,
            )
            for worker in self.workers
        )
        return replace(self, workers=moved, commit=commit)


def _too_many(stream: Stream) -> InvalidRequestError:
    by = stream.workers
    column = by.column if isinstance(by, ByColumn | ByPartition) else None
    source = "the source" if column is None else f"column {column}"
    values = "partitions" if column is None else "values"
    named = "in workers.labels name those that may come; or " if isinstance(by, ByColumn) else ""
    return InvalidRequestError(
        "CAP-WORKERS",
        f"stream {stream.name}: {source} has more than {MOST_WORKERS} {values}, and each would "
        "have a worker",
        f"{named}declare another stream, with workers by a coarser column or by key",
        stream=stream.name,
    )


def number_of_next(tape: Tape) -> int:
    """The first number that no worker of a tape has had."""
    table = delta.open_table(tape.paths.workers)
    actions = pa.table(table.get_add_actions(flatten=True))
    last = delta.stat(actions, "max.worker")
    if len(last) < actions.num_rows:
        last = read_columns(tape.paths.workers, ["worker"], table)["worker"].to_pylist()
    return max(last, default=-1) + 1


def _seen(tape: Tape, state: TapeState, workers: Collection[OpenWorker]) -> int | None:
    """The greatest time on tape, or where the clock has moved a worker beyond it."""
    minimum = tape.time_type.minimum[-1]
    moved_to = [worker.held[-1] for worker in workers if worker.held[-1] > minimum]
    seen = state.greatest
    return max([*moved_to, *([] if seen is None else [seen])], default=None)
