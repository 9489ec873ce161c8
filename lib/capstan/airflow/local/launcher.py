"""The launcher: starts, supervises and stops the database and Airflow's components."""

from __future__ import annotations

import http.client
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

from capstan.airflow.local import processes
from capstan.airflow.local.database import Postgres, check_url, embedded
from capstan.airflow.local.home import USER, write_private
from capstan.airflow.local.processes import Component, stop, tail
from capstan.airflow.local.settings import (
    LOOPBACK,
    POOL,
    Setup,
    environment,
    free_port,
    jobs_at_once,
)
from capstan.core.json_object import Json
from capstan.errors import InvalidRequestError, SystemFailureError

_PATIENCE = 10.0
_COMPONENTS = {
    "api-server": ("api-server",),
    "dag-processor": ("dag-processor",),
    # The log servers would listen on all interfaces; the UI reads the files itself.
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
}


class _Stopped(Exception):
    """Raised when the launcher is stopped during its start."""


@dataclass(slots=True)
class Launcher:
    """One Airflow from start to stop."""

    setup: Setup
    say: Callable[[str], None]
    # Set from outside to stop it.
    stopping: threading.Event = field(default_factory=threading.Event)
    # Set from outside as well to stop it at once.
    hurry: threading.Event = field(default_factory=threading.Event)
    _components: list[Component] = field(init=False, default_factory=list)
    _servers: list[Component] = field(init=False, default_factory=list)

    def run(self) -> None:
        """Launch, supervise until stopped, and return when nothing runs any more."""
        dags, database = self.setup.dags, self.setup.database
        if not dags.is_dir():
            hint = "give --dags an existing folder"
            raise InvalidRequestError("CAP-DAGS", f"there is no folder {dags}", hint, field="dags")
        url = None if database is None else check_url(database)
        with self.setup.home.held():
            server = embedded(self.setup.home.folder / "postgres") if url is None else None
            self._end_orphans(server)
            self.setup = replace(self.setup, port=free_port(self.setup.port))
            self.setup.home.clear_temporary()
            try:
                self._start(server, url)
                while not self.stopping.wait(0.5):
                    self._supervise()
            except _Stopped:
                return
            finally:
                self._stop(server)

    def _end_orphans(self, server: Postgres | None) -> None:
        """Kill what an earlier, killed launcher left running in this home."""
        home, running = self.setup.home, None if server is None else server.running()
        if left := home.left():
            self.say(f"ending {len(left)} processes that an earlier launcher left running")
        processes.end(lambda: home.left(spared=running))
        if running is not None:
            # PostgreSQL shuts down cleanly on SIGINT.
            processes.send(running, signal.SIGINT)
            processes.wait_until(lambda: not processes.runs(running), _PATIENCE)
        processes.end(home.left)

    def _start(self, server: Postgres | None, url: str | None) -> None:
        setup, home, known = self.setup, self.setup.home, environment(self.setup)
        if server is not None:
            self.say("postgres: starting")
            server.make()
            log = home.log("postgres")
            database = Component("postgres", server.command(), known, log, signal.SIGINT, _PATIENCE)
            self._servers.append(database)
            database.start()
            self._until(server.is_ready, 60, "its database")
            url = server.url
        write_private(home.database, str(url))
        password = home.password()
        self._migrate(known, managed=server is not None)
        self.say("airflow: starting")
        since = datetime.now(UTC) - timedelta(seconds=1)
        for name, arguments in _COMPONENTS.items():
            if name == "scheduler":
                # Tasks fetch their work from the API, and fail if it does not answer yet.
                self._until(lambda: "api-server" not in unready(setup.port, since), 180, "its API")
                make_pool(setup.port, password, known[POOL], jobs_at_once())
            component = Component(name, _airflow(*arguments), known, home.log(name))
            self._components.append(component)
            component.start()
        self._until(lambda: not unready(setup.port, since), 180, "its health report")
        self._welcome(known["CAPSTAN_LAKE"])

    def _migrate(self, known: Mapping[str, str], *, managed: bool) -> None:
        """Migrate the database to Airflow's version, unless already done."""
        home = self.setup.home.folder
        stamp, version = home / "postgres" / "migrated", metadata.version("apache-airflow")
        # The first process generates the keys, so it must be the only one.
        known_before = stamp.is_file() and (home / "airflow.cfg").is_file()
        if managed and known_before and stamp.read_text(encoding="utf-8") == version:
            return
        self.say("airflow: migrating its database")
        stamp.unlink(missing_ok=True)
        log = self.setup.home.log("migrate")
        migration = Component("migrate", _airflow("db", "migrate"), known, log)
        migration.start()
        try:
            self._until(migration.has_ended, 300, "`airflow db migrate`", log)
        finally:
            code = migration.reap()
        if code != 0:
            problem = f"`airflow db migrate` ended with {code}:\n{tail(log)}"
            raise SystemFailureError("CAP-DATABASE", problem, f"see {log}")
        if managed:
            stamp.write_text(version, encoding="utf-8")

    def _until(
        self, done: Callable[[], bool], seconds: float, title: str, log: Path | None = None
    ) -> None:
        """Wait until `done` returns true, and supervise the components meanwhile."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                problem = f"Airflow is not ready: {title} takes more than {seconds:.0f} s"
                hint = f"logs are in {self.setup.home.logs}"
                ending = f":\n{tail(log)}" if log else ""
                raise SystemFailureError("CAP-AIRFLOW", problem + ending, hint)
            if self.stopping.wait(0.2):
                raise _Stopped
            self._supervise()

    def _supervise(self) -> None:
        """Restart components that have exited unexpectedly."""
        for component in (*self._servers, *self._components):
            if component.has_ended():
                self.say(f"{component.name} exited, and is restarted; see {component.log}")
                component.restart()

    def _welcome(self, lake: str) -> None:
        home = self.setup.home
        missing = "://" not in lake and not Path(lake).is_dir()
        creates = "   (does not exist yet: `capstan demo` creates one)" if missing else ""
        self.say(f"\nAirflow is ready: {self.setup.url}")
        self.say(f"  user      {USER}")
        self.say(f"  password  {home.password()}   (stored in {home.passwords})")
        self.say(f"  lake      {lake}{creates}")
        self.say(f"  logs      {home.logs}\n\nCtrl-C stops it.")

    def _stop(self, server: Postgres | None) -> None:
        """Stop everything, the database last; nothing of this home runs afterwards."""
        began = bool(self._servers or self._components)
        if began:
            self.say("stopping")
        stop(self._components, self.hurry.is_set)
        # A job that started its own session still has the mark.
        spared = self._servers[0].process if self._servers else None
        processes.end(lambda: self.setup.home.left(spared))
        stop(self._servers, self.hurry.is_set)
        self.setup.home.clear_temporary()
        if server is not None:
            server.remove_socket()
        if began:
            self.say("stopped: nothing is left running")


def _airflow(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "airflow", *arguments]


def unready(port: int, since: datetime) -> list[str]:
    """The components without a heartbeat since the start, and the API if it does not answer."""
    status, report = _call(port, "GET", "/api/v2/monitor/health")
    if status != http.client.OK or not isinstance(report, dict):
        return ["api-server"]
    return [
        part
        for part in ("metadatabase", "scheduler", "triggerer", "dag_processor")
        if not _healthy(report.get(part), f"latest_{part}_heartbeat", since)
    ]


def _healthy(report: object, heartbeat: str, since: datetime) -> bool:
    if not isinstance(report, dict) or report.get("status") != "healthy":
        return False
    # The database has none.
    if heartbeat not in report:
        return heartbeat == "latest_metadatabase_heartbeat"
    beat = report[heartbeat]
    return beat is not None and datetime.fromisoformat(str(beat)) >= since


def make_pool(port: int, password: str, name: str, slots: int) -> None:
    """Create a pool if it does not exist."""
    credentials = {"username": USER, "password": password}
    status, answer = _call(port, "POST", "/auth/token", credentials)
    if isinstance(answer, dict) and "access_token" in answer:
        about = "Tasks that start Spark: the number of concurrent jobs on this machine"
        pool = {"name": name, "slots": slots, "description": about, "include_deferred": False}
        status, answer = _call(port, "POST", "/api/v2/pools", pool, str(answer["access_token"]))
    if status not in (http.client.OK, http.client.CREATED, http.client.CONFLICT):
        problem = f"Airflow does not create the pool {name!r}: {status}, {str(answer)[:300]}"
        hint = "create it by hand, under Admin, Pools"
        raise SystemFailureError("CAP-AIRFLOW", problem, hint)


def _call(
    port: int, method: str, path: str, body: Json | None = None, token: str = ""
) -> tuple[int, object]:
    """Status and body of a response; 0 and the error when there is none."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, error
    finally:
        connection.close()
