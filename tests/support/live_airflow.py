"""A real Airflow for tests, started like a user's, and its processes and ports."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from psutil import Process

from capstan.airflow.local.home import Home
from capstan.airflow.local.processes import find, send
from tests.support.airflow_api import Rest, until

PATIENCE = 240.0
"""Seconds until Airflow is ready, on a machine that is busy with other tests."""
_LISTENS = "0A"


@dataclass(slots=True)
class Launched:
    """A launcher, running or ended.

    Attributes:
        process: The process of the launcher.
        home: The home of its Airflow.
        output: File with its output.
        rest: Airflow's API, with the password printed by the launcher.
    """

    process: subprocess.Popen[bytes]
    home: Home
    output: Path
    rest: Rest

    def stop(self, number: signal.Signals = signal.SIGTERM, patience: float = 60.0) -> float:
        """Stop it, and wait until it has ended; returns the seconds that this took.

        The signal goes to its whole process group, like Ctrl-C in a terminal.
        """
        begin = time.monotonic()
        os.killpg(self.process.pid, number)
        code = self.process.wait(patience)
        if code != 0:
            raise AssertionError(f"it exited with {code}:\n{self.printed()}")
        return time.monotonic() - begin

    def kill(self) -> None:
        """Kill only the launcher, as an inexperienced user might."""
        self.process.kill()
        self.process.wait(10)

    def printed(self) -> str:
        """Its output so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def spark(self) -> list[Process]:
        """The processes of its Airflow that belong to a Spark job: the JVM and its Python."""
        return [process for process in self.home.left() if is_of_job(process)]

    @contextmanager
    def frozen(self, when: Callable[[], bool]) -> Iterator[list[Process]]:
        """Stop all Spark processes as soon as `when` is true, so that none reaches its end.

        The block receives them and must end them; none is left after it.
        """
        until(lambda: when() or None, 600, every=0.02)
        jobs = self.spark()
        for job in jobs:
            send(job, signal.SIGSTOP)
        assert jobs, "the job was too fast"
        yield jobs
        until(lambda: self.spark() == [] or None, 240)


def launch(
    folder: Path,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    output: str = "launcher.log",
    patience: float = PATIENCE,
) -> Launched:
    """Start Airflow in `folder/home` on a free port, and wait until it is ready.

    Args:
        folder: Folder of its home and its output.
        arguments: Further arguments of the launcher.
        environment: Variables in addition to those of this process.
        output: Name of the file for its output.
        patience: Maximum seconds to wait.
    """
    home, printed = Home((folder / "home").resolve()), folder / output
    command = [
        sys.executable,
        "-m",
        "capstan.airflow.local",
        "--port",
        "0",
        "--home",
        str(home.folder),
    ]
    with printed.open("wb") as log:
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        text = _wait_for_welcome(process, printed, patience)
        url = _first_group(r"Airflow is ready: (\S+)", text)
        password = _first_group(r"password +(\S+)", text)
        return Launched(process, home, printed, Rest(url, password))
    except BaseException:
        process.terminate()
        process.wait(60)
        raise


def components(home: Home) -> dict[str, Process]:
    """The running components of an Airflow by name: leaders of sessions that write its logs."""
    leaders = [process for process in home.left() if _leads_session(process)]
    logs = {process: _outputs_of(process) for process in leaders}
    # Children of PostgreSQL lead sessions too, and their log is that of their parent.
    return {
        path.stem: process
        for process, paths in logs.items()
        for path in paths
        if _parent_of(process) not in leaders
    }


def _leads_session(process: Process) -> bool:
    try:
        return bool(os.getsid(process.pid) == process.pid)
    except ProcessLookupError:
        return False


def _outputs_of(process: Process) -> set[Path]:
    """The file to which a process writes its output; none if it has ended."""
    try:
        return {Path(file.path) for file in process.open_files() if file.fd == 1}
    except psutil.NoSuchProcess:
        return set()


def _parent_of(process: Process) -> Process | None:
    try:
        return process.parent()
    except psutil.NoSuchProcess:
        return None


def is_of_job(process: Process) -> bool:
    """Whether a process belongs to a Spark job: the JVM, or its Python."""
    command = command_of(process)
    return "spark" in command or "/spark_apps/" in command


def command_of(process: Process) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def listening(processes: Iterable[Process]) -> set[tuple[str, int]]:
    """Addresses and ports on which processes accept TCP connections."""
    sockets = {inode for process in processes for inode in _sockets(process.pid)}
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in sockets:
                address, port = fields[1].split(":")
                addresses.add((_address(address), int(port, 16)))
    return addresses


def _address(text: str) -> str:
    """An address as written in /proc: words in this machine's byte order."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _sockets(pid: int) -> list[str]:
    try:
        links = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []
    return [link[8:-1] for link in links if link.startswith("socket:[")]


def _wait_for_welcome(process: subprocess.Popen[bytes], printed: Path, patience: float) -> str:
    end = time.monotonic() + patience
    while True:
        text = printed.read_text(encoding="utf-8", errors="replace")
        if "Ctrl-C" in text:
            return text
        if find(process.pid) is None or time.monotonic() > end:
            raise AssertionError(f"Airflow did not become ready:\n{text}")
        time.sleep(0.2)


def _first_group(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise AssertionError(f"nothing like {pattern} in:\n{text}")
    return match.group(1)
