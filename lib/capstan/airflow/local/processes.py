"""Processes of this machine, from Linux's /proc: identity, sessions, killing.

Process ids are reused. A process is identified by its id and its start time, which no two processes
share.

Every component of the launcher leads its own *session*. No process can join a session from outside,
so everything in it descends from the component.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from capstan.errors import SystemFailureError
from capstan.spark.owner_watch import process_stat

_PROC = Path("/proc")
_ROUNDS = 10


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """The identity of a process that runs, or ran, since boot.

    Attributes:
        pid: Its id.
        started: Its start time, in clock ticks since boot.
    """

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class _Status:
    """The fields of `/proc/PID/stat` used here."""

    process: Process
    state: str
    parent: int
    session: int


def require_proc() -> None:
    """Check that this system has /proc."""
    if _status(os.getpid()) is None:
        raise SystemFailureError(
            "CAP-SYSTEM",
            "this system has no /proc, which is needed to find and kill processes",
            "use Linux, or start Airflow with its own commands",
        )


def boot() -> str:
    """The id of the current boot: processes of earlier boots are gone."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def find(pid: int) -> Process | None:
    """The process with this id; None if there is none, or it exited without being reaped."""
    status = _status(pid)
    return None if status is None or status.state in "ZX" else status.process


def runs(process: Process) -> bool:
    """Whether a process still runs."""
    return find(process.pid) == process


def session_of(leader: int) -> list[Process]:
    """The running processes in the session of `leader`, which may have exited."""
    return [status.process for status in _running() if status.session == leader]


def sessions_below(pid: int) -> set[int]:
    """The sessions of a process and its children: each PostgreSQL child has its own."""
    return {s.session for s in _running() if pid in (s.process.pid, s.parent)}


def sessions_with(mark: str, logs: Path) -> set[int]:
    """Sessions with a marked process, without this process's session.

    Args:
        mark: An environment variable, `NAME=value`. Programs that set a process title overwrite
            their environment, and are recognised by their output instead.
        logs: A folder: a process whose standard output and error both go there is marked too.
    """
    sessions = {s.session for s in _running() if _has_mark(s.process.pid, mark, logs)}
    return sessions - {os.getsid(0)}


def end(
    processes: Callable[[], Iterable[Process]],
    *,
    ask: signal.Signals | None = None,
    patience: float = 0.0,
) -> None:
    """Kill processes, and return when none of them runs any more.

    They first get the signal `ask`, if given. Those that still run are all stopped before the first
    one is killed, so that none of them reacts to the death of another.

    Args:
        processes: Lists the processes; called repeatedly, since they may start others.
        ask: The signal that asks them to exit; None to kill them at once.
        patience: The seconds they may take after that signal.
    """
    if ask is not None:
        for process in processes():
            send(process, ask)
        wait_until(lambda: not list(processes()), patience)
    for _ in range(_ROUNDS):
        left = list(processes())
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in left:
                send(process, number)
        if not left or wait_until(lambda: not list(processes()), 1.0):
            return
    pids = ", ".join(str(process.pid) for process in processes())
    raise SystemFailureError(
        "CAP-SYSTEM",
        f"processes {pids} were killed, but still run",
        "they wait for a device; kill them by hand when it responds",
    )


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has exited."""
    if runs(process):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until `done` returns true, at most for `seconds`; returns whether it did."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _running() -> list[_Status]:
    statuses = [_status(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    return [status for status in statuses if status is not None and status.state not in "ZX"]


def _status(pid: int) -> _Status | None:
    fields = process_stat(pid)
    if not fields:
        return None
    return _Status(Process(pid, int(fields[19])), fields[0], int(fields[1]), int(fields[3]))


def _has_mark(pid: int, mark: str, logs: Path) -> bool:
    folder = _PROC / str(pid)
    try:
        if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
            return True
        return all((folder / "fd" / number).readlink().parent == logs for number in ("1", "2"))
    except OSError:
        return False
