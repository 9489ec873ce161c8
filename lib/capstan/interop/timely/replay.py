"""Replay: recordings of any workers, played on any number of replay workers.

Recording `i` is dealt to replay worker `i % peers`. A replay worker with `n` recordings starts out
holding `{minimum: n}`, and its counts are the sum of theirs; so it stands at its minimum until the
last of them has let it go, and its frontier only ever advances. With none it holds nothing, and is
closed at once. A record comes out at a time only while something at or before that time is held.
What all workers put out together, and where they end, does not depend on how many there are.

Timely verifies nothing here: a recording that lets go of what it never held takes it from another,
whose records then come late. So each recording is judged on its own before it counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from capstan.core.protocol import Event, Messages, Progress, StreamChecker
from capstan.core.times import Antichain, ChangeBatch, MutableAntichain
from capstan.errors import InvalidRequestError
from capstan.interop.timely.capture import refusal
from capstan.interop.timely.event_link import EventSource, source_of

_PAUSE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Emitted:
    """Records that a replay worker puts out.

    Attributes:
        worker: The replay worker, from 0.
        recording: Which of the recordings they come from, from 0.
        messages: The event.
    """

    worker: int
    recording: int
    messages: Messages


@dataclass(frozen=True, slots=True)
class Advanced:
    """How far a replay worker has come.

    Attributes:
        worker: The replay worker, from 0.
        frontier: What can still come there; empty when it is closed. Each is past the one before.
    """

    worker: int
    frontier: Antichain


Step = Emitted | Advanced


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay.

    Attributes:
        events: How many events were played.
        records: How many records came out.
        frontiers: Where each replay worker stands.
    """

    events: int
    records: int
    frontiers: tuple[Antichain, ...]

    @property
    def frontier(self) -> Antichain:
        """Where the replay stands as a whole."""
        return _meet(self.frontiers)

    @property
    def closed(self) -> bool:
        """Whether nothing more can come anywhere."""
        return self.frontier.is_empty


class ReplayWorker:
    """One replay worker: what it holds, and what it may put out.

    Attributes:
        records: How many records it put out.
    """

    def __init__(self, minimum: tuple[int, ...], recordings: int) -> None:
        """Starts out holding `{minimum: recordings}`, or nothing without any."""
        self._judges = [StreamChecker(minimum) for _ in range(recordings)]
        self._held = MutableAntichain.from_items([(minimum, recordings)])
        self._width = len(minimum)
        self.records = 0

    @property
    def holdings(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """What it holds: `(time, count)` in listing order."""
        return self._held.items()

    @property
    def frontier(self) -> Antichain:
        """The minimal elements of what it holds."""
        return self._held.frontier

    def take(self, recording: int, event: Event, name: str = "") -> Messages | None:
        """Plays the next event of one of its recordings: what it puts out, if anything.

        Args:
            recording: Which of its own recordings, from 0.
            event: The event.
            name: What the recording is called in errors.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, the recording breaks a rule; nothing has changed.
        """
        violation = self._judges[recording].judge(event)
        if violation is not None:
            raise refusal(violation, self._width, name or f"recording {recording}")
        if isinstance(event, Progress):
            self._held.apply(ChangeBatch(event.updates).items())
            return None
        self.records += event.records
        return event


class Replayer:
    """A replay of some recordings, in turns; does no waiting.

    In a turn each recording gives at most `batch` events, as far as they are there now. Each
    worker first puts out the records, and then says how far it has come, if it has.

    Attributes:
        workers: The replay workers.
        events: How many events were played so far.
    """

    def __init__(
        self,
        sources: Sequence[EventSource | Iterable[Event]],
        minimum: tuple[int, ...] = (0,),
        peers: int = 1,
        batch: int | None = 1,
    ) -> None:
        """Deals the recordings.

        Args:
            sources: The recordings, in order.
            minimum: The time at which all of them start.
            peers: The number of replay workers, at least one.
            batch: The most events of a recording in a turn; None takes all that are there now.

        Raises:
            InvalidRequestError: `CAP-PEERS`, fewer than one replay worker, or than one event a
                turn.
        """
        if peers < 1 or (batch is not None and batch < 1):
            raise InvalidRequestError(
                "CAP-PEERS",
                f"cannot be replayed on {peers} workers, {batch} events a turn",
                "Give at least one of each.",
            )
        self._sources = [source_of(source) for source in sources]
        self._batch = batch
        dealt = [range(worker, len(self._sources), peers) for worker in range(peers)]
        self.workers = tuple(ReplayWorker(minimum, len(own)) for own in dealt)
        self.events = 0
        self._told: list[Antichain | None] = [None] * peers

    @property
    def done(self) -> bool:
        """Whether nothing more will come from any recording, closed or not."""
        return all(source.ended for source in self._sources)

    @property
    def replayed(self) -> Replayed:
        """What came of it so far."""
        return Replayed(
            self.events,
            sum(worker.records for worker in self.workers),
            tuple(worker.frontier for worker in self.workers),
        )

    def turn(self) -> Iterator[Step]:
        """Plays one turn; to be drawn to its end.

        The first turn begins with where each worker starts.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, a recording breaks a rule. What came before is sound.
        """
        for number in range(len(self.workers)):
            yield from self._advanced(number)
        for number in range(len(self.workers)):
            for recording in range(number, len(self._sources), len(self.workers)):
                yield from self._played(number, recording)
            yield from self._advanced(number)

    def __iter__(self) -> Iterator[Step]:
        """All turns, until every recording has ended, or none has anything now."""
        before = -1
        while self.events > before:
            before = self.events
            yield from self.turn()

    def _played(self, number: int, recording: int) -> Iterator[Step]:
        source, worker = self._sources[recording], self.workers[number]
        taken = 0
        while self._batch is None or taken < self._batch:
            event = source.poll()
            if event is None:
                break
            messages = worker.take(recording // len(self.workers), event, f"recording {recording}")
            taken += 1
            self.events += 1
            if messages is not None:
                yield Emitted(number, recording, messages)

    def _advanced(self, number: int) -> Iterator[Step]:
        frontier = self.workers[number].frontier
        if frontier != self._told[number]:
            self._told[number] = frontier
            yield Advanced(number, frontier)


class Consumer(Protocol):
    """What a replay plays into: an executor, or anything else that takes records and frontiers."""

    def messages(self, worker: int, messages: Messages) -> None:
        """Takes records of a replay worker."""

    def advance(self, worker: int, frontier: Antichain) -> None:
        """Takes how far a replay worker has come; empty when nothing more can come there."""


def replay_into(
    consumer: Consumer,
    sources: Sequence[EventSource | Iterable[Event]],
    *,
    minimum: tuple[int, ...] = (0,),
    peers: int = 1,
    batch: int | None = 1,
    idle: Callable[[], None] | None = None,
) -> Replayed:
    """Plays recordings to their end; after timely's `replay_into`, which never ends by itself.

    A recording that ends without being closed leaves its replay worker open, and the answer says
    where it stands.

    Args:
        consumer: What takes the records and frontiers of all replay workers.
        sources: The recordings, in order: readers, links, or any events.
        minimum: The time at which all of them start.
        peers: The number of replay workers.
        batch: The most events of a recording in a turn; None takes all that are there now.
        idle: Called when no recording has anything now; by default it sleeps for 10 ms.

    Raises:
        CheckFailedError: `CAP-VIOLATION`, a recording breaks a rule. What came before is played.
        InvalidRequestError: `CAP-PEERS`, fewer than one replay worker, or than one event a turn.
    """
    replayer = Replayer(sources, minimum, peers, batch)
    pause = idle or _pause
    while True:
        before = replayer.events
        for step in replayer.turn():
            if isinstance(step, Emitted):
                consumer.messages(step.worker, step.messages)
            else:
                consumer.advance(step.worker, step.frontier)
        if replayer.done:
            return replayer.replayed
        if replayer.events == before:
            pause()


def _pause() -> None:
    time.sleep(_PAUSE)


def _meet(frontiers: Iterable[Antichain]) -> Antichain:
    met = Antichain()
    for frontier in frontiers:
        met = met.meet(frontier)
    return met
