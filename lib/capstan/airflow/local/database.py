"""PostgreSQL for Airflow: the server of the wheel `pgserver`, on a private socket.

It listens on no port. The socket is in a folder that only its owner can enter, so no password is
needed. SQLite does not work: it locks up under a running scheduler.

PostgreSQL refuses to run as root. In that case it runs as the owner of its data, another user, with
only the capability to traverse folders that belong to root, such as a project below /root.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.spark.project_home import set_up

ROLE = "airflow"
_MAKING_SECONDS = 120.0
_UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Postgres:
    """A PostgreSQL server on this machine.

    Attributes:
        folder: The parent of its data folder; may not exist yet.
        socket: The folder of its socket, a short path.
        programs: The folder of `postgres` and `initdb`.
    """

    folder: Path
    socket: Path
    programs: Path

    @property
    def data(self) -> Path:
        """The folder of the data."""
        return self.folder / "data"

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of its database."""
        return f"postgresql+psycopg2://{ROLE}@/postgres?host={self.socket}"

    def command(self) -> list[str]:
        """The command that runs the server in the foreground."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket),
            "unix_socket_permissions": "0700",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "shared_buffers": "64MB",
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return self._as_owner([str(self.programs / "postgres"), "-D", str(self.data), *options])

    def is_ready(self) -> bool:
        """Whether it accepts connections."""
        command = [str(self.programs / "pg_isready"), "-q", "-t", "2", "-h", str(self.socket)]
        return subprocess.run([*command, "-d", "postgres", "-U", ROLE], check=False).returncode == 0

    def make(self) -> bool:
        """Create the data folder if needed; returns whether it was created."""
        if self.data.is_dir():
            return False
        # Renamed when complete: an interrupted one is created again.
        unfinished = self.folder / "making"
        shutil.rmtree(unfinished, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished.mkdir(mode=0o700)
        self._give_to_owner(unfinished)
        command = [str(self.programs / "initdb"), "-D", str(unfinished), "-U", ROLE]
        command += ["--auth-local=trust", "--auth-host=reject", "--no-instructions"]
        command += ["--encoding=UTF8", "--locale=C"]
        done = self._run(self._as_owner(command))
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise _broken(f"initdb ended with {done.returncode}: {lines[-1] if lines else ''}")
        unfinished.rename(self.data)
        return True

    def make_socket(self) -> None:
        """Create the socket folder; a link beside the data names it for removal."""
        self.remove_socket()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._link.symlink_to(self.socket)
        self.socket.mkdir(mode=0o700)
        self._give_to_owner(self.socket)

    def remove_socket(self) -> None:
        """Remove the socket folder, including that of a killed launcher."""
        if self._link.is_symlink():
            shutil.rmtree(self._link.readlink(), ignore_errors=True)
            self._link.unlink()

    @property
    def _link(self) -> Path:
        return self.folder / "socket"

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command, capture_output=True, text=True, timeout=_MAKING_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _broken(str(error)) from error

    def _give_to_owner(self, folder: Path) -> None:
        owner = self._owner()
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)

    def _owner(self) -> pwd.struct_passwd | None:
        """The user to run as if this is root; None otherwise."""
        if os.geteuid() != 0:
            return None
        if self.data.is_dir() and self.data.stat().st_uid != 0:
            return pwd.getpwuid(self.data.stat().st_uid)
        for name in _UNPRIVILEGED:
            try:
                return pwd.getpwnam(name)
            except KeyError:
                continue
        raise _broken(f"there is no user {' or '.join(_UNPRIVILEGED)} to run it as")

    def _as_owner(self, command: list[str]) -> list[str]:
        owner = self._owner()
        if owner is None:
            return command
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise _broken("it does not run as root, and there is no setpriv to switch users")
        user = [f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        capabilities = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
        return [setpriv, *user, *capabilities, *command]


def embedded(folder: Path) -> Postgres:
    """The server with its data in `folder`, and a new socket folder."""
    spec = importlib.util.find_spec("pgserver")
    places = list(spec.submodule_search_locations or ()) if spec else []
    programs = Path(places[0]) / "pginstall" / "bin" if places else Path()
    if not (programs / "postgres").is_file():
        raise SystemFailureError(
            "CAP-DATABASE",
            "PostgreSQL is not installed: the package pgserver is missing",
            f"run {set_up()}, or name a database with --database",
        )
    # A socket path is limited to 107 bytes, which a project's folder can exceed.
    socket = Path(tempfile.gettempdir()) / f"capstan-postgres-{secrets.token_hex(8)}"
    return Postgres(folder, socket, programs)


def check_url(url: str) -> str:
    """The SQLAlchemy URL of the database named by `--database`."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise InvalidRequestError(
            "CAP-DATABASE",
            f"--database has the scheme {scheme!r}, not postgresql",
            "give postgresql://user:password@host:port/name; SQLite fails under a scheduler",
            field="database",
        )
    return f"postgresql+psycopg2://{rest}"


def _broken(reason: str) -> SystemFailureError:
    return SystemFailureError(
        "CAP-DATABASE",
        f"PostgreSQL could not be started: {reason}",
        "run as an ordinary user, or name your own database with --database",
    )
