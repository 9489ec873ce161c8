"""An app that outlives the process that asked for it ends itself.

Whoever submits an app may be killed without a chance to end it. It names itself in
`CAPSTAN_OWNER`, and the app looks now and then whether it is still there. What the app had begun
then stays as any kill leaves it, and the next attempt finishes it.
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
    """The value of `CAPSTAN_OWNER` for an app that ends when one of these processes is gone."""
    return " ".join(f"{process}:{_started(process)}" for process in processes)


def watch_owner(environment: Mapping[str, str] = os.environ) -> threading.Thread | None:
    """Begin to watch the processes that `CAPSTAN_OWNER` names; None when it names none."""
    owners = [each for each in environment.get(VARIABLE, "").split() if ":" in each]
    if not owners:
        return None
    submitted = "PYSPARK_GATEWAY_PORT" in environment
    thread = threading.Thread(target=_watch, args=(owners, submitted), daemon=True)
    thread.start()
    return thread


def _watch(owners: list[str], submitted: bool) -> None:
    while all(_is_there(owner) for owner in owners):
        time.sleep(_SECONDS)
    # The driver's JVM has started this process, and holds whatever else belongs to the app.
    for process in ([os.getppid()] if submitted else []) + [os.getpid()]:
        os.kill(process, signal.SIGKILL)


def _is_there(owner: str) -> bool:
    process, _, started = owner.partition(":")
    return _started(int(process)) == started


def _started(process: int) -> str:
    """When a process began, in ticks since the machine did; empty when it is gone.

    A number of a process is given again to another one; this with it is not.
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _without_proc(process)
    # The name of the program, in brackets, may hold anything.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


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
