"""The components of Airflow, and its database: started, watched, begun again, ended."""

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

RESTARTS = 3
"""How often a component is begun again within `WITHIN` seconds, before the launcher gives up."""
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
    """A program that has to run as long as the launcher does.

    Attributes:
        name: Its name, and that of its log.
        command: The program and its arguments.
        environment: Its environment.
        home: Where its log is.
        ask: The signal that ends it in good order.
        patience: How many seconds it may take for that.
        once: Whether it is to end by itself, and is not begun again.
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
        """The process that leads its session, while it runs or has not been reaped."""
        return self._process

    def start(self) -> None:
        """Start it, as the leader of a session; what it prints goes to its log.

        Raises:
            SystemFailureError: `CAP-AIRFLOW` when the program cannot be started.
        """
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
            said = f"{self.name} cannot be started: {error}"
            raise SystemFailureError(
                "CAP-AIRFLOW", said, "run `make setup`, then the same again"
            ) from error
        self._process = processes.find(self._running.pid)

    def has_ended(self) -> bool:
        """Whether it was started and runs no more; it is not reaped by this."""
        return self._running is not None and processes.find(self._running.pid) is None

    def begin_again(self) -> None:
        """Start it again after it ended, when it did not do so too often.

        What it left of itself is ended first.

        Raises:
            SystemFailureError: `CAP-AIRFLOW` when it ended too often; the message has the end of
                its log.
        """
        code = self.reap()
        now = time.monotonic()
        self._ended = [moment for moment in self._ended if now - moment < WITHIN] + [now]
        if len(self._ended) > RESTARTS:
            raise SystemFailureError(
                "CAP-AIRFLOW",
                f"{self.name} ended {len(self._ended)} times in {WITHIN / 60:.0f} minutes, "
                f"last with {code}:\n{tail(self.log)}",
                f"see {self.log}",
                component=self.name,
            )
        self.start()

    def reap(self) -> int | None:
        """End what is left of its session, and take note of its end; its exit code."""
        if self._running is None:
            return None
        # As long as it is not reaped, no other process can have its id.
        leader = self._running.pid
        processes.end(lambda: processes.session_of(leader))
        code = self._running.wait()
        self._running = self._process = None
        return code


def airflow_command(*arguments: str) -> list[str]:
    """The command that runs Airflow's own command line with this interpreter."""
    return [sys.executable, "-m", "airflow", *arguments]


def stop(components: Iterable[Component], hurry: Callable[[], bool]) -> None:
    """End components, all at once, and whatever they started.

    Airflow's scheduler would wait for its tasks; they get as long as the components, and are then
    killed together with what watches over them. So nobody reports a failure, and the next
    scheduler begins them again.

    Args:
        components: Those that were started are ended.
        hurry: Whether they get no time at all; asked again while they have it.
    """
    started = [each for each in components if each.process is not None]
    for each in started:
        assert each.process is not None
        processes.send(each.process, each.ask)
    processes.wait_until(
        lambda: hurry() or all(each.has_ended() for each in started),
        max((each.patience for each in started), default=0.0),
    )
    for each in started:
        each.reap()
