"""Receives recordings over sockets: one thread per worker, each event checked, bounded memory."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from capstan.core.protocol import Event, Messages, Release, StreamChecker
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.interop.timely import EventReader, Listener
from capstan.interop.transfer.recording_format import Form
from capstan.interop.transfer.recording_reader import first_oversized_number, is_stamped, weight
from capstan.telemetry.instrumentation import emit

_TICK: Final = 0.2
# A sender whose machine is gone looks like an idle one, until it connects again.
_MAX_SILENCE: Final = 30.0
FULL: Final = 100_000
"""Maximum number of events, updates and records in the inbox; beyond it senders wait."""

_MOST_DOUBTFUL: Final = 1_000
_DOUBTFUL: Final = (
    "messages have a stamp without elements, and none has one; timely 0.31 sends the same bytes "
    "for messages at time 0"
)

HEAVY: Final = 64 * 2**20
"""Maximum number of bytes in the inbox, as sent."""


@dataclass(frozen=True, slots=True)
class Received:
    """A received event that passed the checks."""

    worker: int
    seq: int
    event: Event
    size: int = 0  # bytes, as sent

    @property
    def weight(self) -> int:
        """Size in the inbox: the event, its updates, its records."""
        return weight(self.event) + getattr(self.event, "records", 0)


@dataclass(slots=True)
class Inbox:
    """Bounded queue of received events that wait to be written, in order."""

    limit: int = FULL
    heavy: int = HEAVY  # bytes at which senders have to wait
    _queue: deque[Received] = field(default_factory=deque)
    _weight: int = 0
    _bytes: int = 0
    _over: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, received: Received) -> bool:
        """Add an event, once there is room; False if the inbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or not self._full)
            if not self._over:
                self._queue.append(received)
                self._weight += received.weight
                self._bytes += received.size
                self._changed.notify_all()
            return not self._over

    def take(self, seconds: float) -> list[Received]:
        """Remove all events: once the inbox is full, or after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._full, seconds)
            received = list(self._queue)
            self._queue.clear()
            self._weight = self._bytes = 0
            self._changed.notify_all()
            return received

    @property
    def _full(self) -> bool:
        return self._weight >= self.limit or self._bytes >= self.heavy

    def end(self) -> None:
        """Close the inbox for new events; queued events can still be taken."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


@dataclass(slots=True)
class Receiver:
    """Receives the recording of one worker on its port, until it is closed or its sender shut out.

    Other workers are not affected.
    """

    worker: int
    checker: StreamChecker  # continues from the tape
    form: Form
    listener: Listener
    inbox: Inbox
    stopping: Callable[[], bool]
    last: float = field(default_factory=time.monotonic)
    faults: list[str] = field(default_factory=list)
    refused: bool = False  # its last sender broke a rule
    max_silence: float = _MAX_SILENCE  # seconds before it gives way to a waiting sender
    closed: bool = field(init=False)
    # Whether messages with an element have shown that the sender has the declared form; if not, the
    # events from the first messages without elements on.
    _certain: bool = False
    _doubtful: list[Received] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.closed = self.checker.closed

    @property
    def done(self) -> bool:
        """Whether no more events will come; all received events are in the inbox."""
        return self.refused or self.closed

    def run(self) -> None:
        """Receive until the recording is closed or refused, or the listener stops."""
        while not self.done and not self.stopping():
            try:
                reader = self.listener.accept(self.worker, _TICK)
            except SystemFailureError:
                continue
            emit("listen.connected", worker=self.worker, peer=reader.name)
            with reader:
                self._receive(reader)
            self.last = time.monotonic()
            emit("listen.disconnected", worker=self.worker, peer=reader.name)
        self._refuse_doubtful("its sender")

    def _receive(self, reader: EventReader) -> None:
        # Per connection: silence before it does not count.
        self.last = time.monotonic()
        while not self.done and not self.stopping():
            # Before reading: events sent until now still count.
            gives_way = self._gives_way()
            if self._take_next(reader):
                continue
            if self.refused:
                return
            if reader.ended:
                self._refuse_doubtful(reader.name)
                torn = reader.torn
                if torn is not None:
                    self.faults.append(f"worker {self.worker}, {reader.name}: {torn.about}")
                return
            if gives_way:
                reason = f"silent for {self.max_silence:g} s when another sender connected"
                self.faults.append(f"worker {self.worker}, {reader.name}: {reason}")
                return
        if self.closed and self.form.release is Release.V032:
            # What was sent already is taken or refused: messages without elements may follow.
            while not self.refused and self._take_next(reader):
                pass

    def _take_next(self, reader: EventReader) -> bool:
        """Take or refuse what has arrived; returns whether there was an event."""
        start = reader.offset
        try:
            event = reader.poll()
        except InvalidRequestError as error:
            self._refuse(error.message)
            return False
        if event is not None:
            self._take(event, reader.offset - start, reader.name)
        return event is not None

    def _gives_way(self) -> bool:
        silent = time.monotonic() - self.last > self.max_silence
        return silent and self.listener.has_pending(self.worker)

    def _take(self, event: Event, size: int, peer: str) -> None:
        self.last = time.monotonic()
        number = first_oversized_number(event, self.form)
        if number is not None:
            self._refuse(f"event {self.checker.seq} of {peer}: {number} does not fit a BIGINT")
            return
        seq = self.checker.seq
        violation = self.checker.judge(event)
        if violation is not None:
            self._refuse(f"{peer}: {violation.describe(self.form.time_type)}")
            return
        self._pass_on(Received(self.worker, seq, event, size))
        self.closed = self.checker.closed
        full = len(self._doubtful) > _MOST_DOUBTFUL or sum(e.size for e in self._doubtful) > HEAVY
        if full or self.closed:
            self._refuse_doubtful(peer)

    def _pass_on(self, received: Received) -> None:
        """Put an event into the inbox; from messages without elements on once it is their form."""
        event = received.event
        if isinstance(event, Messages) and event.stamp:
            self._certain = True
        if not self._certain and (self._doubtful or is_stamped(event)):
            self._doubtful.append(received)
            return
        self.last = math.inf
        for each in (*self._doubtful, received):
            self.inbox.put(each)
        self.last = time.monotonic()
        self._doubtful.clear()

    def _refuse_doubtful(self, peer: str) -> None:
        """Refuse messages without elements if nothing has shown that they are such."""
        if self._doubtful:
            self._refuse(f"event {self._doubtful[0].seq} of {peer}: {_DOUBTFUL}")
            self._doubtful.clear()

    def _refuse(self, reason: str) -> None:
        self.faults.append(f"worker {self.worker}, {reason}")
        self.refused = True
