"""A PostgreSQL server from the system's packages, on loopback, like one run by somebody else.

It has a role with a password and an empty database of that role; the launcher gets only its URL.
PostgreSQL refuses to run as root. In that case it runs as `postgres`, the user created by the
package, in a folder of that user.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.driver_under_test import PATIENCE

PLACE = Path("/usr/lib/postgresql")
"""Folder of Debian's PostgreSQL versions, each in a folder named by its number."""

ROLE = "airflow"
"""Name of the role and of its database."""

_OWNER = "postgres"


def find_programs() -> Path | None:
    """The folder of the newest version's programs; None without a server."""
    folders = [folder for folder in PLACE.glob("*/bin") if (folder / "initdb").is_file()]
    return max(folders, key=lambda folder: int(folder.parent.name), default=None)


@contextmanager
def server(programs: Path) -> Iterator[str]:
    """A server with an empty database, within the block; yields its URL.

    Args:
        programs: Folder of `initdb` and `postgres`.

    Raises:
        RuntimeError: It ended, or did not answer in time.
    """
    folder, password = (
        Path(tempfile.mkdtemp(prefix="capstan-system-postgres-")),
        secrets.token_hex(16),
    )
    process = None
    try:
        _make(programs, folder, password)
        port = _free_port()
        process = _start(programs, folder, port)
        _wait(process, programs, port, folder / "log")
        at = ["-h", "127.0.0.1", "-p", str(port), "-U", ROLE]
        _run([str(programs / "createdb"), *at, ROLE], {**os.environ, "PGPASSWORD": password})
        yield f"postgresql://{ROLE}:{password}@127.0.0.1:{port}/{ROLE}"
    finally:
        if process is not None:
            # Fast shutdown: it does not wait for open connections.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _make(programs: Path, folder: Path, password: str) -> None:
    """Create the data of a server with a single role and this password."""
    secret = folder / "password"
    secret.write_text(password, encoding="utf-8")
    _give(folder, secret)
    given = ["-D", str(folder / "data"), "-U", ROLE, f"--pwfile={secret}", "--auth=scram-sha-256"]
    _run([str(programs / "initdb"), *given, "--encoding=UTF8", "--locale=C", "--no-instructions"])


def _start(programs: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": str(folder),
        "shared_buffers": "64MB",
    }
    given = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            _as_owner([str(programs / "postgres"), "-D", str(folder / "data"), *given]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )


def _wait(process: subprocess.Popen[bytes], programs: Path, port: int, log: Path) -> None:
    command = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    end = time.monotonic() + PATIENCE
    while subprocess.run(command, check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"no PostgreSQL:\n{log.read_text(errors='replace')}")
        time.sleep(0.1)


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        _as_owner(command),
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stderr}")


def _as_owner(command: list[str]) -> list[str]:
    """The command, changed so that it does not run as root."""
    if os.geteuid() != 0:
        return command
    # It keeps the process, so that ending the process ends the server.
    return ["setpriv", f"--reuid={_OWNER}", f"--regid={_OWNER}", "--clear-groups", *command]


def _give(*places: Path) -> None:
    """Give files and folders to the server's user."""
    if os.geteuid() == 0:
        owner = pwd.getpwnam(_OWNER)
        for place in places:
            os.chown(place, owner.pw_uid, owner.pw_gid)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
