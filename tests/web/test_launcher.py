"""The launcher's Airflow: on loopback alone, begun again after a death, nothing left at its end.

Its end is that of all these tests: see the fixture `world`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from capstan.airflow.local import processes
from capstan.airflow.local.processes import find
from capstan.airflow.local.settings import jobs_at_once
from tests.support.airflow_api import Refused, Rest, until
from tests.support.live_airflow import command_of, components, listening

if TYPE_CHECKING:
    from conftest import World

    from capstan.airflow.local.home import Home


def sleeping(home: Home) -> int | None:
    """The program that the task runs, if it does."""
    actual = [item.pid for item in home.left() if command_of(item).startswith("sleep 987")]
    return actual[0] if actual else None


def test_it_listens_on_loopback_alone(world: World) -> None:
    ports = listening(world.launched.home.left())
    assert ports == {("127.0.0.1", urlsplit(world.rest.url).port)}
    health = world.rest.send("GET", "/api/v2/monitor/health")
    for part in ("metadatabase", "scheduler", "triggerer", "dag_processor"):
        assert health[part]["status"] == "healthy"  # type: ignore[index]


def test_logins_are_on(world: World) -> None:
    with pytest.raises(Refused, match="401"):
        Rest(world.rest.url, "").send("GET", "/api/v2/dags")
    with pytest.raises(Refused, match="401"):
        Rest(world.rest.url, "wrong").call("GET", "/dags")
    assert "dags" in world.rest.call("GET", "/dags")
    folder = world.launched.home.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("airflow.cfg", "database", "passwords.json"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.rest
def test_a_second_one_is_refused(world: World) -> None:
    home = str(world.launched.home.folder)
    command = [sys.executable, "-m", "capstan.airflow.local", "--home", home]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 4
    assert f"process {world.launched.process.pid}\n" in second.stderr


@pytest.mark.rest
def test_what_dies_is_begun_again_and_goes_on(world: World) -> None:
    """First a component, then the launcher itself, while a task runs."""
    home = world.launched.home
    assert slots(world) == jobs_at_once()
    set_slots(world, 1)
    world.rest.wait_for_dag("sleeper")
    run = world.rest.trigger("sleeper")
    first = until(lambda: sleeping(home), 240)

    before = components(home)
    processes.send(before["dag-processor"], signal.SIGKILL)
    until(lambda: components(home).get("dag-processor") not in (None, before["dag-processor"])
          or None, 240)  # fmt: skip
    after = components(home)
    assert {name for name in after if after[name] != before[name]} == {"dag-processor"}
    assert "dag-processor exited, and is restarted" in world.launched.printed()

    world.launched.kill()
    assert find(first) is not None
    world.launch_again("second.log")
    assert "that an earlier launcher left running" in world.launched.printed()
    assert find(first) is None
    # What a person has set is as it was, and what it was doing goes on, as the next attempt.
    assert slots(world) == 1
    set_slots(world, jobs_at_once())

    def at_work_again() -> int | None:
        task = world.rest.task("sleeper", run, "sleep")
        assert task["state"] not in ("failed", "up_for_retry"), task
        return sleeping(home)

    until(at_work_again, 480)
    assert int(str(world.rest.task("sleeper", run, "sleep")["try_number"])) > 1


def slots(world: World) -> object:
    """How many Spark jobs Airflow runs at once."""
    return world.rest.call("GET", "/pools/spark")["slots"]


def set_slots(world: World, count: int) -> None:
    changed = {"pool": "spark", "slots": count, "include_deferred": False}
    world.rest.call("PATCH", "/pools/spark?update_mask=slots", changed)
