"""Processes of this machine, by what Linux tells of them in /proc: who they are, and their end.

A process id alone proves nothing: ids come round again. A process is known by its id together with
the moment at which it started, which no two processes share.

Every component that the launcher starts leads a *session* of its own, and nobody can enter a
session from outside: whatever is in it was started by the component, or by what it started.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from capstan.errors import SystemFailureError

_PROC = Path("/proc")
_ROUNDS = 10


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """A process that runs, or ran, since this machine was started.

    Attributes:
        pid: Its id.
        started: When it started, in the clock ticks of this machine since it was started.
    """

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class _Status:
    """What `/proc/PID/stat` says of a process."""

    process: Process
    state: str
    parent: int
    session: int


def require_proc() -> None:
    """Check that this system tells of its processes.

    Raises:
        SystemFailureError: `CAP-SYSTEM` when it does not.
    """
    if _status(os.getpid()) is None:
        raise SystemFailureError(
            "CAP-SYSTEM",
            "this system has no /proc, by which processes are found and ended",
            "start Airflow on Linux, or by its own commands",
        )


def boot() -> str:
    """An identity of this machine's present start: processes of another one are gone."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def find(pid: int) -> Process | None:
    """The process that has an id now; None where none has, or it ended and was not reaped yet."""
    status = _status(pid)
    return None if status is None or status.state in "ZX" else status.process


def runs(process: Process) -> bool:
    """Whether a process still runs."""
    return find(process.pid) == process


def session_of(leader: int) -> list[Process]:
    """What runs in the session that process `leader` began, whether it still runs or not."""
    return [each.process for each in _running() if each.session == leader]


def sessions_below(pid: int) -> set[int]:
    """The session of a process, and those of its children: PostgreSQL gives each one its own."""
    return {each.session for each in _running() if pid in (each.process.pid, each.parent)}


def sessions_with(mark: str, logs: Path) -> set[int]:
    """Sessions in which something bears a mark.

    Args:
        mark: An entry of the environment, `NAME=value`. Programs that show a title of their own
            overwrite theirs, and are known by their output.
        logs: A folder: who writes both standard output and error to a file in it bears the mark.
    """
    found = {each.session for each in _running() if _bears(each.process.pid, mark, logs)}
    return found - {os.getsid(0)}


def end(
    processes: Callable[[], Iterable[Process]],
    *,
    ask: signal.Signals | None = None,
    patience: float = 0.0,
) -> None:
    """End processes, and return when none of them runs any more.

    First they are asked, if they are; those that still run after that are frozen, all of them
    before the first one is killed: nobody among them sees another one die, and makes something of
    it.

    Args:
        processes: Which ones; asked again and again, as they may start others.
        ask: The signal that asks them to end; None to kill them at once.
        patience: For how many seconds they may go on after they were asked.

    Raises:
        SystemFailureError: `CAP-SYSTEM` when some cannot be ended at all.
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
    named = ", ".join(str(process.pid) for process in processes())
    raise SystemFailureError(
        "CAP-SYSTEM",
        f"processes {named} were killed, and run on",
        "they wait for a device; end them by hand when it answers",
    )


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    if runs(process):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until `done` says so, at most for some seconds; whether it did."""
    end_of_patience = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end_of_patience:
            return False
        time.sleep(0.05)
    return True


def _running() -> list[_Status]:
    found = [_status(int(place.name)) for place in _PROC.iterdir() if place.name.isdecimal()]
    return [each for each in found if each is not None and each.state not in "ZX"]


def _status(pid: int) -> _Status | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of a program stands in brackets, and may hold anything, brackets too.
    fields = text.rpartition(")")[2].split()
    return _Status(Process(pid, int(fields[19])), fields[0], int(fields[1]), int(fields[3]))


def _bears(pid: int, mark: str, logs: Path) -> bool:
    place = _PROC / str(pid)
    try:
        if mark.encode() in (place / "environ").read_bytes().split(b"\0"):
            return True
        return all((place / "fd" / number).readlink().parent == logs for number in ("1", "2"))
    except OSError:
        return False
