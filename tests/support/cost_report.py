"""Cost of tests: a plugin of pytest, `-p tests.support.cost_report`, and a table of its results.

With `CAPSTAN_TEST_COSTS`, each test process writes a file of JSON lines into that folder, one line
per phase of a test: wall-clock seconds, CPU seconds of the process and its children, and the number
of JVMs and Airflows started. `python -m tests.support.cost_report FOLDER` prints them by folder and
by file.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_FOLDER = "CAPSTAN_TEST_COSTS"
_EACH = 0.25
"""Seconds between samples of the processes; no process of interest is shorter."""


@dataclass
class Processes:
    """The child processes: the last known CPU time of each, and the number of starts.

    Sampling is needed because an ended process is charged only to its parent, and to none if the
    parent does not wait for it.
    """

    cpu: dict[tuple[int, float], float] = field(default_factory=dict)
    started: dict[str, set[tuple[int, float]]] = field(default_factory=lambda: defaultdict(set))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> None:
        """Sample the running processes."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error), self.lock:
                with process.oneshot():
                    key = (process.pid, process.create_time())
                    used = process.cpu_times()
                    self.cpu[key] = used.user + used.system
                    words = process.cmdline()
                if words and Path(words[0]).name == "java":
                    self.started["jvms"].add(key)
                if any(word.endswith("bin/airflow") for word in words[:2]):
                    self.started["airflows"].add(key)

    def total(self) -> tuple[float, int, int]:
        """CPU seconds of this process and its children; JVMs and Airflow components started."""
        self.look()
        own = resource.getrusage(resource.RUSAGE_SELF)
        with self.lock:
            below = sum(self.cpu.values())
        count = {name: len(keys) for name, keys in self.started.items()}
        return own.ru_utime + own.ru_stime + below, count.get("jvms", 0), count.get("airflows", 0)


class Costs:
    """Writes the cost of each phase of each test."""

    def __init__(self, path: Path) -> None:
        """Write to `path`, a new file."""
        self.file = path.open("w", encoding="utf-8", buffering=1)
        self.processes = Processes()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(_EACH)
            with suppress(psutil.Error):
                self.processes.look()

    def _phase(self, item: pytest.Item, phase: str) -> Generator[None, Any, Any]:
        begun, before = time.monotonic(), self.processes.total()
        try:
            return (yield)
        finally:
            after = self.processes.total()
            cost = {
                "test": item.nodeid,
                "phase": phase,
                "seconds": round(time.monotonic() - begun, 3),
                "cpu": round(after[0] - before[0], 3),
                "jvms": after[1] - before[1],
                "airflows": after[2] - before[2],
            }
            print(json.dumps(cost), file=self.file)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure the set-up of a test."""
        return (yield from self._phase(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure a test."""
        return (yield from self._phase(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure the teardown of a test."""
        return (yield from self._phase(item, "teardown"))


def pytest_configure(config: pytest.Config) -> None:
    """Measure in each process that runs tests, if requested."""
    folder = os.environ.get(_FOLDER)
    if folder is None:
        return
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None and config.getoption("numprocesses", default=None):
        return  # it distributes tests to others, and runs none
    Path(folder).mkdir(parents=True, exist_ok=True)
    config.pluginmanager.register(Costs(Path(folder, f"{worker or 'alone'}.jsonl")))


def main(folder: Path) -> None:
    """Print the costs of each folder, and of each file in it, the most expensive first."""
    rooms: dict[str, dict[str, Any]] = {}
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            cost = json.loads(line)
            file = cost["test"].split("::")[0].removeprefix("tests/")
            for key, table in ((file.split("/")[0], rooms), (file, files)):
                row = table.setdefault(key, defaultdict(float))
                row["tests"] += cost["phase"] == "call"
                row["seconds"] += cost["seconds"]
                row["setup"] += cost["seconds"] if cost["phase"] != "call" else 0
                for name in ("cpu", "jvms", "airflows"):
                    row[name] += cost[name]
    for title, table in (("room", rooms), ("file", files)):
        print(
            f"\n| {title} | tests | seconds | of them set-up | CPU s | waiting s | JVMs | Airflow |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for key, row in sorted(table.items(), key=lambda pair: -pair[1]["seconds"]):
            figures = (row["tests"], row["seconds"], row["setup"], row["cpu"])
            waiting = max(0.0, row["seconds"] - row["cpu"])
            more = (waiting, row["jvms"], row["airflows"])
            print(f"| {key} | " + " | ".join(f"{figure:.0f}" for figure in figures + more) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
