"""Replay: recordings of any number of workers, played on any number of replay workers.

Recording `i` goes to replay worker `i % peers`. A replay worker with `n` recordings starts with the
capabilities `{minimum: n}`, and its counts are the sum of theirs. So it stays at its minimum until
every recording has dropped it, and its frontier only advances. Without recordings it holds nothing
and is closed at once. A record is emitted only while the worker holds something at or before each
element of its stamp; without elements, at any time. The combined output and the final frontier do
not depend on the number of workers.

Timely checks nothing here: a recording that drops a capability it never held takes it from another
recording, whose records are then late. So each recording is checked on its own before it counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from capstan.core.parallelism import check_parallelism
from capstan.core.protocol import Event, Messages, Progress, StreamChecker
from capstan.core.times import PRODUCT, Antichain, MutableAntichain, Time, TimeOrder
from capstan.interop.timely.capture import violation_error
from capstan.interop.timely.event_link import EventSource, source_of
from capstan.interop.timely.types.event_types import records_of

_PAUSE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Emitted:
    """Records that a replay worker emits; worker and recording are numbered from 0."""

    worker: int
    recording: int
    messages: Messages


@dataclass(frozen=True, slots=True)
class Advanced:
    """Progress of a replay worker, from 0; its `frontier` is empty when it is closed."""

    worker: int
    frontier: Antichain


Step = Emitted | Advanced


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: events played, records emitted, and each worker's frontier."""

    events: int
    records: int
    frontiers: tuple[Antichain, ...]

    @property
    def frontier(self) -> Antichain:
        """The frontier of the whole replay."""
        order = self.frontiers[0].order
        return Antichain(tuple(time for frontier in self.frontiers for time in frontier), order)

    @property
    def closed(self) -> bool:
        """Whether no worker can emit anything more."""
        return self.frontier.is_empty


class ReplayWorker:
    """One replay worker: its capabilities and its output."""

    def __init__(
        self, minimum: tuple[int, ...], recordings: int, order: TimeOrder = PRODUCT
    ) -> None:
        """Start with the capabilities `{minimum: recordings}`, or none without recordings."""
        self._checkers = [StreamChecker(minimum, order=order) for _ in range(recordings)]
        self._held = MutableAntichain.from_items([(minimum, recordings)], order)
        self._width = len(minimum)
        self.records = 0

    @property
    def holdings(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Held capabilities: `(time, count)` in listing order."""
        return self._held.items()

    @property
    def frontier(self) -> Antichain:
        """The minimal elements of the held capabilities."""
        return self._held.frontier

    def take(self, recording: int, event: Event, name: str = "") -> Messages | None:
        """Play the next event of one of this worker's recordings; returns its output, if any.

        Args:
            recording: Index among the recordings of this worker, from 0.
            name: Name of the recording in errors.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, the recording breaks a rule; nothing has changed.
        """
        violation = self._checkers[recording].judge(event)
        if violation is not None:
            raise violation_error(violation, self._width, name or f"recording {recording}")
        if isinstance(event, Progress):
            self._held.update(event.updates)
            return None
        self.records += event.records
        return event


class Replayer:
    """A replay of several recordings, in turns; it never waits.

    In a turn each recording gives at most `batch` of the events available now. Each worker emits
    the records first, and then its frontier if that has advanced.
    """

    def __init__(
        self,
        sources: Sequence[EventSource | Iterable[Event]],
        minimum: tuple[int, ...] = (0,),
        peers: int = 1,
        batch: int | None = 1,
        order: TimeOrder = PRODUCT,
    ) -> None:
        """Assign the recordings to the workers.

        Args:
            sources: The recordings, in order: readers, links, or any events.
            peers: Number of replay workers, at least one.
            batch: Maximum number of events per recording and turn; None takes all available now.
            order: Order of all times; `PAIR` for pairs.
        """
        check_parallelism(peers, most=None)
        if batch is not None:
            check_parallelism(batch, "events per turn", most=None)
        self._sources = [source_of(source) for source in sources]
        self._batch = batch
        shares = [range(worker, len(self._sources), peers) for worker in range(peers)]
        self.workers = tuple(ReplayWorker(minimum, len(share), order) for share in shares)
        self.events = 0
        self._emitted_frontiers: list[Antichain | None] = [None] * peers

    @property
    def done(self) -> bool:
        """Whether every recording has ended, closed or not."""
        return all(source.ended for source in self._sources)

    @property
    def replayed(self) -> Replayed:
        """The result so far."""
        return Replayed(
            self.events,
            sum(worker.records for worker in self.workers),
            tuple(worker.frontier for worker in self.workers),
        )

    def turn(self) -> Iterator[Step]:
        """Play one turn; consume the iterator to its end.

        The first turn begins with the initial frontier of each worker.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, a recording breaks a rule; all before it is sound.
        """
        for number in range(len(self.workers)):
            yield from self._advanced(number)
        for number in range(len(self.workers)):
            for recording in range(number, len(self._sources), len(self.workers)):
                yield from self._played(number, recording)
            yield from self._advanced(number)

    def __iter__(self) -> Iterator[Step]:
        """All turns, until every recording has ended or has no event available."""
        events_before = -1
        while self.events > events_before:
            events_before = self.events
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
        if frontier != self._emitted_frontiers[number]:
            self._emitted_frontiers[number] = frontier
            yield Advanced(number, frontier)


class Consumer(Protocol):
    """Receiver of a replay: an executor, or anything else that takes records and frontiers."""

    def messages(self, worker: int, messages: Messages) -> None:
        """Take records of a replay worker."""

    def advance(self, worker: int, frontier: Antichain) -> None:
        """Take the frontier of a replay worker; empty when the worker is closed."""


def replay_into(
    consumer: Consumer,
    sources: Sequence[EventSource | Iterable[Event]],
    *,
    minimum: tuple[int, ...] = (0,),
    peers: int = 1,
    batch: int | None = 1,
    order: TimeOrder = PRODUCT,
    idle: Callable[[], None] | None = None,
) -> Replayed:
    """Play recordings to their end; after timely's `replay_into`, which never ends by itself.

    A recording that ends without being closed leaves its replay worker open; the result has its
    frontier. See `Replayer` for `sources`, `peers`, `batch`
    and `order`.

    Args:
        consumer: Receiver of the records and frontiers of all replay workers.
        minimum: Minimum time of all recordings.
        idle: Called when no recording has an event available; by default it sleeps for 10 ms.

    Raises:
        CheckFailedError: `CAP-VIOLATION`, a recording breaks a rule; everything before is played.
        InvalidRequestError: `CAP-PEERS`, fewer than one replay worker, or less than one event per
            turn.
    """
    replayer = Replayer(sources, minimum, peers, batch, order)
    pause = idle or (lambda: time.sleep(_PAUSE))
    while True:
        events_before = replayer.events
        for step in replayer.turn():
            if isinstance(step, Emitted):
                consumer.messages(step.worker, step.messages)
            else:
                consumer.advance(step.worker, step.frontier)
        if replayer.done:
            return replayer.replayed
        if replayer.events == events_before:
            pause()


def extract(events: Iterable[Event]) -> list[tuple[Time, tuple[object, ...]]]:
    """The records of any events by time: times in listing order, records sorted within a time.

    Progress is ignored, times without records are left out. After timely's `Extract`. The order is
    that of Rust: numbers by value, text by its characters, tuples and lists by their first part and
    onwards, None before everything else.

    Raises:
        InvalidRequestError: `CAP-STAMP`, a stamp does not have one element.
        MisfitError: An event counts records but does not carry them.
    """
    by_time: dict[Time, list[object]] = {}
    for event in events:
        if isinstance(event, Messages):
            by_time.setdefault(event.time, []).extend(records_of(event))
    return [
        (time, tuple(sorted(records, key=_key)))
        for time, records in sorted(by_time.items())
        if records
    ]


_SORTED_BY_VALUE = ((1, int | float), (3, str), (4, bytes))


def _key(value: object) -> tuple[object, ...]:
    """A key that sorts values of one type by value, and separates those of different types."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    for rank, kind in _SORTED_BY_VALUE:
        if isinstance(value, kind):
            return (rank, value)
    if isinstance(value, tuple | list):
        return (5, [_key(part) for part in value])
    if isinstance(value, dict):
        return (6, [(_key(name), _key(part)) for name, part in sorted(value.items())])
    return (7, repr(value))
