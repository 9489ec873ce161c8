"""The drivers that tests start beside their own, to be killed or held.

A driver has a JVM of its own, which dies with it: that is the real thing, and takes half a minute
of processor time each. Or it is attached to a `Victim`, a JVM that outlives it, and is killed
without it. At a point of `capstan.instrumentation` both leave the same on disk, as
`tests.support.shared_jvm` explains, so that most kills there are of the second kind. What only the
first proves is proved by it: that of each kind of work also a driver whose JVM is gone can be
followed by another one; that a driver may be killed at any moment, in whichever call of its JVM;
and what happens on a cluster, or to a driver that another program runs.
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
    """A process, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """What it has ended with, as far as it was asked for; below zero the signal."""

    def poll(self) -> int | None:
        """What it has ended with, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""


@dataclass(frozen=True, slots=True)
class Child:
    """A driver in a process of its own, the leader of its process group.

    Attributes:
        process: The process.
        log: The file that has all it printed.
        victim: The JVM that it is attached to; None if it has one of its own.
    """

    process: Running
    log: Path
    victim: Victim | None = None

    def require_killed(self) -> None:
        """Wait until it was killed, and nothing that it started runs any more."""
        if not self.was_killed():
            code = self.process.returncode
            raise AssertionError(f"it was not killed, but ended with {code}:\n{self.printed()}")

    def require_ended(self) -> None:
        """Wait until it has done all it was to do."""
        if self.was_killed() or self.process.returncode != 0:
            code = self.process.returncode
            raise AssertionError(f"it has ended with {code}:\n{self.printed()}")

    def was_killed(self) -> bool:
        """Wait until it has ended, and nothing that it started runs; whether it was killed."""
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
        """Kill it and all that it started after so many seconds, wherever it is then.

        Returns:
            Whether it was still at work; else it had done all it was to do.

        Raises:
            ValueError: Its JVM would outlive it, and end what it is about to do.
        """
        if self.victim is not None:
            raise ValueError("only a driver with a JVM of its own can be killed anywhere")
        time.sleep(seconds)
        ended = self.process.poll()
        self.end()
        if ended not in {None, 0}:
            raise AssertionError(f"it has ended with {ended} by itself:\n{self.printed()}")
        return ended is None

    def wait_for(self, file: Path) -> None:
        """Wait until it has made a file."""
        end = time.monotonic() + PATIENCE
        while not file.exists():
            ended = self.process.poll() is not None
            if ended or time.monotonic() > end:
                self.end()
                raise AssertionError(f"it did not make {file}:\n{self.printed()}")
            time.sleep(0.05)

    def printed(self) -> str:
        """All it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """End it and all that it started, whatever it does."""
        # One that was forked just now is not in a group of its own yet.
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
    """An action that another driver has been held at."""

    child: Child
    step: Step

    def release(self) -> dict[str, object]:
        """Let it go on, and wait for its end; what became of it, with its exit code as `exit`."""
        Path(self.step.until or "").touch()
        self.child.wait_for(self.step.ended)
        found: dict[str, object] = json.loads(self.step.ended.read_text(encoding="utf-8"))
        return found


def start(
    folder: Path,
    script: Sequence[Step],
    before: Sequence[str] = (),
    *,
    victim: Victim | None = None,
    master: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Child:
    """Start a driver that carries out a script; its log and temporary files go to `folder`.

    Args:
        folder: Made here.
        script: What the driver does.
        before: A program and its arguments that runs the driver, whose command line comes last.
        victim: A JVM for it to attach to, which outlives it; by default it has one of its own.
        master: Its Spark master; this machine by default.
        environment: Its variables; by default those of this process.

    Raises:
        ValueError: A driver that is attached to another JVM takes nothing else of these.
    """
    if victim is not None and (before or master or environment):
        raise ValueError("who has a program, a master or variables of its own has its own JVM")
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
    """Processes of a process group that still run."""
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            # The name of a program, in brackets, may hold anything.
            fields = (place / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(place.name))
    return found
