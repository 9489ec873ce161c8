"""The home folder of a local Airflow: lock, secrets, process list, logs.

| file or folder | content |
| --- | --- |
| `airflow.cfg` | settings and secrets, rewritten at each start; readable by its owner only |
| `secrets.json` | secrets, generated once; readable by its owner only |
| `passwords.json` | users and passwords; readable by its owner only |
| `processes.json` | the processes that the launcher started |
| `lock` | held by the running launcher |
| `logs/` | a log of each component, the previous one as `.old`; `tasks/` |
| `postgres/` | the database |
| `tmp/` | temporary files of Airflow and Spark; emptied at each start and stop |
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from capstan.airflow.local import processes
from capstan.airflow.local.processes import Process
from capstan.errors import RangeLockedError, SystemFailureError
from capstan.spark.project_home import replacing

USER = "admin"
_MARK = "CAPSTAN_LAUNCHED"


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets of a home, generated once.

    Attributes:
        fernet_key: Encrypts connections in the database.
        jwt_secret: Signs the tokens of the API.
        secret_key: Signs the sessions of the UI.
        mark: Identifies processes of this home.
    """

    fernet_key: str
    jwt_secret: str
    secret_key: str
    mark: str


@dataclass(frozen=True, slots=True)
class Home:
    """The home folder of one Airflow.

    Attributes:
        folder: An absolute path.
    """

    folder: Path

    @property
    def logs(self) -> Path:
        """The folder of the components' logs."""
        return self.folder / "logs"

    @property
    def temporary(self) -> Path:
        """The folder of temporary files."""
        return self.folder / "tmp"

    @property
    def passwords(self) -> Path:
        """Airflow's file of users and passwords."""
        return self.folder / "passwords.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the home for this process, and create the folder if needed."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise SystemFailureError(
                "CAP-HOME",
                f"{self.folder} cannot be written: {error.strerror or error}",
                "give --home a folder that you can write",
            ) from error
        try:
            self._lock(descriptor)
            self.logs.mkdir(exist_ok=True)
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

    def secrets(self) -> Secrets:
        """The secrets of this home, generated if needed."""
        generated = Secrets(
            fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            jwt_secret=secrets.token_urlsafe(48),
            secret_key=secrets.token_urlsafe(48),
            mark=secrets.token_hex(16),
        )
        return Secrets(**self._load_or_create(self.folder / "secrets.json", asdict(generated)))

    def password(self) -> str:
        """The password of `USER`, generated if needed."""
        return self._load_or_create(self.passwords, {USER: secrets.token_urlsafe(12)})[USER]

    def mark(self) -> tuple[str, str]:
        """Name and value of the environment variable that marks this home's processes."""
        return _MARK, self.secrets().mark

    def _load_or_create(self, path: Path, defaults: Mapping[str, str]) -> dict[str, str]:
        """The content of a secrets file; missing entries are added from `defaults`."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            content = {}
        known = content if isinstance(content, dict) else {}
        if not defaults.keys() <= known.keys():
            known = {**defaults, **known}
            write_private(path, json.dumps(known) + "\n")
        path.chmod(0o600)
        return {name: str(known[name]) for name in defaults}

    def record(self, started: Mapping[str, Process]) -> None:
        """Record running processes by name, so that a later launcher can kill leftovers."""
        known = {name: [process.pid, process.started] for name, process in started.items()}
        text = json.dumps({"boot": processes.boot(), "processes": known})
        write_private(self.folder / "processes.json", text + "\n")

    def recorded(self) -> dict[str, Process]:
        """The recorded processes that still run, by name."""
        try:
            content = json.loads((self.folder / "processes.json").read_text(encoding="utf-8"))
            if content["boot"] != processes.boot():
                return {}
            known = {name: Process(*ids) for name, ids in content["processes"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        return {name: process for name, process in known.items() if processes.runs(process)}

    def left(self, spared: Process | None = None) -> list[Process]:
        """The running processes of this home: recorded and marked ones, and their sessions.

        Args:
            spared: A process to leave out, with its children: the database ends last.
        """
        sessions = {process.pid for process in self.recorded().values()}
        sessions |= processes.sessions_with("=".join(self.mark()), self.logs)
        if spared is not None:
            sessions -= processes.sessions_below(spared.pid)
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


def tail(path: Path) -> str:
    """The last 15 lines of a log, indented."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-15:])
