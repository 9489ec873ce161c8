"""Receiving recordings: what waits is bounded, and a sender that is gone makes room."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest

from capstan.core.protocol import Messages, Progress, Release, StreamChecker
from capstan.interop.timely import Listener, connect
from capstan.interop.transfer.receiver import Inbox, Received, Receiver
from capstan.interop.transfer.recording_format import Form, Format

PATIENCE = 60.0


def form_of(release):
    return Form.from_options(Format.TIMELY, time_type="u64", record_type="string", timely=release)


@contextmanager
def receiving(release=Release.V032):
    """A receiver of a form at work: it, what stops it, its thread, how to send to it."""
    form = form_of(release)
    stopped = threading.Event()
    with Listener(1, form.encoding) as listener:
        receiver = Receiver(0, StreamChecker((0,)), form, listener, Inbox(), stopped.is_set)
        thread = threading.Thread(target=receiver.run, daemon=True)
        thread.start()
        sending = partial(connect, "127.0.0.1", listener.ports[0], form.encoding(0))
        yield receiver, stopped, thread, sending


def test_an_inbox_that_is_full_makes_senders_wait():
    inbox = Inbox(limit=3)
    one = Received(0, 0, Messages.of((0,), ["a", "b"]))
    assert inbox.put(one)
    done = []
    thread = threading.Thread(target=lambda: done.append(inbox.put(one)), daemon=True)
    thread.start()
    time.sleep(0.1)
    assert done == []
    assert inbox.take(0) == [one]
    thread.join(PATIENCE)
    assert done == [True]
    inbox.end()
    assert not inbox.put(one)
    assert inbox.take(PATIENCE) == [one]


def test_an_inbox_is_full_by_bytes_too():
    inbox = Inbox(heavy=3 * 2**20)
    large = [Received(0, n, Messages.of((0,), ["x" * 2**21]), 2**21) for n in range(3)]
    assert [inbox.put(item) for item in large[:2]] == [True, True]
    thread = threading.Thread(target=inbox.put, args=(large[2],), daemon=True)
    thread.start()
    # Full, so what is there is given at once.
    assert inbox.take(PATIENCE) == large[:2]
    thread.join(PATIENCE)
    assert inbox.take(0) == large[2:]


def test_what_is_received_is_weighed_by_its_bytes():
    form = Form.from_options(Format.TIMELY, time_type="u64", record_type="string")
    sent = [Messages.of((n,), ["x" * 1_000]) for n in range(3)]
    inbox = Inbox()
    with Listener(1, form.encoding) as listener:
        receiver = Receiver(0, StreamChecker((0,)), form, listener, inbox, lambda: False)
        with connect("127.0.0.1", listener.ports[0], form.encoding(0)) as sender:
            for event in (*sent, Progress.of([((0,), -1)])):
                sender.push(event)
        receiver.run()
    actual = inbox.take(0)
    sizes = [len(form.encoding(0).encode(item.event, item.seq)) for item in actual]
    assert [item.size for item in actual] == sizes
    assert len(sizes) == 4


def test_a_sender_that_is_silent_gives_way_to_one_that_connects():
    form = Form.from_options(Format.TIMELY, time_type="u64", record_type="u64")
    inbox = Inbox()
    with Listener(1, form.encoding) as listener:
        port = listener.ports[0]
        receiver = Receiver(
            0, StreamChecker((0,)), form, listener, inbox, lambda: False, max_silence=0.5
        )
        thread = threading.Thread(target=receiver.run, daemon=True)
        thread.start()
        with connect("127.0.0.1", port, form.encoding(0)) as gone:
            gone.push(Messages.of((0,), [1]))
            gone.flush()
            # Silent for as long as it likes, while nobody else comes.
            time.sleep(1.0)
            gone.push(Messages.of((0,), [2]))
            gone.flush()
            with connect("127.0.0.1", port, form.encoding(0)) as again:
                again.push(Messages.of((0,), [3]))
                again.push(Progress.of([((0,), -1)]))
                again.flush()
                thread.join(PATIENCE)
                assert not thread.is_alive()
    actual = inbox.take(0)
    assert [item.seq for item in actual] == [0, 1, 2, 3]
    assert [getattr(item.event, "data", None) for item in actual] == [(1,), (2,), (3,), None]
    (printed,) = receiver.faults
    assert "silent for 0.5 s when another sender connected" in printed
    assert not receiver.refused


def test_a_sender_dying_mid_line_leaves_its_worker_open():
    form = Form.from_options(Format.JSONL, time_type="u64", record_type="u64")
    inbox = Inbox()
    with Listener(1, form.encoding) as listener:
        port = listener.ports[0]
        receiver = Receiver(0, StreamChecker((0,)), form, listener, inbox, lambda: False)
        thread = threading.Thread(target=receiver.run, daemon=True)
        thread.start()
        line = form.encoding(0).encode(Messages.of((0,), [1]), 0)
        with socket.create_connection(("127.0.0.1", port)) as dying:
            dying.sendall(line + line[:20])
        with connect("127.0.0.1", port, form.encoding(0)) as again:
            again.push(Messages.of((0,), [2]))
            again.push(Progress.of([((0,), -1)]))
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert [getattr(item.event, "data", None) for item in inbox.take(0)] == [(1,), (2,), None]
    (printed,) = receiver.faults
    assert "torn at byte" in printed
    assert not receiver.refused


def test_who_waits_for_room_is_neither_done_nor_silent():
    form = Form.from_options(Format.TIMELY, time_type="u64", record_type="u64")
    inbox = Inbox(limit=1)
    with Listener(1, form.encoding) as listener:
        receiver = Receiver(0, StreamChecker((0,)), form, listener, inbox, lambda: False)
        thread = threading.Thread(target=receiver.run, daemon=True)
        thread.start()
        with connect("127.0.0.1", listener.ports[0], form.encoding(0)) as sender:
            sender.push(Messages.of((0,), [1]))
            sender.push(Progress.of([((0,), -1)]))
            sender.flush()
            until = time.monotonic() + PATIENCE
            while not receiver.checker.closed and time.monotonic() < until:
                time.sleep(0.01)
            # The last event was judged, and is not in the inbox yet.
            assert not receiver.done
            assert time.monotonic() - receiver.last < 0
            assert len(inbox.take(0)) == 1
            thread.join(PATIENCE)
    assert receiver.done
    assert receiver.last <= time.monotonic()
    assert len(inbox.take(0)) == 1


@pytest.mark.parametrize("after", [Messages.under([], ["b"]), Messages.of((0,), ["b"])])
def test_what_follows_a_close_is_not_passed_over(after):
    form = Form.from_options(
        Format.TIMELY, time_type="u64", record_type="string", timely=Release.V032
    )
    inbox = Inbox()
    with Listener(1, form.encoding) as listener:
        receiver = Receiver(0, StreamChecker((0,)), form, listener, inbox, lambda: False)
        with connect("127.0.0.1", listener.ports[0], form.encoding(0)) as sender:
            for event in (Messages.of((0,), ["a"]), Progress.of([((0,), -1)]), after):
                sender.push(event)
        receiver.run()
    legal = not after.stamp
    assert len(inbox.take(0)) == 2 + legal
    assert receiver.closed
    assert receiver.refused != legal
    assert legal or "nothing was held" in receiver.faults[0]


@pytest.mark.parametrize(
    ("events", "taken"),
    [
        ([Messages.under([], ["a"])], 0),
        ([Progress.of([((0,), 0)]), Messages.under([], ["a"]), Progress.of([((0,), 0)])], 1),
        ([Messages.under([], ["a"]), Progress.of([((0,), -1)])], 0),
        ([Messages.under([], ["a"]), Progress.of([((0,), 0)]), Messages.of((0,), ["b"])], 3),
        ([Messages.of((0,), ["b"]), Messages.under([], ["a"])], 2),
    ],
)
def test_messages_without_elements_wait_for_some_with_one(events, taken):
    """Those of a sender of timely 0.31 at time 0 have the same bytes."""
    with receiving() as (receiver, stopped, thread, sending):
        inbox = receiver.inbox
        with sending() as sender:
            for event in events:
                sender.push(event)
        until = time.monotonic() + PATIENCE
        while not receiver.refused and len(inbox._queue) < taken and time.monotonic() < until:
            time.sleep(0.01)
        if taken in (2, 3):
            stopped.set()
        thread.join(PATIENCE)
    assert [item.event for item in inbox.take(0)] == events[:taken]
    assert receiver.refused == (taken not in (2, 3))
    for fault in receiver.faults:
        assert "a stamp without elements, and none has one" in fault


@pytest.mark.parametrize("declared", Release)
def test_a_sender_of_the_other_form_is_refused_at_its_first_messages(declared):
    encoding = form_of(declared.other).encoding(0)
    events = [Progress.of([((1,), 1)]), Messages.of((1,), ["x"]), Progress.of([((0,), -1)])]
    start = len(encoding.encode(events[0], 0))
    with receiving(declared) as (receiver, _, thread, _):
        with connect("127.0.0.1", receiver.listener.ports[0], encoding) as sender:
            for event in events:
                sender.push(event)
        until = time.monotonic() + PATIENCE
        while not (receiver.refused or receiver.faults) and time.monotonic() < until:
            time.sleep(0.01)
        assert receiver.refused
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert [item.event for item in receiver.inbox.take(0)] == events[:1]
    (fault,) = receiver.faults
    assert f"event 1: the frame at byte {start}: " in fault
    assert fault.endswith(f"(read as timely {declared}; it fits timely {declared.other})")


@pytest.mark.parametrize("count", [1, 1_001])
def test_what_waits_is_bounded_and_never_passed_over(count):
    with receiving() as (receiver, stopped, thread, sending):
        inbox = receiver.inbox
        with sending() as sender:
            for _ in range(count):
                sender.push(Messages.under([], []))
            sender.flush()
            until = time.monotonic() + PATIENCE
            while receiver.checker.seq < count and time.monotonic() < until:
                time.sleep(0.01)
            if count == 1:
                assert not receiver.refused
                stopped.set()
            # The sender is still there.
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert receiver.refused
    assert not inbox.take(0)
