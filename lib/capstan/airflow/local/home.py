"""The folder that Airflow lives in: its lock, its secrets, what runs there, and its logs.

| in the folder | what |
| --- | --- |
| `airflow.cfg` | the settings, written anew at each start; has secrets, for its owner alone |
| `secrets.json` | made once; for its owner alone |
| `passwords.json` | who may log in, with the password; for its owner alone |
| `processes.json` | what the launcher has started |
| `lock` | held by the launcher that runs |
| `logs/` | a log for each component, with that of the start before as `.old`; `tasks/` |
| `postgres/` | the database |
| `tmp/` | what Airflow and Spark put aside; emptied at each start and stop |
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

USER = "admin"
_MARK = "CAPSTAN_LAUNCHED"


@dataclass(frozen=True, slots=True)
class Secrets:
    """What nobody else may know; made once for each home.

    Attributes:
        fernet_key: Encrypts connections in the database.
        jwt_secret: Signs the tokens of the API.
        secret_key: Signs the sessions of the UI.
        mark: Tells processes of this home from all others.
    """

    fernet_key: str
    jwt_secret: str
    secret_key: str
    mark: str


@dataclass(frozen=True, slots=True)
class Home:
    """The folder that one Airflow lives in.

    Attributes:
        folder: An absolute path.
    """

    folder: Path

    @property
    def logs(self) -> Path:
        """Where the components' logs are."""
        return self.folder / "logs"

    @property
    def temporary(self) -> Path:
        """Where components put what they need for a while."""
        return self.folder / "tmp"

    @property
    def passwords(self) -> Path:
        """Airflow's file of users and passwords."""
        return self.folder / "passwords.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the home for this process: the folder is made, and no other launcher can have it.

        Raises:
            RangeLockedError: `CAP-LAUNCHER` when another launcher runs here.
            SystemFailureError: `CAP-HOME` when the folder cannot be made or written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise SystemFailureError(
                "CAP-HOME",
                f"{self.folder} cannot be written: {error.strerror or error}",
                "give --home a folder that is yours",
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
                f"another launcher runs in {self.folder}: process {holder}",
                "stop it, or give this one another --home and --port",
                home=str(self.folder),
                holder=holder,
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)

    def secrets(self) -> Secrets:
        """The secrets of this home, made when there are none yet."""
        made = Secrets(
            fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            jwt_secret=secrets.token_urlsafe(48),
            secret_key=secrets.token_urlsafe(48),
            mark=secrets.token_hex(16),
        )
        return Secrets(**self._kept(self.folder / "secrets.json", asdict(made)))

    def password(self) -> str:
        """The password of `USER`, made when there is none yet."""
        return self._kept(self.passwords, {USER: secrets.token_urlsafe(12)})[USER]

    def mark(self) -> tuple[str, str]:
        """Name and value of the entry in the environment that this home's processes bear."""
        return _MARK, self.secrets().mark

    def _kept(self, path: Path, made: Mapping[str, str]) -> dict[str, str]:
        """What a file of secrets holds; it is written with `made` where something is missing."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = {}
        known = found if isinstance(found, dict) else {}
        if not made.keys() <= known.keys():
            known = {**made, **known}
            write_private(path, json.dumps(known) + "\n")
        path.chmod(0o600)
        return {name: str(known[name]) for name in made}

    def record(self, started: Mapping[str, Process]) -> None:
        """Put down what runs, by its name, so that a later launcher can end what is left of it."""
        known = {name: [each.pid, each.started] for name, each in started.items()}
        text = json.dumps({"boot": processes.boot(), "processes": known})
        write_private(self.folder / "processes.json", text + "\n")

    def recorded(self) -> dict[str, Process]:
        """What was put down last and still runs, by its name."""
        try:
            found = json.loads((self.folder / "processes.json").read_text(encoding="utf-8"))
            if found["boot"] != processes.boot():
                return {}
            known = {name: Process(*each) for name, each in found["processes"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        return {name: each for name, each in known.items() if processes.runs(each)}

    def left(self, spared: Process | None = None) -> list[Process]:
        """What runs of this home: what was recorded, what bears its mark, and their sessions.

        Args:
            spared: Left out, with its children: the database, until all others have ended.
        """
        sessions = {each.pid for each in self.recorded().values()}
        sessions |= processes.sessions_with("=".join(self.mark()), self.logs)
        if spared is not None:
            sessions -= processes.sessions_below(spared.pid)
        return [each for session in sorted(sessions) for each in processes.session_of(session)]

    def log(self, name: str) -> Path:
        """A new log of a component; the last one is kept beside it."""
        path = self.logs / f"{name}.log"
        if path.exists():
            path.replace(path.with_suffix(".log.old"))
        path.touch(mode=0o600)
        return path

    def clear_temporary(self) -> None:
        """Empty the folder for what is needed for a while."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone may read: whole, or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    unfinished.replace(path)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, indented."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
