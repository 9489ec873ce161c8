"""Drivers that tests start as child processes, to be killed or held.

A driver either has its own JVM, which dies with it: this is the realistic case, and costs half a
minute of CPU time. Or it is attached to a `Victim`, a JVM that outlives it, and is killed alone. At
a point of `capstan.telemetry.instrumentation` both leave the same files, as
`tests.support.shared_jvm` explains, so most kills there are of the second kind. The first kind
covers what only it can prove: for each kind of work, that another driver can continue after a kill
that included the JVM; that a driver may be killed at any moment, within any call of its JVM; and
kills on a cluster, or of a driver run by another program.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.support.driver_under_test import PATIENCE, Step
from tests.support.shared_jvm import Victim, places_of


class Running(Protocol):
    """A process with the interface of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """Its exit code as of the last poll; negative for a signal."""

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""


@dataclass(frozen=True, slots=True)
class Child:
    """A driver in its own process, the leader of its process group.

    Attributes:
        process: The process.
        log: File with its output.
        victim: The JVM it is attached to; None if it has its own.
    """

    process: Running
    log: Path
    victim: Victim | None = None

    def require_killed(self) -> None:
        """Wait until it was killed, and all processes that it started have ended."""
        if not self.was_killed():
            code = self.process.returncode
            raise AssertionError(f"it was not killed but exited with {code}:\n{self.printed()}")

    def require_ended(self) -> None:
        """Wait until it has completed its script."""
        if self.was_killed() or self.process.returncode != 0:
            code = self.process.returncode
            raise AssertionError(f"it exited with {code}:\n{self.printed()}")

    def was_killed(self) -> bool:
        """Wait until it and its child processes have ended; returns whether it was killed."""
        try:
            code = self.process.wait(4 * PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        end = time.monotonic() + PATIENCE
        while code is not None and _group(self.process.pid):
            if time.monotonic() > end:
                code = None
            time.sleep(0.02)
        if code != -signal.SIGKILL:
            self.end()
        elif self.victim is not None:
            self.victim.settle()
        return code == -signal.SIGKILL

    def kill_after(self, seconds: float) -> bool:
        """Kill it and its child processes after a number of seconds.

        Returns:
            Whether it was still running; otherwise it had completed its script.

        Raises:
            ValueError: Its JVM would outlive it and finish its current call.
        """
        if self.victim is not None:
            raise ValueError("only a driver with its own JVM can be killed at any moment")
        time.sleep(seconds)
        ended = self.process.poll()
        self.end()
        if ended not in {None, 0}:
            raise AssertionError(f"it exited with {ended} by itself:\n{self.printed()}")
        return ended is None

    def wait_for(self, file: Path) -> None:
        """Wait until it has created a file."""
        end = time.monotonic() + PATIENCE
        while not file.exists():
            ended = self.process.poll() is not None
            if ended or time.monotonic() > end:
                self.end()
                raise AssertionError(f"it did not create {file}:\n{self.printed()}")
            time.sleep(0.05)

    def printed(self) -> str:
        """Its output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """Kill it and its child processes, whatever they do."""
        # A process that was just forked is not yet in its own group.
        alone = [self.process.pid] if self.process.poll() is None else []
        for process in {*_group(self.process.pid), *alone}:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(PATIENCE)
        if self.victim is not None:
            self.victim.settle()


@dataclass(frozen=True, slots=True)
class Held:
    """An action at which another driver is held."""

    child: Child
    step: Step

    def release(self) -> dict[str, object]:
        """Release it and wait for its end; returns its result, with the exit code as `exit`."""
        Path(self.step.until or "").touch()
        self.child.wait_for(self.step.ended)
        result: dict[str, object] = json.loads(self.step.ended.read_text(encoding="utf-8"))
        return result


def start(
    folder: Path,
    script: Sequence[Step],
    before: Sequence[str] = (),
    *,
    victim: Victim | None = None,
    master: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Child:
    """Start a driver that runs a script; its log and temporary files go to `folder`.

    Args:
        folder: Created here.
        script: Steps of the driver.
        before: Program and arguments that run the driver; its command line is appended.
        victim: JVM to attach to, which outlives the driver; by default it has its own.
        master: Its Spark master; this machine by default.
        environment: Its environment; by default that of this process.

    Raises:
        ValueError: An attached driver takes none of the other options.
    """
    if victim is not None and (before or master or environment):
        raise ValueError("a driver with a program, a master or an environment needs its own JVM")
    folder.mkdir(parents=True)
    log, written = folder / "log", folder / "script.json"
    written.write_text(json.dumps([step.to_json() for step in script]), encoding="utf-8")
    if victim is not None:
        return Child(victim.start(folder, written, log), log, victim)
    with log.open("wb") as printed:
        process = subprocess.Popen(
            [
                *before,
                *(sys.executable, "-m", "tests.support.driver_under_test", str(written)),
                *((master,) if master else ()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={**(environment or os.environ), **places_of(folder)},
            start_new_session=True,
        )
    return Child(process, log)


def _group(group: int) -> list[int]:
    """The running processes of a process group."""
    members = []
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            # The name of a program, in parentheses, may contain anything.
            fields = (place / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            members.append(int(place.name))
    return members
