"""Recordings over sockets: onto a tape while they are sent, and off it to whoever receives."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from capstan.core.protocol import Messages, Progress, StreamChecker
from capstan.errors import (
    CheckFailedError,
    InvalidRequestError,
    RangeLockedError,
    SystemFailureError,
)
from capstan.interop.transfer.listen import ListenRequest, ListenResult, listen
from capstan.interop.transfer.recording_format import Form, Format
from capstan.interop.transfer.serve import Address, interleaved, serve
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.telemetry import instrumentation
from capstan.verify import verify
from tests.support.socket_receivers import adjacent, receivers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake

TIMELY = Path(__file__).parent.parent / "conformance" / "timely"
CASE = "g0_strings_w3"
PATIENCE = 120.0


def form_of(case: str) -> Form:
    return Form.of_folder(TIMELY / case, Format.TIMELY)


def recordings(case: str) -> list[bytes]:
    paths = sorted((TIMELY / case).glob("worker-*.bin"))
    return [path.read_bytes() for path in paths]


class Listening:
    """A listener in a thread of its own, as its process would have it."""

    def __init__(self, spark: SparkSession, lake: Lake, request: ListenRequest) -> None:
        self.ports: tuple[int, ...] = ()
        self.commits: queue.Queue[int] = queue.Queue()
        self.died_at = ""
        self._found: ListenResult | BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(spark, lake, request), daemon=True)

    def _run(self, spark: SparkSession, lake: Lake, request: ListenRequest) -> None:
        try:
            with instrumentation.subscribe(self._told):
                self._found = listen(spark, lake, request)
        except BaseException as error:
            self._found = error
        self._ready.set()

    def _told(self, point: str, facts: dict[str, object]) -> None:
        if point == "listen.ready":
            self.ports = facts["ports"]  # type: ignore[assignment]
            self._ready.set()
        if point == "listen.events":
            self.commits.put(int(str(facts["events"])))
        if point == self.died_at:
            raise InterruptedError(point)

    def start(self, *, died_at: str = "") -> Listening:
        self.died_at = died_at
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def result(self) -> ListenResult:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if isinstance(self._found, BaseException):
            raise self._found
        assert self._found is not None
        return self._found

    def send(self, worker: int, data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self.ports[worker]), PATIENCE) as sender:
            sender.sendall(data)


@pytest.fixture
def listening(spark: SparkSession, lake: Lake) -> Callable[..., Listening]:
    def made(stream: str, case: str = CASE, **more: object) -> Listening:
        given = {"workers": len(recordings(case)), "form": form_of(case), "port": 0, "every": 0.2}
        request = ListenRequest(stream, **{**given, **more})  # type: ignore[arg-type]
        return Listening(spark, lake, request)

    return made


def serve_files(
    spark: SparkSession, lake: Lake, stream: str, count: int, peers: int | None
) -> list[bytes]:
    """What receivers get of a stream."""
    tape = open_tape(lake, stream)
    cut = newest_cut(tape)
    with receivers(count) as (port, got):
        form = form_of(CASE)
        workers = tuple(index.worker_labels(tape, cut))
        actual = serve(
            spark, lake, tape, form, Address("127.0.0.1", port), workers=workers, peers=peers
        )
    assert [peer.to for peer in actual.peers] == [f"127.0.0.1:{port + n}" for n in range(count)]
    return [bytes(item) for item in got]


def test_what_is_sent_is_on_tape_as_it_was(
    spark: SparkSession, lake: Lake, listening: Callable[..., Listening]
) -> None:
    data = recordings(CASE)
    session = listening("sent").start()
    cut = len(data[0]) // 2
    # Torn in the middle of a frame: what is whole counts, and the next connection goes on there.
    session.send(0, data[0][:cut])
    whole = whole_frames(data[0][:cut])
    assert 0 < whole < cut
    session.send(1, data[1])
    assert session.commits.get(timeout=PATIENCE) > 0
    session.send(0, data[0][whole:])
    session.send(2, data[2])
    actual = session.result()
    assert actual.refused == ()
    assert len(actual.faults) == 1
    assert "worker 0" in actual.faults[0]
    assert all(state.closed for state in actual.workers)
    tape = open_tape(lake, "sent")
    assert verify(spark, lake, tape, deep=True).valid
    assert serve_files(spark, lake, "sent", 3, None) == data
    with pytest.raises(InvalidRequestError, match="CAP-CLOSED"):
        listening("sent").start().result()


def whole_frames(data: bytes) -> int:
    """How many bytes of a torn recording are whole frames."""
    decoder = form_of(CASE).encoding(0).decoder()
    decoder.feed(data)
    while decoder.next() is not None:
        pass
    return decoder.offset


def test_who_is_silent_or_wrong_holds_up_nobody_else(
    spark: SparkSession, lake: Lake, listening: Callable[..., Listening]
) -> None:
    data = recordings(CASE)
    session = listening("mixed", idle=3.0).start()
    with socket.create_connection(("127.0.0.1", session.ports[0]), PATIENCE):
        # A frame that is whole, then one whose length no frame has.
        session.send(1, data[1][: whole_frames(data[1][: len(data[1]) // 2])] + b"\xff" * 8)
        session.send(2, data[2])
        actual = session.result()
    assert actual.refused == (1,)
    assert [state.closed for state in actual.workers] == [False, False, True]
    assert actual.workers[1].events > 0
    with pytest.raises(CheckFailedError, match="CAP-VIOLATION: stream mixed: worker 1"):
        actual.require_sound()
    tape = open_tape(lake, "mixed")
    assert verify(spark, lake, tape, deep=True).valid

    # The next listener goes on where each stood; one that breaks a rule there is shut out again.
    again = listening("mixed").start()
    again.send(1, data[1][whole_frames(data[1][: len(data[1]) // 2]) :])
    again.send(0, data[0])
    assert again.result().refused == ()
    assert serve_files(spark, lake, "mixed", 3, None) == data


def test_an_event_that_breaks_a_rule_is_not_taken(
    spark: SparkSession, lake: Lake, listening: Callable[..., Listening]
) -> None:
    form = form_of(CASE)
    session = listening("broken", workers=1).start()
    encoding = form.encoding(0)
    sound = [Progress.of([((0,), -1), ((3,), 1)]), Messages.of((4,), ["a", "b"])]
    wrong = Messages.of((2,), ["too late"])
    sent = b"".join(encoding.encode(event, seq) for seq, event in enumerate([*sound, wrong]))
    session.send(0, sent)
    actual = session.result()
    assert (actual.events, actual.records, actual.refused) == (2, 2, (0,))
    assert "message" in actual.faults[0]
    assert verify(spark, lake, open_tape(lake, "broken"), deep=True).valid


@pytest.mark.parametrize("point", ["listen.records"])
def test_what_a_killed_listener_has_half_written_is_not_on_tape(
    spark: SparkSession, lake: Lake, listening: Callable[..., Listening], point: str
) -> None:
    data = recordings(CASE)
    session = listening("killed", workers=1).start(died_at=point)
    session.send(0, data[0])
    with pytest.raises(InterruptedError):
        session.result()
    tape = open_tape(lake, "killed")
    assert newest_cut(tape).commit == -1
    assert pl.read_delta(tape.paths.records).height > 0
    again = listening("killed", workers=1).start()
    again.send(0, data[0])
    again.result()
    assert verify(spark, lake, tape, deep=True).valid
    assert serve_files(spark, lake, "killed", 1, None) == data[:1]


def test_a_stream_has_one_listener_and_keeps_its_declaration(
    listening: Callable[..., Listening],
) -> None:
    session = listening("one", idle=4.0).start()
    with pytest.raises(RangeLockedError, match="another process listens for stream one"):
        listening("one").start().result()
    session.result()
    with pytest.raises(InvalidRequestError, match="CAP-DECLARED"):
        listening("one", workers=2).start().result()


@pytest.mark.parametrize("peers", [2, 5])
def test_workers_are_dealt_to_peers(
    spark: SparkSession, lake: Lake, listening: Callable[..., Listening], peers: int
) -> None:
    data = recordings(CASE)
    session = listening(f"dealt_{peers}").start()
    for worker, recording in enumerate(data):
        session.send(worker, recording)
    session.result()
    form = form_of(CASE)
    got = serve_files(spark, lake, f"dealt_{peers}", peers, peers)
    records = []
    for peer, sent in enumerate(got):
        judge = StreamChecker(form.time_type.minimum)
        decoder = form.encoding(0).decoder()
        decoder.feed(sent)
        decoder.finish()
        while (event := decoder.next()) is not None:
            assert judge.judge(event) is None
            records += [(event.time, item) for item in getattr(event, "data", None) or ()]
        assert judge.closed
        if peer >= len(data):
            assert judge.seq == 1
    expected = []
    for recording in data:
        decoder = form.encoding(0).decoder()
        decoder.feed(recording)
        while (event := decoder.next()) is not None:
            expected += [(event.time, item) for item in getattr(event, "data", None) or ()]
    assert sorted(records) == sorted(expected)
    assert expected


def test_a_peer_that_is_not_there_is_told(
    spark: SparkSession, lake: Lake, listening: Callable[..., Listening]
) -> None:
    session = listening("alone", workers=1).start()
    session.send(0, recordings(CASE)[0])
    session.result()
    with adjacent(1) as (taken,):
        port = taken.getsockname()[1]
    tape = open_tape(lake, "alone")
    with pytest.raises(
        SystemFailureError, match=f"CAP-PEER: peer 0: no receiver at 127.0.0.1:{port}"
    ):
        serve(
            spark, lake, tape, form_of(CASE), Address("127.0.0.1", port), workers=(0,), timeout=1.0
        )


def test_events_of_many_senders_are_bounded_together() -> None:
    form = form_of(CASE)
    longest = {
        workers: ListenRequest("x", workers, form, 0).longest for workers in (1, 16, 100, 1000)
    }
    assert longest[1] == longest[16] == 64 * 2**20
    assert all(workers * item <= 2**30 for workers, item in longest.items())
    assert longest[1000] >= 2**20


@pytest.mark.parametrize("form", Format)
def test_an_event_that_is_too_long_is_refused(
    listening: Callable[..., Listening], form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.interop.transfer.listen._IN_FLIGHT", 500)
    given = Form.from_options(form, time_type="u64", record_type="string")
    session = listening(f"long_{form}", workers=1, form=given).start()
    encoding = given.encoding(0)
    events = [Messages.of((0,), ["x"]), Messages.of((0,), ["x" * 600])]
    session.send(0, b"".join(encoding.encode(event, seq) for seq, event in enumerate(events)))
    actual = session.result()
    assert (actual.events, actual.refused) == (1, (0,))
    assert "500" in actual.faults[0]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("[::1]:9", Address("::1", 9)),
        ("host", None),
        (":80", None),
        ("host:0", None),
        ("host:65536", None),
        ("host:٣", None),
        ("host:8x", None),
    ],
)
def test_addresses(text: str, address: Address | None) -> None:
    if address is not None:
        assert Address.of(text) == address
        return
    with pytest.raises(InvalidRequestError, match="CAP-PORT"):
        Address.of(text)


def test_recordings_in_turn() -> None:
    a, b = Progress(()), Messages.of((1,), [1])
    assert list(interleaved([iter([a, a, a]), iter([]), iter([b])])) == [a, b, a, a]


def test_a_request_that_cannot_be_meant() -> None:
    form = form_of(CASE)
    for given in [{"workers": 0}, {"workers": 1001}, {"every": 0.0}, {"idle": -1.0}]:
        expected = {"workers": 1, "port": 0, **given}
        with pytest.raises(InvalidRequestError, match=r"CAP-PEERS|CAP-USAGE"):
            ListenRequest("x", form=form, **expected)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="CAP-FILE: the types of frames are unknown"):
        Form.from_options(Format.TIMELY)
    assert Form.from_options(Format.JSONL).minimum == 0
