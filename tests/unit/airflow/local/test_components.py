"""Components: begun again within bounds, and ended with all that they started."""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from capstan.airflow.local import processes
from capstan.airflow.local.__main__ import main
from capstan.airflow.local.database import embedded
from capstan.airflow.local.home import MARK, Home
from capstan.airflow.local.launcher import unready
from capstan.airflow.local.processes import RESTARTS, Component
from capstan.errors import SystemFailureError

SLEEP = "import time; time.sleep(600)"
# Leaves a process behind that does not do as it is asked.
LEAVES = "import subprocess, sys; subprocess.Popen(['sleep', '600']); sys.exit('it ends here')"
IGNORES = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home; what still runs in it is ended."""
    made = Home(tmp_path.resolve() / "home")
    with made.held():
        yield made
        processes.end(made.left)


def component(home: Home, program: str, name: str = "part", **more: object) -> Component:
    command = [sys.executable, "-u", "-c", program]
    environment = {**os.environ, MARK: str(home.folder)}
    return Component(name, command, environment, home.log(name), **more)  # type: ignore[arg-type]


def wait_for(done: Callable[[], bool]) -> None:
    assert processes.wait_until(done, 20)


def test_a_component_is_restarted_but_not_forever(home: Home) -> None:
    part = component(home, LEAVES)
    part.start()
    for _ in range(RESTARTS):
        wait_for(part.has_ended)
        part.restart()
    wait_for(part.has_ended)
    with pytest.raises(
        SystemFailureError, match="CAP-AIRFLOW: part exited 4 times in 10 minutes, last with 1"
    ):
        part.restart()
    assert part.log.read_text(encoding="utf-8").count("it ends here") == RESTARTS + 1


def test_the_error_has_the_end_of_the_log(home: Home) -> None:
    part = component(home, "import sys; sys.exit('the reason')")
    part._ends = [float("inf")] * RESTARTS
    part.start()
    wait_for(part.has_ended)
    with pytest.raises(SystemFailureError, match="the reason"):
        part.restart()


def test_ends_that_lie_far_apart_do_not_count(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WITHIN", 0.0)
    part = component(home, "pass")
    part.start()
    for _ in range(RESTARTS + 2):
        wait_for(part.has_ended)
        part.restart()


def test_leftovers_of_a_component_end_before_its_restart(home: Home) -> None:
    part = component(home, LEAVES)
    part.start()
    wait_for(part.has_ended)
    assert len(home.left()) == 1
    part.restart()
    wait_for(part.has_ended)
    assert len(home.left()) == 1
    part.reap()
    assert home.left() == []


def test_stopping_asks_all_and_kills_who_does_not_listen(home: Home) -> None:
    polite = component(home, SLEEP, "polite", patience=0.3)
    stubborn = component(home, IGNORES, patience=0.3)
    for item in (polite, stubborn):
        item.start()
    wait_for(lambda: "up" in stubborn.log.read_text(encoding="utf-8"))
    processes.stop([polite, stubborn], lambda: False)
    assert home.left() == []
    assert polite.process is stubborn.process is None
    processes.stop([polite, stubborn], lambda: False)


def test_who_is_in_a_hurry_does_not_wait(home: Home) -> None:
    part = component(home, IGNORES, patience=300.0)
    part.start()
    wait_for(lambda: "up" in part.log.read_text(encoding="utf-8"))
    processes.stop([part], lambda: True)
    assert home.left() == []


def test_a_program_that_is_not_there_is_an_error(home: Home) -> None:
    part = Component("part", ["/none/such"], {}, home.log("part"))
    with pytest.raises(SystemFailureError, match="CAP-AIRFLOW: part cannot be started"):
        part.start()


def test_postgresql_listens_on_its_socket_only(home: Home) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    for expected in (None, ("kept",)):
        server = embedded(home.folder / "postgres")
        server.make()
        assert server.running() is None
        log = home.log("postgres")
        part = Component("postgres", server.command(), os.environ, log, signal.SIGINT, 10.0)
        part.start()
        wait_for(server.is_ready)
        assert server.running() == part.process
        address = server.url.removeprefix("postgresql+psycopg2://airflow@/postgres?host=")
        connection = psycopg2.connect(user="airflow", dbname="postgres", host=address)
        with connection, connection.cursor() as cursor:
            cursor.execute("SHOW listen_addresses")
            assert cursor.fetchone() == ("",)
            cursor.execute("CREATE TABLE IF NOT EXISTS t (x text)")
            cursor.execute("SELECT x FROM t")
            assert cursor.fetchone() == expected
            cursor.execute("INSERT INTO t VALUES ('kept')")
        connection.close()
        assert oct(server.socket.stat().st_mode & 0o777) == "0o700"
        processes.stop([part], lambda: False)
        assert "database system is shut down" in part.log.read_text(encoding="utf-8")
        server.remove_socket()
        assert not server.socket.exists()


def test_a_socket_that_a_killed_launcher_left_is_removed(home: Home) -> None:
    first = embedded(home.folder / "postgres")
    first.make()
    (first.socket / "left").touch()
    second = embedded(home.folder / "postgres")
    second.make()
    assert list(second.socket.iterdir()) == []
    second.remove_socket()
    assert not first.socket.exists()


@pytest.mark.parametrize(
    "text",
    ["", "no number", f"{os.getpid()}\n", f"{2**22 + 1}\n"],
    ids=["empty", "text", "this process", "no process"],
)
def test_what_its_file_names_is_the_server_only_if_it_is_one(home: Home, text: str) -> None:
    server = embedded(home.folder / "postgres")
    server.data.mkdir(parents=True)
    (server.data / "postmaster.pid").write_text(text, encoding="utf-8")
    assert server.running() is None


@pytest.fixture
def report() -> Iterator[tuple[int, dict[str, object]]]:
    """A server that answers with a report on health; the report can be changed."""
    reported: dict[str, object] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/v2/monitor/health" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(reported or "not yet").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1], reported
    server.shutdown()
    thread.join()
    server.server_close()


def test_ready_is_what_has_beaten_since_it_was_started(
    report: tuple[int, dict[str, object]],
) -> None:
    port, reported = report
    now = datetime.now(UTC)

    def beat(part: str, moment: datetime, status: str = "healthy") -> None:
        reported[part] = {"status": status, f"latest_{part}_heartbeat": moment.isoformat()}

    assert unready(port, now) == ["api-server"]
    reported["metadatabase"] = {"status": "healthy"}
    assert unready(port, now) == ["scheduler", "triggerer", "dag_processor"]
    beat("triggerer", now)
    beat("scheduler", now - timedelta(seconds=5))
    beat("dag_processor", now)
    assert unready(port, now) == ["scheduler"]
    beat("scheduler", now + timedelta(seconds=1), "unhealthy")
    assert unready(port, now) == ["scheduler"]
    beat("scheduler", now + timedelta(seconds=1))
    assert unready(port, now) == []


def test_an_api_that_does_not_answer_is_not_ready() -> None:
    from capstan.airflow.local.settings import free_port

    assert unready(free_port(0), datetime.now(UTC)) == ["api-server"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--port", "many"], "CAP-USAGE"),
        (["--nothing"], "CAP-USAGE"),
        (["--dags", "/none/such"], "CAP-DAGS"),
        (["--database", "sqlite:///x"], "CAP-DATABASE"),
    ],
)
def test_wrong_requests_end_with_2_and_change_nothing(
    arguments: list[str], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    assert main(["--home", str(home), *arguments]) == 2
    assert code in capsys.readouterr().err
    assert not home.exists()


@pytest.fixture(autouse=True)
def _keep_signals() -> Iterator[None]:
    """`main` takes signals over: for a test, for no longer."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, 1)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)
