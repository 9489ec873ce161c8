"""Serve: send the recordings of a tape over sockets, compatible with timely's `capture_send`.

`docs/protocol.md`, section 17, says what each of several peers receives.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from capstan.core.parallelism import check_parallelism
from capstan.core.protocol import Event, Progress
from capstan.core.times import Time
from capstan.errors import CapstanError, InvalidRequestError, SystemFailureError
from capstan.interop.timely import EventReader, connect
from capstan.interop.transfer.export_files import export_recordings
from capstan.interop.transfer.recording_format import Form
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import Cut, Tape
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Address:
    """Address of the first receiver."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """The address in the form `HOST:PORT`."""
        host, colon, port = text.rpartition(":")
        number = (
            int(port) if port.isascii() and port.isdecimal() and len(port) <= len("65535") else 0
        )
        if not colon or not host or not 1 <= number <= 65_535:
            raise InvalidRequestError(
                "CAP-PORT",
                f"{text[:80]!r} is not an address",
                "give HOST:PORT, for example 127.0.0.1:8000",
            )
        return cls(host.strip("[]"), number)


@dataclass(frozen=True, slots=True)
class ServedPeer:
    """Recordings sent to the receiver at `to`, its `HOST:PORT`."""

    to: str
    workers: tuple[int, ...]
    events: int


@dataclass(frozen=True, slots=True)
class ServeResult:
    """Result of serving a stream."""

    stream: str
    cut: int
    peers: tuple[ServedPeer, ...]

    def to_json(self) -> dict[str, object]:
        """The result as one JSON object."""
        return asdict(self)


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
) -> ServeResult:
    """Send the recordings of workers, in the form that `form_of` gives.

    The first receiver is at `to`, the others at the following ports; `peers` None sends each
    recording separately. `timeout` is in seconds, for a receiver to connect or to accept more.
    """
    with TemporaryDirectory(prefix="capstan-serve-") as place:
        folder = Path(place) / "recordings"
        exported = export_recordings(spark, lake, tape, folder, form, workers=workers, cut=cut)
        files = {file.worker: folder / file.file for file in exported.files}
        receivers = [
            _Peer(f"peer {number}", Address(to.host, to.port + number), form, timeout, share)
            for number, share in enumerate(_distribute(sorted(files), peers))
        ]
        _send_all(receivers, files)
    served = tuple(
        ServedPeer(f"{peer.to.host}:{peer.to.port}", tuple(peer.workers), peer.sent)
        for peer in receivers
    )
    return ServeResult(tape.name, exported.cut, served)


def _distribute(workers: Sequence[int], peers: int | None) -> list[list[int]]:
    """Worker numbers by peer; `i` is the index of the worker among the chosen ones."""
    if peers is None:
        return [[worker] for worker in workers]
    check_parallelism(peers, "peers", most=None)
    return [list(workers[peer::peers]) for peer in range(peers)]


def _send_all(peers: Sequence[_Peer], files: dict[int, Path]) -> None:
    """Send to all peers at once: a slow or missing receiver does not delay the others."""
    threads = [threading.Thread(target=peer.send, args=(files,), daemon=True) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [(peer.name, peer.failure) for peer in peers if peer.failure is not None]
    if failed:
        name, error = failed[0]
        others = f"; {len(failed) - 1} more failed" if len(failed) > 1 else ""
        raise SystemFailureError(error.code, f"{name}: {error.message}{others}", error.hint)


@dataclass(slots=True)
class _Peer:
    name: str
    to: Address
    form: Form
    timeout: float
    workers: list[int]
    sent: int = 0
    failure: CapstanError | None = None

    def send(self, files: dict[int, Path]) -> None:
        try:
            # A transcript names its worker: here the worker on the receiving side.
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
    """Events in turn, one of each recording, until all have ended."""
    for turn in zip_longest(*recordings):
        yield from (event for event in turn if event is not None)
