"""The home folder of a local Airflow, which only its owner can enter.

It has Airflow's own files, `airflow.cfg` with the secrets that Airflow generated among them, and:
`lock`, held by the running launcher; `passwords.json`; `database`, with the URL; `logs/`, a log of
each component and the previous one as `.old`; `postgres/`; `tmp/`, emptied at each start and stop.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psutil import NoSuchProcess, Process

from capstan.airflow.local import processes
from capstan.errors import RangeLockedError, SystemFailureError
from capstan.spark.project_home import replacing

USER = "admin"
MARK = "CAPSTAN_LAUNCHED"
"""The environment variable of all processes of a home; its value is the folder."""


class Home:
    """The home folder of one Airflow, an absolute path."""

    def __init__(self, folder: Path) -> None:
        """Name the files in the folder, which may not exist."""
        self.folder = folder
        self.logs = folder / "logs"
        self.temporary = folder / "tmp"
        # Airflow's file of users and passwords.
        self.passwords = folder / "passwords.json"
        # It has the URL of the database, which may have a password.
        self.database = folder / "database"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the home for this process, and create the folder if needed."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            problem = f"{self.folder} cannot be written: {error.strerror or error}"
            hint = "give --home a folder that you can write"
            raise SystemFailureError("CAP-HOME", problem, hint) from error
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "unknown"
            raise RangeLockedError(
                "CAP-LAUNCHER",
                f"another launcher is running in {self.folder}: process {holder}",
                "stop it, or use another --home and --port",
                home=str(self.folder),
                holder=holder,
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)

    def password(self) -> str:
        """The password of `USER`, generated if needed."""
        try:
            known = json.loads(self.passwords.read_text(encoding="utf-8"))
            return str(known[USER])
        except (OSError, ValueError, LookupError, TypeError):
            password = secrets.token_urlsafe(12)
            write_private(self.passwords, json.dumps({USER: password}) + "\n")
            return password

    def left(self, spared: Process | None = None) -> list[Process]:
        """Running processes of sessions that have a marked one; not `spared` and its children."""
        sessions = processes.sessions_with(f"{MARK}={self.folder}", self.logs)
        if spared is not None:
            # Each child of PostgreSQL has a session of its own.
            with suppress(NoSuchProcess):
                sessions -= {spared.pid, *(child.pid for child in spared.children())}
        return [p for session in sorted(sessions) for p in processes.session_of(session)]

    def log(self, name: str) -> Path:
        """A new log of a component; the previous one is kept beside it."""
        path = self.logs / f"{name}.log"
        if path.exists():
            path.replace(path.with_suffix(".log.old"))
        path.touch(mode=0o600)
        return path

    def clear_temporary(self) -> None:
        """Empty the folder of temporary files."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only."""
    with replacing(path) as unfinished:
        unfinished.touch(mode=0o600)
        unfinished.write_text(text, encoding="utf-8")
