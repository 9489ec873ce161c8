"""Listen: record on a tape what timely's workers send over sockets, commit by commit.

`docs/protocol.md`, section 17, says what a sender can rely on.
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
from capstan.core.parallelism import check_parallelism
from capstan.core.protocol import Messages, StreamChecker
from capstan.errors import CheckFailedError, InvalidRequestError, RangeLockedError
from capstan.interop.timely import MAX_FRAME, Listener
from capstan.interop.timely.sockets import LOOPBACK
from capstan.interop.transfer import recording_reader
from capstan.interop.transfer.destination_tape import add_workers, open_or_create_tape
from capstan.interop.transfer.import_files import counted_events
from capstan.interop.transfer.receiver import FULL, Inbox, Received, Receiver
from capstan.interop.transfer.recording_format import Form
from capstan.storage.delta import delta
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.index import WorkerState
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Cut, Tape, append_events, newest_cut
from capstan.storage.tape.upgrade import take_stamps
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_WORKERS: Final = 1_000
_STOP_SECONDS: Final = 10.0
# All senders may be in the middle of an event at once: the most bytes held for such events.
_IN_FLIGHT: Final = 2**30


@dataclass(frozen=True, slots=True)
class ListenRequest:
    """Request to listen; a missing stream is created."""

    stream: str
    workers: int
    form: Form
    port: int  # of the first sender; the others follow; 0 picks free ports
    host: str = LOOPBACK
    every: float = 5.0  # seconds between commits while events arrive
    idle: float | None = None  # seconds without an event before it stops; None for never
    limit: int = FULL  # of events, updates and records that wait to be written

    def __post_init__(self) -> None:
        check_name("stream", self.stream)
        self.form.require_tape()
        check_parallelism(self.workers, most=_MAX_WORKERS)
        if self.every <= 0 or (self.idle is not None and self.idle <= 0):
            raise InvalidRequestError(
                "CAP-USAGE",
                "the seconds between commits and of silence must be more than 0",
                "see `capstan listen --help`",
            )

    @property
    def longest(self) -> int:
        """Maximum size of an event in bytes: 64 MiB, or less with many senders."""
        return min(MAX_FRAME, _IN_FLIGHT // self.workers)


@dataclass(frozen=True, slots=True)
class ListenResult:
    """Result of listening."""

    stream: str
    commit: int  # the newest, -1 if there is none
    events: int
    records: int
    workers: tuple[WorkerState, ...]
    faults: tuple[str, ...]  # errors of senders, and unfinished events
    refused: tuple[int, ...]  # workers whose last sender was shut out

    def to_json(self, tape: Tape) -> dict[str, object]:
        """The result as one JSON object."""
        return {
            "stream": self.stream,
            "commit": self.commit,
            "events": self.events,
            "records": self.records,
            "workers": [
                {
                    "worker": state.worker,
                    "events": state.events,
                    "records": state.records,
                    "frontier": [tape.time_type.render(time) for time in state.frontier],
                    "closed": state.closed,
                }
                for state in self.workers
            ],
            "faults": list(self.faults),
        }

    def require_sound(self) -> None:
        """Check that no sender was shut out."""
        if self.refused:
            raise CheckFailedError(
                "CAP-VIOLATION",
                f"stream {self.stream}: {self.faults[0]}",
                "everything before it is on the tape and sound; fix the sender, and listen again",
                stream=self.stream,
                workers=list(self.refused),
            )


def listen(spark: SparkSession, lake: Lake, request: ListenRequest) -> ListenResult:
    """Record workers until all have closed their recordings, or until interrupted."""
    with (
        _stream_lock(lake, request.stream),
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
        return session.result()


@contextmanager
def _stream_lock(lake: Lake, name: str) -> Iterator[None]:
    """Hold the stream's lock: only the next listener may clear a listener's partial commit."""
    if "://" in lake.root:
        raise InvalidRequestError(
            "CAP-LAKE",
            f"{lake.root} is not a folder, and only a folder can be locked",
            "use a lake on this machine",
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
                "stop it first, or listen for another stream",
                stream=name,
            ) from error
        yield


def _tape(spark: SparkSession, lake: Lake, request: ListenRequest) -> Tape:
    """The tape, with its workers, and without the partial commit of an earlier listener."""
    form = request.form
    fixed = {
        "domain": "listen",
        "import": {**form.to_json(), "format": str(form.format)},
        "count": request.workers,
    }
    settings = TapeSettings(fixed)
    mismatch = InvalidRequestError(
        "CAP-DECLARED",
        f"stream {request.stream} is not recorded from {request.workers} workers in this form",
        "use the same options as before, or another stream",
        stream=request.stream,
    )
    tape = open_or_create_tape(spark, lake, request.stream, form, settings, mismatch)
    cut = newest_cut(tape)
    if cut.commit < 0:
        add_workers(tape, range(request.workers))
    files = delta.open_table(tape.paths.records).get_add_actions(flatten=True)
    if any(last > cut.batch for last in delta.stat(files, "max.batch")):
        delta.delete_rows(spark, tape.paths.records, f"batch > {cut.batch}")
    return tape


@contextmanager
def _on_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` on SIGINT and SIGTERM, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, lambda *_: callback()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


class _Session:
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
        states = index.worker_states(tape, Cut(max(self._cut.commit, 0), self._cut.batch))
        if all(state.closed for state in states):
            raise InvalidRequestError(
                "CAP-CLOSED",
                f"stream {tape.name} is closed: no further records can come",
                "record the continuation as a new stream",
                stream=tape.name,
            )
        self._receivers = [
            Receiver(
                state.worker,
                StreamChecker(
                    tape.time_type.minimum,
                    state.holdings,
                    seq=state.events,
                    records=state.records,
                    order=tape.time_type.order,
                ),
                request.form,
                listener,
                self._inbox,
                self._stop.is_set,
            )
            for state in states
        ]

    def run(self) -> None:
        """Receive and write until every receiver is done, idle or stopped."""
        threads = [
            threading.Thread(target=self._receive, args=(receiver,), daemon=True)
            for receiver in self._receivers
        ]
        for thread in threads:
            thread.start()
        emit("listen.ready", stream=self._tape.name, ports=self._listener.ports)
        try:
            with _on_signals(self._interrupted):
                while any(thread.is_alive() for thread in threads) and not self._over():
                    self._write(self._inbox.take(self._request.every))
        finally:
            self._interrupted()
            for thread in threads:
                thread.join(_STOP_SECONDS)
        self._write(self._inbox.take(0))

    def _receive(self, receiver: Receiver) -> None:
        receiver.run()
        if all(receiver.done for receiver in self._receivers):
            self._inbox.end()

    def _interrupted(self) -> None:
        # Received events are still written: the senders will not send them again.
        self._stop.set()
        self._inbox.end()

    def _over(self) -> bool:
        idle = self._request.idle
        last = max(receiver.last for receiver in self._receivers)
        silent = idle is not None and time.monotonic() - last > idle
        return silent or self._stop.is_set()

    def _write(self, received: Sequence[Received]) -> None:
        """Put events on the tape: records, then the events that count them, in one commit."""
        if not received:
            return
        if any(recording_reader.is_stamped(item.event) for item in received):
            self._tape = take_stamps(self._tape)
        tape, form, commit = self._tape, self._request.form, self._cut.commit + 1
        first = self._cut.batch + 1
        numbered = [(batch, item) for batch, item in enumerate(received, first)]
        schema = recording_reader.record_schema(form, stamped=tape.stamped)
        messages = sorted(
            (
                (item.worker, batch, item.event)
                for batch, item in numbered
                if isinstance(item.event, Messages) and item.event.records
            ),
            key=itemgetter(0, 1),
        )
        batches = [
            recording_reader.record_batch(
                schema, form, worker, 0, [(batch, event) for _, batch, event in group]
            )
            for worker, group in groupby(messages, itemgetter(0))
        ]
        if batches:
            frame = self._spark.createDataFrame(pa.Table.from_batches(batches, schema))
            listener = Txn(f"listen:{tape.name}:{self._identity}", first)
            delta.append(frame, tape.paths.records, txn=listener)
        emit("listen.records", stream=tape.name, commit=commit)
        rows = [(item.worker, item.seq, batch, item.event) for batch, item in numbered]
        event_rows = recording_reader.event_batch(form.time_type, rows, stamped=tape.stamped)
        events = self._spark.createDataFrame(pa.Table.from_batches([event_rows]))
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

    def result(self) -> ListenResult:
        """The result so far."""
        states = index.worker_states(self._tape, Cut(max(self._cut.commit, 0), self._cut.batch))
        return ListenResult(
            self._tape.name,
            self._cut.commit,
            self._events,
            self._records,
            tuple(states),
            tuple(fault for receiver in self._receivers for fault in receiver.faults),
            tuple(receiver.worker for receiver in self._receivers if receiver.refused),
        )
