"""CPU seconds of this run: of the driver's JVM, and of all its Python, told from `/proc`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Cost:
    """What something cost, in seconds.

    Attributes:
        jvm: CPU of the driver's JVM, executors inside it included.
        python: CPU of this process and of Spark's Python workers.
        wall: Time on the clock.
    """

    jvm: float = 0.0
    python: float = 0.0
    wall: float = 0.0

    @property
    def cpu(self) -> float:
        """CPU of both."""
        return self.jvm + self.python

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.jvm + other.jvm, self.python + other.python, self.wall + other.wall)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.jvm - other.jvm, self.python - other.python, self.wall - other.wall)

    def times(self, factor: float) -> Cost:
        """The cost of so many of the same."""
        return Cost(self.jvm * factor, self.python * factor, self.wall * factor)

    def to_json(self) -> dict[str, float]:
        """The cost as reports write it, CPU first."""
        return {
            "cpu": round(self.cpu, 3),
            "jvm": round(self.jvm, 3),
            "python": round(self.python, 3),
            "wall": round(self.wall, 3),
        }


@dataclass(frozen=True, slots=True)
class _Process:
    """What `/proc` says of a process; `cpu` is its own and that of its ended children."""

    parent: int
    cpu: float
    started: int = 0


@dataclass(frozen=True, slots=True)
class Clock:
    """Reads what this run has cost so far.

    Attributes:
        jvm: The process id of the driver's JVM.
    """

    jvm: int
    _workers: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, spark: SparkSession) -> Clock:
        """The clock of a session.

        Raises:
            InvalidRequestError: `CAP-BENCH` where there is no `/proc` to read.
        """
        handle = spark.sparkContext._jvm.java.lang.ProcessHandle  # type: ignore[union-attr]
        found = cls(int(handle.current().pid()))
        if not (_PROC / str(found.jvm) / "stat").exists():
            raise InvalidRequestError(
                "CAP-BENCH",
                "CPU seconds cannot be read here: there is no /proc with this run's JVM",
                "run the benchmark on Linux, with the driver's JVM on the same machine",
            )
        return found

    def read(self) -> Cost:
        """What the run has cost since its processes began; differences of two are what counts."""
        processes = dict(_processes())
        own = os.times()
        workers = self._of_workers(processes)
        return Cost(processes[self.jvm].cpu, own.user + own.system + workers, time.monotonic())

    def _of_workers(self, processes: dict[int, _Process]) -> float:
        """What Python workers have cost, those included that have ended since they were seen.

        Spark ends those that were idle for a minute, and their parent, which ignores that they
        have, does not take over what they cost, as the JVM does of its own children.
        """
        mine = descendants(processes, self.jvm)
        children = [pid for pid in mine if processes[pid].parent == self.jvm]
        for pid in set(mine).difference(children):
            self._workers[pid, processes[pid].started] = processes[pid].cpu
        return sum(processes[pid].cpu for pid in children) + sum(self._workers.values())

    def measure(self, work: Callable[[], object]) -> Cost:
        """What `work` costs."""
        before = self.read()
        work()
        return self.read() - before

    def forget_peaks(self) -> None:
        """Let the peak memory of the Python workers that are alive count from now on."""
        for pid in descendants(dict(_processes()), self.jvm):
            with suppress(OSError):
                (_PROC / str(pid) / "clear_refs").write_text("5", encoding="ascii")

    def peak(self) -> int:
        """The peak resident memory of any Python worker that is alive, in bytes; 0 for none."""
        return max(map(_peak, descendants(dict(_processes()), self.jvm)), default=0)

    def peak_of_jvm(self) -> int:
        """The peak resident memory of the JVM since it began, in bytes."""
        return _peak(self.jvm)


def descendants(processes: dict[int, _Process], root: int) -> list[int]:
    """The processes that `root` has started, and those that these have."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        children = [pid for pid, process in processes.items() if process.parent == parent]
        found += children
        waiting += children
    return found


def _peak(pid: int) -> int:
    """The peak resident memory of a process, in bytes; 0 where it has ended."""
    try:
        status = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024 if "VmHWM" in lines else 0


def _processes() -> Iterator[tuple[int, _Process]]:
    tick = os.sysconf("SC_CLK_TCK")
    for folder in _PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):  # It has ended in the meantime.
            # The name, in brackets, may hold anything; what follows it does not.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            cpu = sum(int(field) for field in fields[11:15]) / tick
            yield int(folder.name), _Process(int(fields[1]), cpu, int(fields[19]))
