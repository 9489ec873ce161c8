"""Processes, known by id and start: found, marked, and ended with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from psutil import Process

from capstan.airflow.local import processes
from capstan.errors import SystemFailureError

# Ignores the signals that ask, and starts another that does so in a process group of its own.
STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
    print("ready", flush=True)
time.sleep(600)
"""
POLITE = "print('ready', flush=True); import time; time.sleep(600)"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python programs, each the leader of a session; they are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(program: str, **given: object) -> subprocess.Popen[bytes]:
        options = {"stdout": subprocess.PIPE, "start_new_session": True, **given}
        child = subprocess.Popen([sys.executable, "-c", program], **options)  # type: ignore[call-overload]
        started.append(child)
        if child.stdout is not None:
            assert child.stdout.readline() == b"ready\n"
        return child

    yield begin
    for child in started:
        for process in processes.session_of(child.pid):
            os.kill(process.pid, signal.SIGKILL)
        child.wait(10)
        if child.stdout is not None:
            child.stdout.close()


def test_this_process_is_found_with_its_start() -> None:
    own = processes.find(os.getpid())
    assert own is not None
    assert own.pid == os.getpid()
    assert processes.runs(own)


def test_another_one_that_has_got_its_id_is_not_the_same(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = processes.find(start(POLITE).pid)
    assert former is not None
    former._ident = (former.pid, -1.0)
    assert not processes.runs(former)
    with pytest.raises(psutil.NoSuchProcess):
        former.kill()
    processes.send(former, signal.SIGKILL)
    assert processes.find(former.pid) is not None


def test_what_has_ended_but_was_not_reaped_does_not_run(start: Start) -> None:
    child = start(POLITE)
    process = processes.find(child.pid)
    assert process is not None
    child.kill()
    assert processes.wait_until(lambda: processes.find(child.pid) is None, 10)
    assert not processes.runs(process)
    assert Path(f"/proc/{child.pid}").exists()


def test_a_session_includes_orphans_of_its_leader(start: Start) -> None:
    child = start(STUBBORN)
    assert len(processes.session_of(child.pid)) == 2
    child.kill()
    child.wait(10)
    left = processes.session_of(child.pid)
    assert len(left) == 1
    assert left[0].pid != child.pid
    assert processes.session_of(os.getpid() if os.getsid(0) != os.getpid() else 2**22 + 1) == []


def test_what_does_not_listen_is_killed_with_all_it_started(start: Start) -> None:
    child = start(STUBBORN)
    processes.end(lambda: processes.session_of(child.pid))
    assert child.wait(10) == -signal.SIGKILL
    assert processes.session_of(child.pid) == []


def test_nobody_sees_another_one_killed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The parent puts down what became of its child: that must never happen.
    seen = tmp_path / "seen"
    child = start(
        "import os, time\n"
        "for _ in range(8):\n"
        "    if (pid := os.fork()) == 0:\n"
        "        os.fork()\n"
        "        time.sleep(600)\n"
        # Left behind by a test that was cut off, they must not go on with the loop.
        "        os._exit(0)\n"
        "print('ready', flush=True)\n"
        f"os.wait(); open({str(seen)!r}, 'w').close()"
    )
    send = processes.send

    def slowly(process: Process, number: signal.Signals) -> None:
        send(process, number)
        time.sleep(0.01)

    monkeypatch.setattr(processes, "send", slowly)
    # Children first: without care the parent would outlive them long enough.
    processes.end(lambda: processes.session_of(child.pid)[::-1])
    assert child.wait(10) == -signal.SIGKILL
    assert not seen.exists()


def test_sessions_are_found_by_mark_or_output(start: Start, tmp_path: Path) -> None:
    logs = tmp_path.resolve() / "logs"
    logs.mkdir()
    marked = start(POLITE, env={**os.environ, "MARK": "abc"})
    unlike = start(POLITE, env={**os.environ, "MARK": "abcd"})
    with (logs / "one.log").open("wb") as log:
        writing = start(POLITE, stdout=log, stderr=subprocess.STDOUT)
        half = start(POLITE, stderr=log)
        split = start(POLITE, stdout=log, stderr=subprocess.DEVNULL)
    assert processes.sessions_with("MARK=abc", logs) == {marked.pid, writing.pid}
    assert processes.sessions_with("MARK=abcd", tmp_path) == {unlike.pid}
    for other in (half, split):
        assert [item.pid for item in processes.session_of(other.pid)] == [other.pid]


def test_own_session_is_never_given_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = Path("/proc/self/environ").read_bytes().split(b"\0")[0].decode()
    assert os.getsid(0) not in processes.sessions_with(own, tmp_path)


def test_processes_that_survive_every_kill_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Process(os.getpid())
    sent: list[int] = []
    monkeypatch.setattr(processes, "send", lambda _, number: sent.append(number))
    monkeypatch.setattr(processes, "wait_until", lambda *_: False)
    with pytest.raises(SystemFailureError, match=f"processes {own.pid} were killed") as caught:
        processes.end(lambda: [own])
    assert caught.value.code == "CAP-SYSTEM"
    assert sent == [signal.SIGSTOP, signal.SIGKILL] * 10
