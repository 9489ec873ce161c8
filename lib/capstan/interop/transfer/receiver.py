"""Receiving recordings over sockets: a thread per worker, judged event by event, bounded."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from capstan.core.protocol import Event, StreamChecker
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.instrumentation import emit
from capstan.interop.timely import EventReader, Listener
from capstan.interop.transfer.recording_format import Form
from capstan.interop.transfer.recording_reader import beyond, weight

_TICK: Final = 0.2
# A sender whose machine is gone says no more, and nothing tells it from one that has nothing to say
# but that it connects again.
_SILENT: Final = 30.0
FULL: Final = 100_000
"""So many events, updates and records wait to be written, at the most; then senders wait."""

HEAVY: Final = 64 * 2**20
"""So many bytes of them, as they were sent, wait at the most."""


@dataclass(frozen=True, slots=True)
class Received:
    """An event that was found sound.

    Attributes:
        worker: Whose it is.
        seq: Its position.
        event: The event.
        size: How many bytes it took to send.
    """

    worker: int
    seq: int
    event: Event
    size: int = 0

    @property
    def weight(self) -> int:
        """How much it is: itself, its updates, its records."""
        return weight(self.event) + getattr(self.event, "records", 0)


@dataclass(slots=True)
class Inbox:
    """What was received, and waits to be written: in order, and no more than so much.

    Attributes:
        limit: The weight from which on senders have to wait.
        heavy: The bytes from which on they have to.
    """

    limit: int = FULL
    heavy: int = HEAVY
    _waiting: deque[Received] = field(default_factory=deque)
    _weight: int = 0
    _bytes: int = 0
    _over: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, received: Received) -> bool:
        """Add an event, once there is room; False where nothing is taken any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or not self._full)
            if not self._over:
                self._waiting.append(received)
                self._weight += received.weight
                self._bytes += received.size
                self._changed.notify_all()
            return not self._over

    def take(self, seconds: float) -> list[Received]:
        """All that waits: as soon as it is full, else after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._full, seconds)
            found = list(self._waiting)
            self._waiting.clear()
            self._weight = self._bytes = 0
            self._changed.notify_all()
            return found

    @property
    def _full(self) -> bool:
        return self._weight >= self.limit or self._bytes >= self.heavy

    def end(self) -> None:
        """Take nothing any more; what waits can still be taken out."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Let who takes look again, although it is not full."""
        with self._changed:
            self._changed.notify_all()


@dataclass(slots=True)
class Receiver:
    """Receives one worker's recording on its port, connection after connection, until it is closed.

    A sender that goes away leaves its recording as far as it was whole; the next one goes on there.
    One that has said nothing for long gives way to the next. One that sends what is no event, or
    breaks a rule, is shut out, and so is its worker until the next time; others are not touched.

    Attributes:
        worker: The worker.
        judge: What it holds; goes on from the tape.
        last: When its sender last said something; infinite while that has to wait for room.
        faults: Why senders were shut out, and what they left unfinished, in words.
        refused: Whether the worker's last sender broke a rule.
        silent: After so many seconds without an event a sender gives way to one that waits.
        closed: Whether its last event has come, and is in the inbox.
    """

    worker: int
    judge: StreamChecker
    form: Form
    listener: Listener
    inbox: Inbox
    stopping: Callable[[], bool]
    last: float = field(default_factory=time.monotonic)
    faults: list[str] = field(default_factory=list)
    refused: bool = False
    silent: float = _SILENT
    closed: bool = field(init=False)

    def __post_init__(self) -> None:
        self.closed = self.judge.closed

    @property
    def done(self) -> bool:
        """Whether nothing will come of it any more: all that it has taken is in the inbox."""
        return self.refused or self.closed

    def run(self) -> None:
        """Receive until the recording is closed, refused, or all is to stop."""
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

    def _receive(self, reader: EventReader) -> None:
        # Of each connection anew: what came before it is not its silence.
        self.last = time.monotonic()
        while not self.done and not self.stopping():
            # Before it is read: what it sent until then still counts.
            gives_way = self._gives_way()
            start = reader.offset
            try:
                event = reader.poll()
            except InvalidRequestError as error:
                self._refuse(error.message)
                return
            if event is not None:
                self._take(event, reader.offset - start, reader.name)
            elif reader.ended:
                torn = reader.torn
                if torn is not None:
                    self.faults.append(f"worker {self.worker}, {reader.name}: {torn.about}")
                return
            elif gives_way:
                said = f"silent for {self.silent:g} s when another one connected"
                self.faults.append(f"worker {self.worker}, {reader.name}: {said}")
                return

    def _gives_way(self) -> bool:
        silent = time.monotonic() - self.last > self.silent
        return silent and self.listener.waits(self.worker)

    def _take(self, event: Event, size: int, peer: str) -> None:
        self.last = time.monotonic()
        number = beyond(event, self.form)
        if number is not None:
            self._refuse(f"event {self.judge.seq} of {peer}: no BIGINT holds {number}")
            return
        seq = self.judge.seq
        violation = self.judge.judge(event)
        if violation is not None:
            self._refuse(f"{peer}: {violation.describe(self.form.time_type)}")
            return
        self.last = math.inf
        self.inbox.put(Received(self.worker, seq, event, size))
        self.last = time.monotonic()
        self.closed = self.judge.closed

    def _refuse(self, why: str) -> None:
        self.faults.append(f"worker {self.worker}, {why}")
        self.refused = True
