"""PostgreSQL for Airflow: the server of the wheel `pgserver`, on a private socket.

It listens on no port. The socket is in a folder that only its owner can enter, so no password is
needed. PostgreSQL refuses to run as root: there it runs as the owner of its data, another user,
with only the capability to traverse folders that belong to root, such as a project below /root.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from psutil import NoSuchProcess, Process

from capstan.airflow.local import processes
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.spark.project_home import set_up

_ROLE = "airflow"


@dataclass(frozen=True, slots=True)
class Postgres:
    """A PostgreSQL server on this machine: the parent of its data, and its programs."""

    folder: Path
    programs: Path

    @property
    def data(self) -> Path:
        """The folder of the data."""
        return self.folder / "data"

    @property
    def socket(self) -> Path:
        """The folder of its socket, whose path is limited to 107 bytes."""
        name = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"capstan-postgres-{name}"

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of its database."""
        return f"postgresql+psycopg2://{_ROLE}@/postgres?host={self.socket}"

    def command(self) -> list[str]:
        """The command that runs the server in the foreground."""
        options = f"listen_addresses= unix_socket_directories={self.socket} shared_buffers=64MB"
        options += " unix_socket_permissions=0700 timezone=UTC log_timezone=UTC"
        command = [str(self.programs / "postgres"), "-D", str(self.data)]
        return self._as_owner([*command, *(f"--{option}" for option in options.split(" "))])

    def is_ready(self) -> bool:
        """Whether it accepts connections."""
        command = [str(self.programs / "pg_isready"), "-q", "-t", "2", "-h", str(self.socket)]
        return (
            subprocess.run([*command, "-d", "postgres", "-U", _ROLE], check=False).returncode == 0
        )

    def running(self) -> Process | None:
        """Its process, if it runs, whoever started it."""
        try:
            first = (self.data / "postmaster.pid").read_text(encoding="utf-8").split("\n")[0]
            process = processes.find(int(first))
            return process if process is not None and process.name() == "postgres" else None
        except (OSError, ValueError, NoSuchProcess):
            return None

    def make(self) -> None:
        """Create the data folder if needed, and an empty folder for the socket."""
        try:
            self._make()
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _broken(str(error)) from error

    def _make(self) -> None:
        self.remove_socket()
        self.socket.mkdir(mode=0o700)
        self._give_to_owner(self.socket)
        if self.data.is_dir():
            return
        # Renamed when complete: an interrupted one is created again.
        unfinished = self.folder / "making"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700, parents=True)
        self._give_to_owner(unfinished)
        command = [str(self.programs / "initdb"), "-D", str(unfinished), "-U", _ROLE]
        command += ["--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", "--locale=C"]
        done = subprocess.run(
            self._as_owner(command), capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0:
            raise _broken(f"initdb ended with {done.returncode}: {done.stderr.strip()[-200:]}")
        unfinished.rename(self.data)

    def remove_socket(self) -> None:
        """Remove the socket folder, including that of a killed launcher."""
        shutil.rmtree(self.socket, ignore_errors=True)

    def _give_to_owner(self, folder: Path) -> None:
        if (owner := self._owner()) is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)

    def _owner(self) -> pwd.struct_passwd | None:
        """The user to run as if this is root; None otherwise."""
        if os.geteuid() != 0:
            return None
        if self.data.is_dir() and self.data.stat().st_uid != 0:
            return pwd.getpwuid(self.data.stat().st_uid)
        for name in ("postgres", "nobody"):
            with suppress(KeyError):
                return pwd.getpwnam(name)
        raise _broken("there is no user postgres or nobody to run it as")

    def _as_owner(self, command: list[str]) -> list[str]:
        if (owner := self._owner()) is None:
            return command
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise _broken("it does not run as root, and there is no setpriv to switch users")
        user = [f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        capabilities = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
        return [setpriv, *user, *capabilities, *command]


def embedded(folder: Path) -> Postgres:
    """The server with its data in `folder`."""
    spec = importlib.util.find_spec("pgserver")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        programs = Path(place) / "pginstall" / "bin"
        if (programs / "postgres").is_file():
            return Postgres(folder, programs)
    problem = "PostgreSQL is not installed: the package pgserver is missing"
    hint = f"run {set_up()}, or name a database with --database"
    raise SystemFailureError("CAP-DATABASE", problem, hint)


def check_url(url: str) -> str:
    """The SQLAlchemy URL of the database named by `--database`."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme.partition("+")[0] not in ("postgresql", "postgres"):
        problem = f"--database has the scheme {scheme!r}, not postgresql"
        hint = "give postgresql://user:password@host:port/name; SQLite fails under a scheduler"
        raise InvalidRequestError("CAP-DATABASE", problem, hint, field="database")
    return f"postgresql+psycopg2://{rest}"


def _broken(reason: str) -> SystemFailureError:
    hint = "run as an ordinary user, or name your own database with --database"
    return SystemFailureError("CAP-DATABASE", f"PostgreSQL could not be started: {reason}", hint)
