"""A program in its own process: its cost from its start, including its child processes.

    python tests/bench/fresh_process.py FIGURES PROGRAM [ARGUMENT ...]

This runs a program and writes its cost into the file FIGURES. A driver may end before its JVM, and
then the JVM would be charged to nobody: so the process in between adopts orphans.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capstan.errors import SystemFailureError

# Linux: orphaned descendants become children of this process.
_SET_CHILD_SUBREAPER: Final = 36
_PATIENCE: Final = 900.0
# A JVM prints on standard error that it uses this, whoever started it.
_MARK: Final = {"JAVA_TOOL_OPTIONS": "-Dcapstan.bench=fresh"}
_TAKEN_UP: Final = "Picked up JAVA_TOOL_OPTIONS"


@dataclass(frozen=True, slots=True)
class Fresh:
    """The cost and the output of a program.

    Attributes:
        wall: Wall-clock seconds.
        cpu: CPU seconds of the program and its child processes.
        jvms: Number of JVMs started, without checks of Java's version.
        output: Its standard output.
    """

    wall: float
    cpu: float
    jvms: int
    output: str

    def to_json(self) -> dict[str, object]:
        """The cost as in reports."""
        return {"cpu": round(self.cpu, 3), "wall": round(self.wall, 3), "jvms": self.jvms}


def fresh(program: Sequence[str], folder: Path) -> Fresh:
    """Run a program in a folder, and measure its cost.

    Raises:
        SystemFailureError: `CAP-BENCH` if it does not succeed.
    """
    figures = folder / f"figures-{uuid.uuid4().hex[:12]}.json"
    ended = subprocess.run(
        # By its path: in `folder` this package is not found.
        [sys.executable, str(Path(__file__).resolve()), str(figures), *program],
        env={**os.environ, **_MARK},
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PATIENCE,
        check=False,
    )
    if ended.returncode:
        last = (ended.stderr.strip() or ended.stdout.strip()).rpartition("\n")[2]
        name = " ".join([Path(program[0]).name, *program[1:]])
        message = f"{name} ended with {ended.returncode}: {last}"
        raise SystemFailureError("CAP-BENCH", message, "run it by hand, and see its log")
    cost = json.loads(figures.read_text(encoding="utf-8"))
    return Fresh(cost["wall"], cost["cpu"], ended.stderr.count(_TAKEN_UP), ended.stdout)


def main(figures: Path, program: Sequence[str]) -> int:
    """Run the program and wait for its child processes; returns its exit code."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    code = subprocess.call(program)
    wall = time.monotonic() - began
    with suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = {"wall": wall, "cpu": used.ru_utime + used.ru_stime}
    figures.write_text(json.dumps(cost), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
