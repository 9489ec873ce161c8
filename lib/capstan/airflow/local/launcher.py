"""The launcher: starts, supervises and stops the database and Airflow's components."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

from capstan.airflow.local import components, processes
from capstan.airflow.local.api import make_pool, unready
from capstan.airflow.local.components import AIRFLOW, Component, airflow_command
from capstan.airflow.local.database import Postgres, check_url, embedded
from capstan.airflow.local.home import USER, Home, tail, write_private
from capstan.airflow.local.settings import (
    POOL,
    Setup,
    apps_at_once,
    config_text,
    environment,
    free_port,
    is_there,
    whole_lake,
)
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.spark.project_home import packages
from capstan.spark.setup.class_archive import archive_path
from capstan.spark.setup.java import find_java

_READY_SECONDS = 180.0
_DATABASE_SECONDS = 60.0
_DATABASE_PATIENCE = 10.0
_MIGRATE_SECONDS = 300.0
_ARCHIVE_SECONDS = 700.0
_DATABASE = "postgres"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The options of a launch.

    Attributes:
        home: The home folder of Airflow.
        port: The port of the UI and the API; 0 for a free one.
        dags: The folder of the DAG files.
        lake: The lake: a folder or a URI.
        database: The URL of an existing PostgreSQL; None to start one.
    """

    home: Path
    port: int
    dags: Path
    lake: str
    database: str | None = None


class _Stopped(Exception):
    """Raised when the launcher is stopped during its start."""


@dataclass(slots=True)
class Launcher:
    """One Airflow from start to stop.

    Attributes:
        options: The options.
        say: Prints a line for the user.
        stopping: Set from outside to stop it.
        hurry: Set from outside as well to stop it at once.
    """

    options: LaunchOptions
    say: Say
    stopping: threading.Event = field(default_factory=threading.Event)
    hurry: threading.Event = field(default_factory=threading.Event)
    _home: Home = field(init=False)
    _postgres: Postgres | None = field(init=False, default=None)
    _started: list[Component] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._home = Home(self.options.home.resolve())

    def run(self) -> None:
        """Launch, supervise until stopped, and return when nothing runs any more."""
        processes.require_proc()
        if importlib.util.find_spec("airflow") is None:
            raise SystemFailureError("CAP-AIRFLOW", "Airflow is not installed", packages("airflow"))
        dags = self.options.dags
        if not dags.is_dir():
            hint = "give --dags an existing folder"
            raise InvalidRequestError("CAP-DAGS", f"there is no folder {dags}", hint, field="dags")
        url = None if self.options.database is None else check_url(self.options.database)
        with self._home.held():
            self._end_orphans()
            port = free_port(self.options.port)
            self._home.clear_temporary()
            try:
                self._start(port, url)
                while not self.stopping.wait(0.5):
                    self._supervise()
            except _Stopped:
                return
            finally:
                self._stop()

    def _end_orphans(self) -> None:
        """Kill what an earlier, killed launcher left running in this home."""
        left = self._home.left()
        if left:
            self.say(f"ending {len(left)} processes that an earlier launcher left running")
            database = self._home.recorded().get(_DATABASE)
            # Without a signal first: none must report the end of another as a failed task.
            processes.end(lambda: self._home.left(spared=database))
            # PostgreSQL shuts down cleanly on SIGINT.
            processes.end(self._home.left, ask=signal.SIGINT, patience=_DATABASE_PATIENCE)

    def _start(self, port: int, url: str | None) -> None:
        database = self._start_database() if url is None else url
        dags, lake = self.options.dags.absolute(), whole_lake(self.options.lake)
        setup = Setup(self._home, port, dags, lake, database)
        write_private(self._home.folder / "airflow.cfg", config_text(setup))
        self._home.password()
        known = environment(setup)
        self._make_archive(known)
        self._migrate(known)
        self.say("airflow: starting")
        since = datetime.now(UTC) - timedelta(seconds=1)
        for name, arguments in AIRFLOW.items():
            if name == "scheduler":
                # Tasks fetch their work from the API, and fail if it does not answer yet.
                self._until(
                    lambda: "api-server" not in unready(port, since), _READY_SECONDS, "its API"
                )
                make_pool(port, self._home.password(), known[POOL], apps_at_once())
            self._begin(Component(name, airflow_command(*arguments), known, self._home))
        self._until(lambda: not unready(port, since), _READY_SECONDS, "its health report")
        self._welcome(setup)

    def _start_database(self) -> str:
        self._postgres = postgres = embedded(self._home.folder / _DATABASE)
        self.say("postgres: starting")
        postgres.make()
        postgres.make_socket()
        name, mark = self._home.mark()
        server = Component(
            _DATABASE,
            postgres.command(),
            {**os.environ, name: mark},
            self._home,
            signal.SIGINT,
            _DATABASE_PATIENCE,
        )
        self._begin(server)
        self._until(postgres.is_ready, _DATABASE_SECONDS, "its database", server.log)
        return postgres.url

    def _migrate(self, known: dict[str, str]) -> None:
        """Migrate the database to Airflow's version, unless already done."""
        stamp = self._home.folder / _DATABASE / "migrated"
        version = metadata.version("apache-airflow")
        managed = self._postgres is not None
        if managed and stamp.is_file() and stamp.read_text(encoding="utf-8") == version:
            return
        self.say("airflow: migrating its database")
        stamp.unlink(missing_ok=True)
        command = airflow_command("db", "migrate")
        migration = Component("migrate", command, known, self._home, once=True)
        code = self._run_once(migration, _MIGRATE_SECONDS, "`airflow db migrate`")
        if code != 0:
            raise SystemFailureError(
                "CAP-DATABASE",
                f"`airflow db migrate` ended with {code}:\n{tail(migration.log)}",
                f"see {migration.log}",
            )
        if managed:
            stamp.write_text(version, encoding="utf-8")

    def _make_archive(self, known: dict[str, str]) -> None:
        """Build the class archive, which speeds up Spark's start, if it is missing; optional.

        A separate process does it, which can be killed at any time.
        """
        if archive_path(find_java()).is_file():
            return
        self.say("spark: preparing a faster start, once (about a minute)")
        code = "from capstan.spark.setup.class_archive import make_archive; make_archive()"
        command = [sys.executable, "-c", code]
        builder = Component("archive", command, known, self._home, once=True)
        if self._run_once(builder, _ARCHIVE_SECONDS, "the class archive") != 0:
            self.say(f"spark: that failed, so apps start slower; see {builder.log}")

    def _run_once(self, component: Component, seconds: float, title: str) -> int | None:
        """Start a component that ends on its own, wait for it, and return its exit code."""
        self._begin(component)
        self._until(component.has_ended, seconds, title, component.log)
        self._started.remove(component)
        return component.reap()

    def _begin(self, component: Component) -> None:
        self._started.append(component)
        component.start()
        self._record()

    def _record(self) -> None:
        self._home.record({c.name: c.process for c in self._started if c.process is not None})

    def _until(
        self, done: Callable[[], bool], seconds: float, title: str, log: Path | None = None
    ) -> None:
        """Wait until `done` returns true, and supervise the components meanwhile."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                ending = f":\n{tail(log)}" if log else ""
                raise SystemFailureError(
                    "CAP-AIRFLOW",
                    f"Airflow is not ready: {title} takes more than {seconds:.0f} s{ending}",
                    f"logs are in {self._home.logs}",
                )
            if self.stopping.wait(0.2):
                raise _Stopped
            self._supervise()

    def _supervise(self) -> None:
        """Restart components that have exited unexpectedly."""
        for component in self._started:
            if component.has_ended() and not component.once:
                self.say(f"{component.name} exited, and is restarted; see {component.log}")
                component.restart()
                self._record()

    def _welcome(self, setup: Setup) -> None:
        missing = (
            "" if is_there(setup.lake) else "   (does not exist yet: `capstan demo` creates one)"
        )
        for line in (
            "",
            f"Airflow is ready: {setup.url}",
            f"  user      {USER}",
            f"  password  {self._home.password()}   (stored in {self._home.passwords})",
            f"  lake      {setup.lake}{missing}",
            f"  logs      {self._home.logs}",
            "",
            "Ctrl-C stops it.",
        ):
            self.say(line)

    def _stop(self) -> None:
        """Stop everything, the database last; nothing of this home runs afterwards."""
        if self._started:
            self.say("stopping")
        servers = [component for component in self._started if component.name == _DATABASE]
        components.stop([c for c in self._started if c not in servers], self.hurry.is_set)
        # An app that started its own session still has the mark.
        spared = servers[0].process if servers else None
        processes.end(lambda: self._home.left(spared))
        components.stop(servers, self.hurry.is_set)
        self._home.record({})
        self._home.clear_temporary()
        if self._postgres is not None:
            self._postgres.remove_socket()
        if self._started:
            self.say("stopped: nothing is left running")
