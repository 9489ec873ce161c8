"""The launcher's Airflow: on loopback alone, begun again after a death, nothing left at its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from capstan.launcher import processes
from capstan.launcher.home import Home
from capstan.launcher.processes import find
from capstan.launcher.settings import apps_at_once
from capstan.testing.launched import Launched, command_of, launch, listening
from capstan.testing.rest import Refused, Rest, until

DAG = """
from airflow.sdk import dag, task


@dag(schedule=None, is_paused_upon_creation=False)
def sleeper():
    @task
    def sleep():
        # A program in a session of its own, as one that nobody ends would be.
        import subprocess
        subprocess.run(["sleep", "987"], check=True, start_new_session=True)

    sleep()


sleeper()
"""


def sleeping(home: Home) -> int | None:
    """The program that the task runs, if it does."""
    found = [each.pid for each in home.left() if command_of(each).startswith("sleep 987")]
    return found[0] if found else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "sleeper.py").write_text(DAG, encoding="utf-8")
    return tmp_path


def start(folder: Path, output: str) -> Launched:
    arguments = ["--dags", str(folder / "dags"), "--lake", str(folder / "lake")]
    return launch(folder, arguments=arguments, output=output)


@pytest.mark.slow
def test_from_the_first_start_to_the_last_end(folder: Path) -> None:
    launched = start(folder, "first.log")
    home = launched.home
    try:
        on_loopback_alone(launched)
        logins_are_on(launched)
        apps_take_turns(launched)
        the_lake_that_is_missing_is_told(launched, folder)
        a_second_one_is_refused(launched)
        launched.rest.wait_for_dag("sleeper")
        run = launched.rest.trigger("sleeper")
        first = until(lambda: sleeping(home), 60)
        what_dies_is_begun_again(launched, "dag-processor")

        launched.kill()
        assert find(first) is not None
        launched = start(folder, "second.log")
        assert "that an earlier launcher left here" in launched.printed()
        assert find(first) is None
        assert launched.rest.call("GET", "/pools/spark")["slots"] == 1
        # It knows what it was doing: the same run goes on, as its next attempt.
        second = until(lambda: sleeping(home), 90)
        assert int(str(launched.rest.task("sleeper", run, "sleep")["try_number"])) > 1

        seconds = launched.stop()
        assert seconds < 30
        nothing_is_left(launched, second)
    finally:
        processes.end(home.left)
        if launched.process.poll() is None:
            launched.kill()


def on_loopback_alone(launched: Launched) -> None:
    ports = listening(launched.home.left())
    assert ports == {("127.0.0.1", urlsplit(launched.rest.url).port)}
    health = launched.rest.send("GET", "/api/v2/monitor/health")
    for part in ("metadatabase", "scheduler", "dag_processor"):
        assert health[part]["status"] == "healthy"  # type: ignore[index]


def logins_are_on(launched: Launched) -> None:
    with pytest.raises(Refused, match="401"):
        launched.rest.send("GET", "/api/v2/dags")
    with pytest.raises(Refused, match="401"):
        Rest(launched.rest.url, "wrong").call("GET", "/dags")
    assert "dags" in launched.rest.call("GET", "/dags")
    for name in ("airflow.cfg", "secrets.json", "passwords.json"):
        assert (launched.home.folder / name).stat().st_mode & 0o777 == 0o600


def apps_take_turns(launched: Launched) -> None:
    assert launched.rest.call("GET", "/pools/spark")["slots"] == apps_at_once()
    changed = {"pool": "spark", "slots": 1, "include_deferred": False}
    launched.rest.call("PATCH", "/pools/spark?update_mask=slots", changed)


def the_lake_that_is_missing_is_told(launched: Launched, folder: Path) -> None:
    assert f"lake      {folder / 'lake'}   (not there yet: `make demo`" in launched.printed()


def a_second_one_is_refused(launched: Launched) -> None:
    command = [sys.executable, "-m", "capstan.launcher", "--home", str(launched.home.folder)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 4
    assert f"process {launched.process.pid}\n" in second.stderr


def what_dies_is_begun_again(launched: Launched, name: str) -> None:
    before = launched.home.recorded()
    processes.send(before[name], signal.SIGKILL)
    until(lambda: launched.home.recorded().get(name) not in (None, before[name]) or None, 30)
    after = launched.home.recorded()
    assert {n for n in after if after[n] != before[n]} == {name}
    assert f"{name} has ended, and is begun again" in launched.printed()


def nothing_is_left(launched: Launched, program: int) -> None:
    assert launched.printed().endswith("stopping\nstopped: nothing is left running\n")
    assert launched.home.left() == []
    assert find(program) is None
    assert list(launched.home.temporary.iterdir()) == []
    assert not (launched.home.folder / "postgres" / "socket").is_symlink()
