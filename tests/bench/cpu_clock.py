"""CPU seconds of this run, from `/proc`: of the driver's JVM, and of all its Python processes."""

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
    """A cost, in seconds.

    Attributes:
        jvm: CPU time of the driver's JVM, including its executors.
        python: CPU time of this process and of Spark's Python workers.
        wall: Wall-clock time.
    """

    jvm: float = 0.0
    python: float = 0.0
    wall: float = 0.0

    @property
    def cpu(self) -> float:
        """CPU time of both."""
        return self.jvm + self.python

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.jvm + other.jvm, self.python + other.python, self.wall + other.wall)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.jvm - other.jvm, self.python - other.python, self.wall - other.wall)

    def times(self, factor: float) -> Cost:
        """The cost multiplied by a factor."""
        return Cost(self.jvm * factor, self.python * factor, self.wall * factor)

    def to_json(self) -> dict[str, float]:
        """The cost as in reports, CPU time first."""
        return {
            "cpu": round(self.cpu, 3),
            "jvm": round(self.jvm, 3),
            "python": round(self.python, 3),
            "wall": round(self.wall, 3),
        }


@dataclass(frozen=True, slots=True)
class _Process:
    """A process in `/proc`; `cpu` includes that of its ended children."""

    parent: int
    cpu: float
    started: int = 0


@dataclass(frozen=True, slots=True)
class Clock:
    """Reads the cost of this run so far.

    Attributes:
        jvm: Process id of the driver's JVM.
    """

    jvm: int
    _workers: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, spark: SparkSession) -> Clock:
        """The clock of a session.

        Raises:
            InvalidRequestError: `CAP-BENCH` without `/proc`.
        """
        handle = spark.sparkContext._jvm.java.lang.ProcessHandle  # type: ignore[union-attr]
        clock = cls(int(handle.current().pid()))
        if not (_PROC / str(clock.jvm) / "stat").exists():
            raise InvalidRequestError(
                "CAP-BENCH",
                "CPU seconds cannot be read here: /proc does not show this run's JVM",
                "run the benchmark on Linux, with the driver's JVM on the same machine",
            )
        return clock

    def read(self) -> Cost:
        """The cost since the processes started; only differences are meaningful."""
        processes = dict(_processes())
        times = os.times()
        workers = self._of_workers(processes)
        return Cost(processes[self.jvm].cpu, times.user + times.system + workers, time.monotonic())

    def _of_workers(self, processes: dict[int, _Process]) -> float:
        """CPU time of the Python workers, including those that have ended since they were seen.

        Spark ends workers that were idle for a minute. Their parent ignores their end and does not
        take over their CPU time, as the JVM does for its own children.
        """
        pids = descendants(processes, self.jvm)
        children = [pid for pid in pids if processes[pid].parent == self.jvm]
        for pid in set(pids).difference(children):
            self._workers[pid, processes[pid].started] = processes[pid].cpu
        return sum(processes[pid].cpu for pid in children) + sum(self._workers.values())

    def measure(self, work: Callable[[], object]) -> Cost:
        """The cost of `work`."""
        before = self.read()
        work()
        return self.read() - before

    def forget_peaks(self) -> None:
        """Reset the peak memory of the running Python workers."""
        for pid in descendants(dict(_processes()), self.jvm):
            with suppress(OSError):
                (_PROC / str(pid) / "clear_refs").write_text("5", encoding="ascii")

    def peak(self) -> int:
        """Peak resident memory of the running Python workers, in bytes; 0 for none."""
        return max(map(_peak, descendants(dict(_processes()), self.jvm)), default=0)

    def peak_of_jvm(self) -> int:
        """Peak resident memory of the JVM since its start, in bytes."""
        return _peak(self.jvm)


def descendants(processes: dict[int, _Process], root: int) -> list[int]:
    """The child processes of `root` and their descendants."""
    pids: list[int] = []
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        children = [pid for pid, process in processes.items() if process.parent == parent]
        pids += children
        waiting += children
    return pids


def _peak(pid: int) -> int:
    """Peak resident memory of a process, in bytes; 0 if it has ended."""
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
            # The name, in parentheses, may contain anything; the rest may not.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            cpu = sum(int(field) for field in fields[11:15]) / tick
            yield int(folder.name), _Process(int(fields[1]), cpu, int(fields[19]))
