"""Capture and replay in a program, over memory, files and sockets: the book's examples."""

from __future__ import annotations

import gc
import io
import socket
import threading
import weakref
from itertools import islice

import pytest

from capstan.core.protocol import Messages, Progress
from capstan.core.times import Antichain, Time
from capstan.errors import CheckFailedError, InvalidRequestError, SystemFailureError
from capstan.interop.timely import (
    Advanced,
    Capture,
    Emitted,
    EventLink,
    EventReader,
    EventSource,
    EventTypes,
    EventWriter,
    Frames,
    Lines,
    Listener,
    Replayer,
    ReplayWorker,
    SocketWriter,
    capture_into,
    connect,
    extract,
    replay_into,
    source_of,
)
from tests.support.reference_checker import check
from tests.support.socket_receivers import adjacent

TYPES = EventTypes.of("u64", "u64")
CLOSED = Antichain()
PATIENCE = 30


def at(*times):
    return Antichain.of([(time,) for time in times])


def counting(worker, rounds=10):
    """A worker of the book's example: it puts in 0..9, a number and a time at a time."""
    for number in range(rounds):
        yield Messages.of((number,), [10 * worker + number])
        yield at(number + 1)
    yield CLOSED


class Consumer:
    def __init__(self, peers):
        self.records = [[] for _ in range(peers)]
        self.frontiers = [[] for _ in range(peers)]

    def messages(self, worker, messages):
        # Nothing that is complete comes again.
        assert self.frontiers[worker][-1].less_equal(messages.time)
        self.records[worker] += [(messages.time[0], record) for record in messages.data]

    def advance(self, worker, frontier):
        self.frontiers[worker].append(frontier)


# Links.


def test_link_readers_read_everything_pushed_later():
    link = EventLink()
    first = link.reader()
    events = [Progress.of([((n,), 1)]) for n in range(4)]
    link.push(events[0])
    second = first.reader()
    assert first.poll() == events[0]
    third = first.reader()
    link.push(events[1])
    assert link.reader().poll() is None
    assert (list(first), list(second), list(third)) == (events[1:2], events[:2], events[1:2])
    assert not first.ended
    link.push(events[2])
    link.close()
    link.close()
    assert link.closed
    assert not first.ended
    assert list(first) == events[2:3]
    assert first.ended
    assert first.poll() is None
    with pytest.raises(ValueError, match="closed"):
        link.push(events[3])
    assert isinstance(first, EventSource)


class Record:
    pass


def test_what_all_readers_have_passed_is_freed():
    link = EventLink()
    slow, fast = link.reader(), link.reader()
    record = Record()
    seen = weakref.ref(record)
    link.push(Messages.of((0,), [record]))
    del record
    assert fast.poll().records == 1
    gc.collect()
    assert seen() is not None
    assert slow.poll().records == 1
    gc.collect()
    assert seen() is None
    lone = Record()
    seen = weakref.ref(lone)
    EventLink().push(Messages.of((0,), [lone]))
    del lone
    gc.collect()
    assert seen() is None


def test_unread_readers_are_dropped():
    """A chain freed node by node from within would run out of stack."""
    link = EventLink()
    reader = link.reader()
    event = Progress(())
    for _ in range(300_000):
        link.push(event)
    del reader
    gc.collect()
    late = link.reader()
    link.push(event)
    assert list(late) == [event]


def test_one_thread_pushes_while_others_read():
    link = EventLink()
    readers = [link.reader() for _ in range(2)]
    actual = [[], []]

    def read(number):
        while not readers[number].ended:
            actual[number] += list(readers[number])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    events = [Messages.of((n,), [n]) for n in range(2000)]
    for event in events:
        link.push(event)
    link.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert actual == [events, events]


# Capture.


def test_capture_records_frontiers_as_timely_does():
    link = EventLink()
    reader = link.reader()
    captured = capture_into(counting(0, 2), link)
    assert (captured.events, captured.records, captured.closed) == (5, 2, True)
    assert list(reader) == [
        Messages.of((0,), [0]),
        Progress.of([((0,), -1), ((1,), 1)]),
        Messages.of((1,), [1]),
        Progress.of([((1,), -1), ((2,), 1)]),
        Progress.of([((2,), -1)]),
    ]


def test_a_sink_that_is_just_over_leaves_its_recording_open():
    link = EventLink()
    captured = capture_into(islice(counting(0), 4), link)
    assert (captured.frontier, captured.closed) == (at(2), False)
    assert not link.closed


def test_capture_of_partial_orders_and_other_minima():
    link = EventLink()
    reader = link.reader()
    minimum = (-5, 0)
    frontiers = [Antichain.of([(0, 3), (2, 0)]), Antichain.of([(0, 4), (2, 0)]), CLOSED]
    outputs = [Messages.of((0, 3), ["a"]), frontiers[0], frontiers[0], *frontiers[1:]]
    captured = capture_into(outputs, link, minimum)
    events = list(reader)
    assert captured.events == len(events) == 4
    assert events[1] == Progress.of([((-5, 0), -1), ((0, 3), 1), ((2, 0), 1)])
    assert events[2] == Progress.of([((0, 3), -1), ((0, 4), 1)])
    assert check(events, Time(minimum)).closed


def test_counts_can_be_captured_as_they_are():
    link = EventLink()
    reader = link.reader()
    capture = Capture(link, (0,))
    capture.output(Progress.of([((0,), 1), ((3,), 2), ((3,), 0)]))
    capture.messages((0,), [])
    capture.advance(at(2))
    capture.advance(at(2))
    capture.close()
    capture.close()
    events = list(reader)
    assert events[0] == Progress.of([((0,), 1), ((3,), 2), ((3,), 0)])
    assert events[1] == Messages.of((0,), [])
    # Two capabilities for 0 and two for 3 become one for 2.
    assert events[2] == Progress.of([((0,), -2), ((2,), 1), ((3,), -2)])
    assert len(events) == 4
    assert capture.captured.closed


@pytest.mark.parametrize(
    ("output", "rule"),
    [
        (Messages.of((2,), [1]), "message"),
        (at(2), "increment"),
        (Progress.of([((3,), -2)]), "negative"),
        (Messages.of((3, 0), []), "shape"),
    ],
)
def test_a_program_that_breaks_its_promise_is_stopped(output, rule):
    link = EventLink()
    reader = link.reader()
    sound = [Messages.of((0,), [1]), at(3)]
    with pytest.raises(
        CheckFailedError, match=f"CAP-VIOLATION: the program's output breaks {rule}"
    ):
        capture_into([*sound, output], link)
    events = list(reader)
    assert len(events) == 2
    assert check(events, Time.of(0)).valid


def test_a_program_with_watermarks_is_captured():
    """What a dataflow's sink gives after each step: rows at times, then how far it has come."""

    class Executor:
        def __init__(self):
            self.outputs, self.watermark = [], 0

        def process(self, time, row):
            self.outputs.append((time, [row.upper()]))

        def drained(self):
            while self.outputs:
                time, rows = self.outputs.pop(0)
                yield Messages.of((time,), rows)
            yield at(self.watermark)

    def steps(executor):
        for time, row in [(3, "a"), (1, "b"), (5, "c")]:
            executor.process(time, row)
            executor.watermark = max(executor.watermark, time - 2)
            yield from executor.drained()
        yield CLOSED

    link = EventLink()
    reader = link.reader()
    assert capture_into(steps(Executor()), link).closed
    events = list(reader)
    assert check(events, Time.of(0)).closed
    assert extract(events) == [((1,), ("B",)), ((3,), ("A",)), ((5,), ("C",))]


# Extract.


def test_extract_sorts_times_and_records_within_them():
    events = [
        Messages.of((1, 0), [3, 1]),
        Messages.of((0, 9), ["b", "a"]),
        Progress.of([((0, 0), -1)]),
        Messages.of((1, 0), [2]),
        Messages.of((5, 5), []),
    ]
    assert extract(events) == [((0, 9), ("a", "b")), ((1, 0), (1, 2, 3))]


@pytest.mark.parametrize(
    "records",
    [
        [None, -1, 0.5, 2**64],
        ["", "a", "aa", "b", "\u00e9", "\U0001f600"],
        [b"", b"\x00", b"\xff"],
        [(), (None, 2), (1,), (1, 2), (1, (2,))],
        [{"a": 1}, {"a": 2}, {"b": 0}],
    ],
)
def test_records_are_sorted_as_rust_sorts_them(records):
    for given in (records, records[::-1]):
        assert extract([Messages.of((0,), given)]) == [((0,), tuple(records))]


def test_events_without_their_records_cannot_be_extracted():
    with pytest.raises(ValueError, match="3 records without the records"):
        extract([Messages((Time.of(0),), 3)])


# Replay.


def recorded(worker, rounds=10):
    link = EventLink()
    reader = link.reader()
    capture_into(counting(worker, rounds), link)
    return list(reader)


@pytest.mark.parametrize("peers", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("batch", [1, 3, None])
def test_five_workers_captured_and_any_number_replaying(peers, batch, tmp_path):
    """The book's example: each worker writes a file, and others replay them."""
    for worker in range(5):
        with (tmp_path / f"{worker}.bin").open("wb") as file:  # noqa: SIM117
            with EventWriter(file, Frames(TYPES)) as writer:
                capture_into(counting(worker), writer)
    files = [(tmp_path / f"{worker}.bin").open("rb") for worker in range(5)]
    readers = [EventReader(file, Frames(TYPES), file.name) for file in files]
    consumer = Consumer(peers)
    received = replay_into(consumer, readers, peers=peers, batch=batch)
    for reader in readers:
        reader.close()
    assert (received.records, received.events, received.closed) == (50, 5 * 21, True)
    for worker, records in enumerate(consumer.records):
        own = range(worker, 5, peers)
        assert sorted(records) == sorted((n, 10 * w + n) for w in own for n in range(10))
        frontiers = consumer.frontiers[worker]
        if not own:
            assert frontiers == [CLOSED]
        elif batch == 1:
            assert frontiers == [*(at(n) for n in range(11)), CLOSED]
        elif batch is None:
            assert frontiers == [at(0), CLOSED]


def test_the_slowest_recording_holds_its_worker_back():
    fast, slow = recorded(0), recorded(1)[:2]
    consumer = Consumer(1)
    received = replay_into(consumer, [fast, slow])
    assert consumer.frontiers == [[at(0), at(1)]]
    assert (received.frontier, received.closed, received.records) == (at(1), False, 11)
    apart = Consumer(2)
    received = replay_into(apart, [fast, slow], peers=2)
    assert [frontier[-1] for frontier in apart.frontiers] == [CLOSED, at(1)]
    assert received.frontiers == (CLOSED, at(1))
    assert received.frontier == at(1)


def test_without_recordings_every_worker_is_closed_at_once():
    consumer = Consumer(3)
    received = replay_into(consumer, [], peers=3)
    assert consumer.frontiers == [[CLOSED]] * 3
    assert received.closed
    assert (received.events, received.records) == (0, 0)
    assert ReplayWorker((0,), 0).frontier == CLOSED
    assert ReplayWorker((0,), 3).holdings == (((0,), 3),)


@pytest.mark.parametrize(("peers", "batch"), [(0, 1), (-1, 1), (1, 0)])
def test_fewer_than_one_worker_cannot_replay(peers, batch):
    with pytest.raises(InvalidRequestError, match="CAP-PEERS"):
        Replayer([], (0,), peers, batch)


def test_a_recording_cannot_take_what_another_holds():
    """It lets go of two where it holds one; added up, the other's would be gone."""
    thief = [Progress.of([((0,), -2)])]
    honest = [Progress(()), Messages.of((0,), ["late"]), Progress.of([((0,), -1)])]
    consumer = Consumer(1)
    with pytest.raises(
        CheckFailedError, match="CAP-VIOLATION: recording 1 breaks negative: event 0"
    ):
        replay_into(consumer, [honest, thief])
    assert consumer.frontiers == [[at(0)]]


def test_a_replay_waits_for_what_is_not_there_yet():
    links = [EventLink() for _ in range(3)]
    readers = [link.reader() for link in links]
    waiting = [iter(recorded(worker)) for worker in range(3)]
    pauses = []

    def idle():
        pauses.append(None)
        for link, events in zip(links, waiting, strict=True):
            event = next(events, None)
            if event is not None:
                link.push(event)
            else:
                link.close()

    consumer = Consumer(2)
    received = replay_into(consumer, readers, peers=2, idle=idle)
    assert received.closed
    assert len(pauses) == 22
    assert sum(map(len, consumer.records)) == 30


def test_turns_say_what_came_from_which_recording():
    replayer = Replayer([recorded(w, 1) for w in range(3)], peers=2)
    steps = list(replayer.turn())
    assert steps == [
        Advanced(0, at(0)),
        Advanced(1, at(0)),
        Emitted(0, 0, Messages.of((0,), [0])),
        Emitted(0, 2, Messages.of((0,), [20])),
        Emitted(1, 1, Messages.of((0,), [10])),
    ]
    assert list(replayer) == [
        Advanced(0, at(1)), Advanced(1, at(1)), Advanced(0, CLOSED), Advanced(1, CLOSED),
    ]  # fmt: skip
    assert replayer.done
    assert list(replayer) == []


def test_what_was_replayed_can_be_captured_for_fewer_workers():
    """Five recordings become two, again valid ones, with the same records."""
    sources = [recorded(worker) for worker in range(5)]
    links = [EventLink() for _ in range(2)]
    readers = [link.reader() for link in links]
    captures = [Capture(link, (0,)) for link in links]
    for step in Replayer(sources, peers=2):
        output = step.messages if isinstance(step, Emitted) else step.frontier
        captures[step.worker].output(output)
    again = [list(reader) for reader in readers]
    assert all(check(events, Time.of(0)).closed for events in again)
    before = [event for events in sources for event in events]
    assert extract(event for events in again for event in events) == extract(before)


def test_any_events_are_a_source():
    source = source_of(iter([Progress(())]))
    assert source.poll() == Progress(())
    assert not source.ended
    assert source.poll() is None
    assert source.ended
    assert source_of(source) is source


# Sockets.


def sending(port, encoding, outputs):
    def run():
        with connect("127.0.0.1", port, encoding) as writer:
            capture_into(outputs, writer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "encoding", [lambda _: Frames(TYPES), lambda worker: Lines.of(TYPES, worker)],
    ids=["frames", "lines"],
)  # fmt: skip
def test_five_workers_send_and_three_receive(encoding):
    """The book's example of sockets: worker i connects to a port of its own."""
    with Listener(5, encoding) as listener:
        assert len(set(listener.ports)) == 5
        threads = [
            sending(port, encoding(worker), counting(worker))
            for worker, port in enumerate(listener.ports)
        ]
        readers = [listener.accept(worker, PATIENCE) for worker in range(5)]
        consumer = Consumer(3)
        received = replay_into(consumer, readers, peers=3)
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    for reader in readers:
        assert (reader.torn, reader.failure, reader.ended) == (None, "", True)
        reader.close()
    assert received.closed
    records = sorted(record for own in consumer.records for record in own)
    assert records == sorted((n, 10 * w + n) for w in range(5) for n in range(10))
    assert all(frontier[-1] == CLOSED for frontier in consumer.frontiers)


@pytest.mark.parametrize("abrupt", [False, True])
def test_a_sender_that_dies_in_a_frame_leaves_what_is_whole(abrupt):
    sink = io.BytesIO()
    with EventWriter(sink, Frames(TYPES)) as writer:
        capture_into(counting(0), writer)
    data = sink.getvalue()
    with Listener(1, lambda _: Frames(TYPES)) as listener:
        sender = socket.create_connection(("127.0.0.1", listener.ports[0]), PATIENCE)
        with listener.accept(0, PATIENCE) as reader:
            sender.sendall(data[:50])
            events = [reader.poll()]
            if abrupt:
                # Resets the connection instead of ending it.
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            sender.close()
            events += list(reader)
            assert reader.ended
            assert bool(reader.failure) == abrupt
            assert reader.torn.offset == 36
            assert reader.torn.bytes == 14
            assert reader.name.startswith("127.0.0.1:")
    assert events == [Messages.of((0,), [0])]
    assert replay_into(Consumer(1), [events]).frontier == at(0)


def test_a_silent_sender_holds_nobody_up():
    with Listener(2, lambda _: Frames(TYPES)) as listener:
        silent = connect("127.0.0.1", listener.ports[0], Frames(TYPES))
        thread = sending(listener.ports[1], Frames(TYPES), counting(1))
        thread.join(PATIENCE)
        readers = [listener.accept(worker, 0.05) for worker in range(2)]
        assert readers[0].poll() is None
        assert not readers[0].ended
        replayer = Replayer(readers, peers=2)
        while not readers[1].ended:
            list(replayer.turn())
        assert replayer.replayed.frontiers == (at(0), CLOSED)
        silent.push(Progress.of([((0,), -1)]))
        silent.close()
        silent.close()
        while not replayer.done:
            list(replayer.turn())
        assert replayer.replayed.closed
        for reader in readers:
            reader.close()


def test_who_does_not_wait_is_told_that_there_is_nothing_yet():
    with Listener(1, lambda _: Frames(TYPES)) as listener:
        with pytest.raises(SystemFailureError, match="CAP-PEER: no sender connected"):
            listener.accept(0, 0)
        writer = connect("127.0.0.1", listener.ports[0], Frames(TYPES))
        with writer, listener.accept(0, 0) as reader:
            assert reader.poll() is None
            assert not reader.ended
            writer.push(Progress(()))
            writer.flush()
            consumer = Consumer(1)
            threading.Timer(0.05, writer.close).start()
            received = replay_into(consumer, [reader])
    assert (received.events, received.frontier) == (1, at(0))


def test_a_receiver_that_went_away_is_told():
    with Listener(1, lambda _: Frames(TYPES)) as listener:
        writer = connect("127.0.0.1", listener.ports[0], Frames(TYPES))
        listener.accept(0, PATIENCE).close()
    with pytest.raises(SystemFailureError, match=f"CAP-WRITE: {writer.peer} failed after event"):
        for _ in range(10_000):
            writer.push(Messages.of((0,), range(1000)))
    writer.close()


def test_workers_listen_on_consecutive_loopback_ports():
    """As timely's have them: worker i connects to the first port plus i."""
    with adjacent(3) as free:
        base = free[0].getsockname()[1]
    with Listener(3, lambda worker: Frames(TYPES), base=base) as listener:
        assert listener.ports == (base, base + 1, base + 2)
        for worker in (2, 0, 1):
            thread = sending(base + worker, Frames(TYPES), counting(worker))
            with listener.accept(worker, PATIENCE) as reader:
                records = [(n, 10 * worker + n) for n in range(10)]
                assert [(t[0], item) for t, (item,) in extract(reader)] == records
            thread.join()
            # Another address of this machine, which one that listens on all of them has.
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", base + worker), PATIENCE)
    with Listener(1, lambda worker: Frames(TYPES), host="0.0.0.0", base=base):
        socket.create_connection(("127.0.0.2", base), PATIENCE).close()


def test_ports_and_peers_that_are_not_there():
    with Listener(1, lambda _: Frames(TYPES)) as listener:
        taken = listener.ports[0]
        with pytest.raises(
            InvalidRequestError, match=f"CAP-PORT: cannot listen on 127.0.0.1:{taken}"
        ):
            Listener(1, lambda _: Frames(TYPES), base=taken)
    for port in (taken, 70_000):
        with pytest.raises(SystemFailureError, match="CAP-PEER"):
            connect("127.0.0.1", port, Frames(TYPES), timeout=1)
    for workers, base in [(0, 0), (1, -1), (2, 65_535)]:
        with pytest.raises(InvalidRequestError, match="CAP-PORT"):
            Listener(workers, lambda _: Frames(TYPES), base=base)
    with pytest.raises(InvalidRequestError, match="CAP-PORT"):
        Listener(1, lambda _: Frames(TYPES), host="192.0.2.1")


def test_what_is_there_is_given_while_the_connection_stays_open():
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    with theirs, SocketWriter(ours, Frames(TYPES)) as writer:
        writer.push(Progress(()))
        writer.flush()
        with EventReader(theirs.makefile("rb"), Frames(TYPES)) as reader:
            assert reader.poll() == Progress(())
            assert not reader.ended
            writer.close()
            assert reader.poll() is None
            assert reader.ended
