"""Ends a job when the process that submitted it has died.

A submitting process may be killed before it can end its job. It passes its id in `CAPSTAN_OWNER`,
and the job checks regularly whether that process still exists. Unfinished work stays as after any
kill, and the next attempt finishes it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

VARIABLE = "CAPSTAN_OWNER"
_SECONDS = 2.0


def name_owner(processes: Iterable[int]) -> str:
    """The value of `CAPSTAN_OWNER` for a job that ends when one of these processes has ended."""
    return " ".join(f"{process}:{_started(process)}" for process in processes)


def watch_owner(environment: Mapping[str, str] = os.environ) -> threading.Thread | None:
    """Start to watch the processes in `CAPSTAN_OWNER`; None if it has none."""
    owners = [owner for owner in environment.get(VARIABLE, "").split() if ":" in owner]
    if not owners:
        return None
    submitted = "PYSPARK_GATEWAY_PORT" in environment
    thread = threading.Thread(target=_watch, args=(owners, submitted), daemon=True)
    thread.start()
    return thread


def _watch(owners: list[str], submitted: bool) -> None:
    while all(_is_running(owner) for owner in owners):
        time.sleep(_SECONDS)
    # The driver's JVM started this process, and holds the other resources of the job.
    for process in ([os.getppid()] if submitted else []) + [os.getpid()]:
        os.kill(process, signal.SIGKILL)


def _is_running(owner: str) -> bool:
    process, _, started = owner.partition(":")
    return _started(int(process)) == started


def _started(process: int) -> str:
    """A process's start in ticks since boot, as ids are reused; empty when it has ended."""
    fields = _stat(process)
    if not fields:
        return _without_proc(process)
    return "" if fields[0] in "ZX" else fields[19]


def _stat(process: int) -> list[str]:
    """The fields of `/proc/PID/stat` from the state on; none when there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The program's name is in parentheses, and can contain anything, parentheses too.
    return text.rpartition(")")[2].split()


def _without_proc(process: int) -> str:
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "?"
