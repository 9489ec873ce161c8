"""Components of Airflow and its database: start, restart and stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from capstan.airflow.local import processes
from capstan.airflow.local.home import Home, tail
from capstan.airflow.local.processes import Process
from capstan.errors import SystemFailureError
from capstan.spark.project_home import packages

RESTARTS = 3
"""The number of restarts of a component within `WITHIN` seconds before the launcher gives up."""
WITHIN = 600.0

AIRFLOW = {
    "api-server": ("api-server",),
    "dag-processor": ("dag-processor",),
    # The log servers would listen on all interfaces; the UI reads the files itself.
    "scheduler": ("scheduler", "--skip-serve-logs"),
}
"""Airflow's components by name, with the arguments of `airflow`."""


@dataclass(slots=True)
class Component:
    """A program that runs as long as the launcher.

    Attributes:
        name: Its name, and the name of its log.
        command: The program and its arguments.
        environment: Its environment.
        home: The home folder, with its log.
        ask: The signal that stops it cleanly.
        patience: The seconds it may take to stop.
        once: Whether it ends on its own, and is not restarted.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    home: Home
    ask: signal.Signals = signal.SIGTERM
    patience: float = 5.0
    once: bool = False
    log: Path = field(init=False)
    _running: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _process: Process | None = field(init=False, default=None)
    _ended: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.log = self.home.log(self.name)

    @property
    def process(self) -> Process | None:
        """The leader of its session, until it is reaped."""
        return self._process

    def start(self) -> None:
        """Start it as a session leader, with its output in its log."""
        try:
            with self.log.open("ab") as log:
                self._running = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.home.folder,
                    env=dict(self.environment),
                    start_new_session=True,
                )
        except OSError as error:
            problem = f"{self.name} cannot be started: {error}"
            raise SystemFailureError(
                "CAP-AIRFLOW", problem, f"{packages('airflow')}, then try again"
            ) from error
        self._process = processes.find(self._running.pid)

    def has_ended(self) -> bool:
        """Whether it was started and has exited; this does not reap it."""
        return self._running is not None and processes.find(self._running.pid) is None

    def restart(self) -> None:
        """Kill what is left of it after its exit, and start it again."""
        code = self.reap()
        now = time.monotonic()
        self._ended = [moment for moment in self._ended if now - moment < WITHIN] + [now]
        if len(self._ended) > RESTARTS:
            raise SystemFailureError(
                "CAP-AIRFLOW",
                f"{self.name} exited {len(self._ended)} times in {WITHIN / 60:.0f} minutes, "
                f"last with {code}:\n{tail(self.log)}",
                f"see {self.log}",
                component=self.name,
            )
        self.start()

    def reap(self) -> int | None:
        """Kill what is left of its session, reap it, and return its exit code."""
        if self._running is None:
            return None
        # Until it is reaped, no other process can have its id.
        leader = self._running.pid
        processes.end(lambda: processes.session_of(leader))
        code = self._running.wait()
        self._running = self._process = None
        return code


def airflow_command(*arguments: str) -> list[str]:
    """The command that runs Airflow's CLI with this interpreter."""
    return [sys.executable, "-m", "airflow", *arguments]


def stop(components: Iterable[Component], hurry: Callable[[], bool]) -> None:
    """Stop components together, and everything they started.

    Airflow's scheduler would wait for its tasks. They get as long as the components, and are then
    killed together with their supervisors: no failure is reported, and the next scheduler restarts
    them.

    Args:
        components: The components; those that were started are stopped.
        hurry: Whether to kill at once; checked repeatedly while waiting.
    """
    started = [component for component in components if component.process is not None]
    for component in started:
        assert component.process is not None
        processes.send(component.process, component.ask)
    processes.wait_until(
        lambda: hurry() or all(component.has_ended() for component in started),
        max((component.patience for component in started), default=0.0),
    )
    for component in started:
        component.reap()
