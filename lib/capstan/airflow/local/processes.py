"""Processes of this machine: those of a session or a home, and components that are restarted.

Every component leads its own *session*. No process can join a session from outside, so everything
in it descends from the component.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from psutil import Process

from capstan.errors import SystemFailureError
from capstan.spark.project_home import packages

RESTARTS = 3
"""The number of restarts of a component within `WITHIN` seconds before the launcher gives up."""
WITHIN = 600.0
_ROUNDS = 10


def find(pid: int) -> Process | None:
    """The process with this id; None if there is none, or it exited without being reaped."""
    try:
        process = Process(pid)
    except psutil.NoSuchProcess:
        return None
    return process if runs(process) else None


def runs(process: Process) -> bool:
    """Whether a process still runs, and no other one has got its id."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def session_of(leader: int) -> list[Process]:
    """The running processes in the session of `leader`, which may have exited."""
    return [p for p in psutil.process_iter() if _session(p) == leader and runs(p)]


def sessions_with(mark: str, logs: Path) -> set[int]:
    """Sessions with a marked process, without this process's session.

    Args:
        mark: An environment variable, `NAME=value`. Programs that set a process title overwrite
            their environment, and are recognised by their output instead.
        logs: A folder: a process whose standard output and error both go there is marked too.
    """
    marked = {_session(p) for p in psutil.process_iter() if _has_mark(p, mark, logs) and runs(p)}
    return marked - {os.getsid(0), 0}


def end(processes: Callable[[], Iterable[Process]]) -> None:
    """Kill what `processes` lists, repeatedly, and return when none of them runs any more."""
    # All are stopped before the first one is killed, so that none reacts to the death of another.
    for _ in range(_ROUNDS):
        left = list(processes())
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in left:
                send(process, number)
        if not left or wait_until(lambda: not list(processes()), 1.0):
            return
    pids = ", ".join(str(process.pid) for process in processes())
    problem = f"processes {pids} were killed, but still run"
    hint = "they wait for a device; kill them by hand when it responds"
    raise SystemFailureError("CAP-SYSTEM", problem, hint)


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has exited."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until `done` returns true, at most for `seconds`; returns whether it did."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _session(process: Process) -> int:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return 0


def _has_mark(process: Process, mark: str, logs: Path) -> bool:
    name, _, value = mark.partition("=")
    try:
        if process.environ().get(name) == value:
            return True
        output = [Path(file.path).parent for file in process.open_files() if file.fd in (1, 2)]
    except (psutil.Error, OSError):
        return False
    return output == [logs, logs]


@dataclass(slots=True)
class Component:
    """A program that runs as long as the launcher; `ask` is the signal that stops it cleanly."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    ask: signal.Signals = signal.SIGTERM
    patience: float = 5.0
    _started: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _ends: list[float] = field(init=False, default_factory=list)

    @property
    def process(self) -> Process | None:
        """The leader of its session, if it runs."""
        return None if self._started is None else find(self._started.pid)

    def start(self) -> None:
        """Start it as a session leader, with its output in its log."""
        try:
            with self.log.open("ab") as log:
                self._started = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.log.parents[1],
                    env=self.environment,
                    start_new_session=True,
                )
        except OSError as error:
            problem = f"{self.name} cannot be started: {error}"
            hint = f"{packages('airflow')}, then try again"
            raise SystemFailureError("CAP-AIRFLOW", problem, hint) from error

    def has_ended(self) -> bool:
        """Whether it was started and has exited; this does not reap it."""
        return self._started is not None and self.process is None

    def restart(self) -> None:
        """Kill what is left of it after its exit, and start it again."""
        code, now = self.reap(), time.monotonic()
        self._ends = [moment for moment in self._ends if now - moment < WITHIN] + [now]
        if len(self._ends) > RESTARTS:
            times = f"{len(self._ends)} times in {WITHIN / 60:.0f} minutes"
            problem = f"{self.name} exited {times}, last with {code}:\n{tail(self.log)}"
            hint = f"see {self.log}"
            raise SystemFailureError("CAP-AIRFLOW", problem, hint, component=self.name)
        self.start()

    def reap(self) -> int | None:
        """Kill what is left of its session, reap it, and return its exit code."""
        if self._started is None:
            return None
        # Until it is reaped, no other process can have its id.
        leader = self._started.pid
        end(lambda: session_of(leader))
        code = self._started.wait()
        self._started = None
        return code


def stop(components: Sequence[Component], hurry: Callable[[], bool]) -> None:
    """Stop components together, and everything they started; at once when `hurry` returns true."""
    # Airflow's scheduler would wait for its tasks. They get as long as the components, and are then
    # killed with their supervisors: no failure is reported, and the next scheduler restarts them.
    for component in components:
        if (process := component.process) is not None:
            send(process, component.ask)
    wait_until(
        lambda: hurry() or all(component.process is None for component in components),
        max((component.patience for component in components), default=0.0),
    )
    for component in components:
        component.reap()


def tail(path: Path) -> str:
    """The last 15 lines of a log, indented."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-15:])
