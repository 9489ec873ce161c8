"""Serving: the recordings of a tape are sent over sockets, as timely's `capture_send` sends them.

Each recording goes over a connection of its own, to the receiver's port plus its number. Dealt to
`n` peers, peer `p` is sent the recordings of the workers `i` with `i % n == p`, interleaved to one:
it first takes up as many capabilities as they hold together, which the protocol allows, and then
has their events in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from capstan.core.protocol import Event, Progress
from capstan.core.times import Time
from capstan.errors import CapstanError, InvalidRequestError, SystemFailureError
from capstan.instrumentation import emit
from capstan.interop.timely import EventReader, connect
from capstan.interop.transfer.export_files import export_recordings
from capstan.interop.transfer.recording_format import Form
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import Cut, Tape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Address:
    """Where the first recording goes.

    Attributes:
        host: The receiver's name or address.
        port: Its first port.
    """

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """The address that `HOST:PORT` is.

        Raises:
            InvalidRequestError: `CAP-PORT`.
        """
        host, colon, port = text.rpartition(":")
        number = (
            int(port) if port.isascii() and port.isdecimal() and len(port) <= len("65535") else 0
        )
        if not colon or not host or not 1 <= number <= 65_535:
            raise InvalidRequestError(
                "CAP-PORT", f"{text[:80]!r} is no address", "give HOST:PORT, as 127.0.0.1:8000"
            )
        return cls(host.strip("[]"), number)


@dataclass(frozen=True, slots=True)
class Served:
    """What was sent.

    Attributes:
        stream: The stream.
        cut: The commit up to which it was sent.
        peers: By peer its address, workers, and events.
    """

    stream: str
    cut: int
    peers: tuple[tuple[str, tuple[int, ...], int], ...]

    def to_json(self) -> dict[str, object]:
        """The answer as one JSON object."""
        return {
            "stream": self.stream,
            "cut": self.cut,
            "peers": [
                {"to": to, "workers": list(workers), "events": events}
                for to, workers, events in self.peers
            ],
        }


def serve(
    spark: SparkSession,
    lake: Lake,
    tape: Tape,
    form: Form,
    to: Address,
    *,
    workers: Sequence[int],
    peers: int | None = None,
    cut: Cut | None = None,
    timeout: float = 30.0,
) -> Served:
    """Send the recordings of workers.

    Args:
        spark: The session; its executors read the tape.
        lake: The lake with the ledger of verifications.
        tape: The tape.
        form: How the recordings are written; see `form_of`.
        to: Where the first one goes; the others to the ports that follow.
        workers: Whose recordings.
        peers: To how many receivers they are dealt; None sends each as it was recorded.
        cut: Up to which commit; the newest by default.
        timeout: How long to wait for a receiver to connect, or to take more, in seconds.

    Raises:
        AnswerIsNo, BadRequest: As `export_recordings` does, before anything is sent.
        SystemFailureError: `CAP-PEER`, nobody receives; `CAP-WRITE`, a receiver went away. The
            others were sent to all the same.
    """
    with TemporaryDirectory(prefix="capstan-serve-") as place:
        folder = Path(place) / "recordings"
        found = export_recordings(spark, lake, tape, folder, form, workers=workers, cut=cut)
        files = {each.worker: folder / each.file for each in found.files}
        dealt = [
            _Peer(f"peer {number}", Address(to.host, to.port + number), form, timeout, share)
            for number, share in enumerate(_deal(sorted(files), peers))
        ]
        _all(dealt, files)
    told = tuple(
        (f"{each.to.host}:{each.to.port}", tuple(each.workers), each.sent) for each in dealt
    )
    return Served(tape.name, found.cut, told)


def _deal(workers: Sequence[int], peers: int | None) -> list[list[int]]:
    """Worker numbers by peer; `i` is the worker's place among those that were chosen."""
    if peers is None:
        return [[worker] for worker in workers]
    if peers < 1:
        raise InvalidRequestError("CAP-PEERS", f"{peers} peers are not possible", "give 1 or more")
    return [list(workers[peer::peers]) for peer in range(peers)]


def _all(peers: Sequence[_Peer], files: dict[int, Path]) -> None:
    """Send to all peers at once: one that is slow, or not there, holds up nobody else."""
    threads = [threading.Thread(target=each.send, args=(files,), daemon=True) for each in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [(each.name, each.failure) for each in peers if each.failure is not None]
    if failed:
        name, error = failed[0]
        others = f"; {len(failed) - 1} more failed" if len(failed) > 1 else ""
        raise SystemFailureError(error.code, f"{name}: {error.message}{others}", error.hint)


@dataclass(slots=True)
class _Peer:
    """One receiver, and what it is sent."""

    name: str
    to: Address
    form: Form
    timeout: float
    workers: list[int]
    sent: int = 0
    failure: CapstanError | None = None

    def send(self, files: dict[int, Path]) -> None:
        try:
            # A recording that names its worker names the one that it becomes.
            number = self.workers[0] if len(self.workers) == 1 else 0
            encoding = self.form.encoding(number)
            with connect(self.to.host, self.to.port, encoding, self.timeout) as writer:
                for event in self._events(files):
                    writer.push(event)
                    self.sent += 1
        except CapstanError as error:
            self.failure = error
        emit("serve.sent", peer=self.name, events=self.sent)

    def _events(self, files: dict[int, Path]) -> Iterator[Event]:
        if len(self.workers) == 1:
            return self._recording(files, self.workers[0])
        start = Time(self.form.time_type.minimum)
        held = Progress(((start, len(self.workers) - 1),))
        return chain([held], interleaved([self._recording(files, w) for w in self.workers]))

    def _recording(self, files: dict[int, Path], worker: int) -> Iterator[Event]:
        with files[worker].open("rb", buffering=0) as source:
            yield from EventReader(source, self.form.encoding(worker), str(files[worker]))


def interleaved(recordings: Sequence[Iterator[Event]]) -> Iterator[Event]:
    """Events in turn, one of each recording, until all are at their end."""
    waiting = list(recordings)
    while waiting:
        going = []
        for recording in waiting:
            event = next(recording, None)
            if event is not None:
                yield event
                going.append(recording)
        waiting = going
