"""Listening: what timely's workers send over sockets goes on a tape, commit by commit.

Worker `i` connects to port `base + i`, as timely's `capture_send` does, and sends its recording.
There is no handshake and no answer in that protocol: what a sender has sent is on tape once it is
in a commit, and a listener that is killed loses what was not. What is on tape is sound at every
moment, and the next listener goes on there.
"""

from __future__ import annotations

import fcntl
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from capstan.core.config import check_name
from capstan.core.protocol import Messages, StreamChecker
from capstan.errors import CheckFailedError, InvalidRequestError, RangeLockedError
from capstan.instrumentation import emit
from capstan.interop.timely import MAX_FRAME, Listener
from capstan.interop.timely.sockets import LOOPBACK
from capstan.interop.transfer import recording_reader
from capstan.interop.transfer.destination_tape import enrol, form_tape
from capstan.interop.transfer.import_files import counted_events
from capstan.interop.transfer.receiver import FULL, Inbox, Received, Receiver
from capstan.interop.transfer.recording_format import Form
from capstan.storage import delta
from capstan.storage.idempotent_write import Txn
from capstan.storage.lake import Lake
from capstan.storage.tape import index as summary
from capstan.storage.tape.index import WorkerState
from capstan.storage.tape.tape import Cut, Tape, append_events, newest_cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST: Final = 1_000
_STOP_SECONDS: Final = 10.0
# All senders may be in the middle of an event at once: so many bytes of them are held at the most.
_IN_FLIGHT: Final = 2**30


@dataclass(frozen=True, slots=True)
class ListenRequest:
    """What is to be recorded.

    Attributes:
        stream: The stream; made when it is not there.
        workers: How many senders there are.
        form: How they write.
        port: The port of the first; the others follow. 0 takes any that are free.
        host: The address to bind to.
        every: Seconds from one commit to the next, while something comes.
        idle: End when nothing has come for so many seconds; None for never.
        limit: How many events, updates and records may wait to be written.
    """

    stream: str
    workers: int
    form: Form
    port: int
    host: str = LOOPBACK
    every: float = 5.0
    idle: float | None = None
    limit: int = FULL

    def __post_init__(self) -> None:
        check_name("stream", self.stream)
        if not 1 <= self.workers <= _MOST:
            raise InvalidRequestError(
                "CAP-PEERS", f"{self.workers} workers are not possible", f"choose 1 to {_MOST}"
            )
        if self.every <= 0 or (self.idle is not None and self.idle <= 0):
            raise InvalidRequestError(
                "CAP-USAGE",
                "seconds from one commit to the next, and of silence, are more than 0",
                "see `capstan listen --help`",
            )

    @property
    def longest(self) -> int:
        """The longest event that is taken, in bytes: 64 MiB, and the less the more senders."""
        return min(MAX_FRAME, _IN_FLIGHT // self.workers)


@dataclass(frozen=True, slots=True)
class Listened:
    """What listening came to.

    Attributes:
        stream: The stream.
        commit: Its newest commit, -1 if it has none.
        events: Events that were received now.
        records: Their records.
        workers: Every worker as it is on tape.
        faults: What senders did wrong, or left unfinished, in words.
        refused: Workers whose last sender was shut out.
    """

    stream: str
    commit: int
    events: int
    records: int
    workers: tuple[WorkerState, ...]
    faults: tuple[str, ...]
    refused: tuple[int, ...]

    def to_json(self, tape: Tape) -> dict[str, object]:
        """The answer as one JSON object."""
        return {
            "stream": self.stream,
            "commit": self.commit,
            "events": self.events,
            "records": self.records,
            "workers": [
                {
                    "worker": each.worker,
                    "events": each.events,
                    "records": each.records,
                    "frontier": [tape.time_type.render(time) for time in each.frontier],
                    "closed": each.closed,
                }
                for each in self.workers
            ],
            "faults": list(self.faults),
        }

    def require_sound(self) -> None:
        """Check that no sender was shut out.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, with the first reason.
        """
        if self.refused:
            raise CheckFailedError(
                "CAP-VIOLATION",
                f"stream {self.stream}: {self.faults[0]}",
                "what came before is on tape and sound; mend the sender, and listen again",
                stream=self.stream,
                workers=list(self.refused),
            )


def listen(spark: SparkSession, lake: Lake, request: ListenRequest) -> Listened:
    """Record what workers send, until all have closed their recordings, or it is interrupted.

    Raises:
        InvalidRequestError: `CAP-PORT`, a port is taken; `CAP-DECLARED`, the stream is recorded in
            another way; `CAP-CLOSED`, all its recordings are closed; `CAP-LAKE`, the lake is no
            folder.
        FencedError: `CAP-FENCED`, another process wrote on the tape.
        RangeLockedError: `CAP-HELD`, another one listens for this stream.
    """
    with (
        _alone(lake, request.stream),
        Listener(
            request.workers,
            partial(request.form.encoding, longest=request.longest),
            host=request.host,
            base=request.port,
        ) as listener,
    ):
        tape = _tape(spark, lake, request)
        session = _Session(spark, tape, request, listener)
        session.run()
        return session.listened()


@contextmanager
def _alone(lake: Lake, name: str) -> Iterator[None]:
    """Hold the stream's lock: what a listener has half written may only be cleared by the next."""
    if "://" in lake.root:
        raise InvalidRequestError(
            "CAP-LAKE",
            f"{lake.root} is no folder, and only a folder can be locked",
            "listen into a lake on this machine",
            lake=lake.root,
        )
    folder = Path(lake.stream(name).root)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "listening.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RangeLockedError(
                "CAP-HELD",
                f"another process listens for stream {name}",
                "end it first, or listen for another stream",
                stream=name,
            ) from error
        yield


def _tape(spark: SparkSession, lake: Lake, request: ListenRequest) -> Tape:
    """The tape, with its workers, and without what an earlier listener has half written."""
    form = request.form
    fixed = {
        "domain": "listen",
        "import": {**form.to_json(), "format": str(form.format)},
        "count": request.workers,
    }
    settings = {"fixed": fixed, "free": {}}
    other = InvalidRequestError(
        "CAP-DECLARED",
        f"stream {request.stream} is not recorded from {request.workers} workers in this form",
        "listen as before, or into another stream",
        stream=request.stream,
    )
    tape = form_tape(spark, lake, request.stream, form, settings, other)
    cut = newest_cut(tape)
    if cut.commit < 0:
        enrol(tape, range(request.workers))
    if any(last > cut.batch for last in delta.stat(_files(tape), "max.batch")):
        delta.delete_rows(spark, tape.paths.records, f"batch > {cut.batch}")
    return tape


def _files(tape: Tape) -> object:
    return delta.open_table(tape.paths.records).get_add_actions(flatten=True)


@contextmanager
def _on_signals(do: Callable[[], None]) -> Iterator[None]:
    """Have an interrupt and a request to end call `do`, where this process may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: do()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class _Session:
    """One listener at work."""

    def __init__(
        self, spark: SparkSession, tape: Tape, request: ListenRequest, listener: Listener
    ) -> None:
        self._spark = spark
        self._tape = tape
        self._request = request
        self._listener = listener
        self._cut = newest_cut(tape)
        self._identity = uuid.uuid4()
        self._stop = threading.Event()
        self._inbox = Inbox(request.limit)
        self._events = self._records = 0
        minimum = tape.time_type.minimum
        states = summary.worker_states(tape, Cut(max(self._cut.commit, 0), self._cut.batch))
        if all(state.closed for state in states):
            raise InvalidRequestError(
                "CAP-CLOSED",
                f"stream {tape.name} is closed: no record can come any more",
                "listen for what follows as a new stream",
                stream=tape.name,
            )
        self._receivers = [
            Receiver(
                state.worker,
                StreamChecker(minimum, state.holdings, seq=state.events, records=state.records),
                request.form,
                listener,
                self._inbox,
                self._stop.is_set,
            )
            for state in states
        ]

    def run(self) -> None:
        """Receive and write, until there is nothing to wait for."""
        threads = [
            threading.Thread(target=self._receive, args=(each,), daemon=True)
            for each in self._receivers
        ]
        for thread in threads:
            thread.start()
        emit("listen.ready", stream=self._tape.name, ports=self._listener.ports)
        try:
            with _on_signals(self._interrupted):
                while any(thread.is_alive() for thread in threads) and not self._over():
                    self._write(self._inbox.take(self._request.every))
        finally:
            self._stop.set()
            self._inbox.end()
            for thread in threads:
                thread.join(_STOP_SECONDS)
        self._write(self._inbox.take(0))

    def _receive(self, receiver: Receiver) -> None:
        receiver.run()
        if all(each.done for each in self._receivers):
            self._inbox.end()

    def _interrupted(self) -> None:
        # What was received is still written: nobody will send it again.
        self._stop.set()
        self._inbox.end()

    def _over(self) -> bool:
        idle = self._request.idle
        last = max(each.last for each in self._receivers)
        silent = idle is not None and time.monotonic() - last > idle
        return silent or self._stop.is_set()

    def _write(self, received: Sequence[Received]) -> None:
        """Put events on tape: records, then the events that promise them, in one commit."""
        if not received:
            return
        tape, form, commit = self._tape, self._request.form, self._cut.commit + 1
        first = self._cut.batch + 1
        schema = recording_reader.record_schema(form)
        messages = sorted(
            (
                (each.worker, first + place, each.event)
                for place, each in enumerate(received)
                if isinstance(each.event, Messages) and each.event.records
            ),
            key=itemgetter(0, 1),
        )
        batches = [
            recording_reader.record_batch(
                schema, form, worker, 0, [(batch, event) for _, batch, event in own]
            )
            for worker, own in groupby(messages, itemgetter(0))
        ]
        if batches:
            rows = self._spark.createDataFrame(pa.Table.from_batches(batches, schema))
            listener = Txn(f"listen:{tape.name}:{self._identity}", first)
            delta.append(rows, tape.paths.records, txn=listener)
        emit("listen.records", stream=tape.name, commit=commit)
        placed = [(r.worker, r.seq, first + place, r.event) for place, r in enumerate(received)]
        index = recording_reader.event_batch(form.time_type, placed)
        events = self._spark.createDataFrame(pa.Table.from_batches([index]))
        stored = delta.load(self._spark, tape.paths.records)
        counted = counted_events(events, stored.where(f"batch >= {first}"), commit).coalesce(1)
        note = {"stream": tape.name, "listen": str(form.format)}
        append_events(tape, counted, commit, note)
        records = sum(event.records for _, _, event in messages)
        self._cut = Cut(commit, first + len(received) - 1)
        self._events += len(received)
        self._records += records
        emit(
            "listen.events", stream=tape.name, commit=commit, events=len(received), records=records
        )

    def listened(self) -> Listened:
        """What it came to."""
        states = summary.worker_states(self._tape, Cut(max(self._cut.commit, 0), self._cut.batch))
        return Listened(
            self._tape.name,
            self._cut.commit,
            self._events,
            self._records,
            tuple(states),
            tuple(fault for each in self._receivers for fault in each.faults),
            tuple(each.worker for each in self._receivers if each.refused),
        )
