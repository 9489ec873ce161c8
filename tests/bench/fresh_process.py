"""A program in a process of its own: what it costs from its start, with all that it leaves behind.

    python -m tests.bench.fresh_process FIGURES PROGRAM [ARGUMENT ...]

runs a program and writes what it has cost into the file FIGURES. A driver may end before its JVM
does, and then nobody is charged with that: so the process between takes in who has lost a parent.
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

# Linux: children whose parent has ended become those of this process.
_SET_CHILD_SUBREAPER: Final = 36
_PATIENCE: Final = 900.0
# A JVM says on standard error that it takes this up, whoever starts it.
_MARK: Final = {"JAVA_TOOL_OPTIONS": "-Dcapstan.bench=fresh"}
_TAKEN_UP: Final = "Picked up JAVA_TOOL_OPTIONS"


@dataclass(frozen=True, slots=True)
class Fresh:
    """What a program has cost, and said.

    Attributes:
        wall: Seconds from its start to its end, on the clock.
        cpu: CPU seconds of it, and of all that it has started.
        jvms: How many JVMs it has started; a look at Java's version does not count.
        said: Its standard output.
    """

    wall: float
    cpu: float
    jvms: int
    said: str

    def to_json(self) -> dict[str, object]:
        """The cost as reports write it."""
        return {"cpu": round(self.cpu, 3), "wall": round(self.wall, 3), "jvms": self.jvms}


def fresh(program: Sequence[str], folder: Path) -> Fresh:
    """Run a program in a folder, and tell what it has cost.

    Raises:
        SystemFailureError: `CAP-BENCH` where it does not succeed.
    """
    figures = folder / f"figures-{uuid.uuid4().hex[:12]}.json"
    ended = subprocess.run(
        [sys.executable, "-m", __name__, str(figures), *program],
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
        said = f"{name} ended with {ended.returncode}: {last}"
        raise SystemFailureError("CAP-BENCH", said, "give the same words by hand, and see its log")
    found = json.loads(figures.read_text(encoding="utf-8"))
    return Fresh(found["wall"], found["cpu"], ended.stderr.count(_TAKEN_UP), ended.stdout)


def main(figures: Path, program: Sequence[str]) -> int:
    """Run the program and wait for all that it has started; its exit code."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    code = subprocess.call(program)
    wall = time.monotonic() - began
    with suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {"wall": wall, "cpu": used.ru_utime + used.ru_stime}
    figures.write_text(json.dumps(found), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
