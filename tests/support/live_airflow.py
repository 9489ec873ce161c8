"""A real Airflow for tests, started as a person would start it, and what runs and listens of it."""

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

from capstan.airflow.local.home import Home
from capstan.airflow.local.processes import Process, find, send
from tests.support.airflow_api import Rest, until

PATIENCE = 240.0
"""Seconds within which Airflow is ready, on a machine that is busy with other tests."""
_LISTENS = "0A"


@dataclass(slots=True)
class Launched:
    """A launcher that runs, or ran.

    Attributes:
        process: The launcher's own process.
        home: Where its Airflow lives.
        output: The file that has all it printed.
        rest: Airflow's API, with the password that the launcher printed.
    """

    process: subprocess.Popen[bytes]
    home: Home
    output: Path
    rest: Rest

    def stop(self, number: signal.Signals = signal.SIGTERM, patience: float = 60.0) -> float:
        """Ask it to stop, and wait until it has; how many seconds that took.

        The signal goes to all of its group, as that of a terminal's Ctrl-C does.
        """
        begin = time.monotonic()
        os.killpg(self.process.pid, number)
        code = self.process.wait(patience)
        if code != 0:
            raise AssertionError(f"it ended with {code}:\n{self.printed()}")
        return time.monotonic() - begin

    def kill(self) -> None:
        """Kill the launcher alone, as someone may who does not know better."""
        self.process.kill()
        self.process.wait(10)

    def printed(self) -> str:
        """All it has printed."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def spark(self) -> list[Process]:
        """The processes of its Airflow that belong to a Spark app: the JVM and its Python."""
        return [each for each in self.home.left() if "spark" in command_of(each)]

    @contextmanager
    def frozen(self, when: Callable[[], bool]) -> Iterator[list[Process]]:
        """Have all Spark processes stand still at the moment `when` says so: none reaches its end.

        The block has to end them, and gets them; with it none is left.
        """
        until(lambda: when() or None, 600, every=0.02)
        apps = self.spark()
        for app in apps:
            send(app, signal.SIGSTOP)
        assert apps, "the app was too fast"
        yield apps
        until(lambda: self.spark() == [] or None, 240)


def launch(
    folder: Path,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    output: str = "launcher.log",
    patience: float = PATIENCE,
) -> Launched:
    """Start Airflow in `folder/home` on a port that is free, and wait until it is ready.

    Args:
        folder: Where its home and what it prints go.
        arguments: Further arguments of the launcher.
        environment: Variables beside those of this process.
        output: The name of the file for what it prints.
        patience: For how many seconds it is waited for.
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
        url = _found(r"Airflow is ready: (\S+)", text)
        password = _found(r"password +(\S+)", text)
        return Launched(process, home, printed, Rest(url, password))
    except BaseException:
        process.terminate()
        process.wait(60)
        raise


def command_of(process: Process) -> str:
    """The command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def listening(processes: Iterable[Process]) -> set[tuple[str, int]]:
    """Addresses and ports on which processes take connections by TCP."""
    sockets = {inode for each in processes for inode in _sockets(each.pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in sockets:
                address, port = fields[1].split(":")
                found.add((_address(address), int(port, 16)))
    return found


def _address(text: str) -> str:
    """An address as /proc tells it: words in the order of bytes of this machine."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _sockets(pid: int) -> list[str]:
    try:
        links = [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
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


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise AssertionError(f"nothing like {pattern} in:\n{text}")
    return match.group(1)
