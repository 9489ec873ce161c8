"""A few of the kills of `make chaos`: random, and from one seed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from capstan.airflow.local.home import Home
from tests.support.airflow_api import until
from tests.support.chaos import Chaos
from tests.support.live_airflow import command_of

if TYPE_CHECKING:
    from pathlib import Path

    from psutil import Process

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

SEED = 20261122


def test_whatever_work_is_killed_nothing_is_lost(spark, tmp_path) -> None:
    chaos = Chaos(tmp_path, SEED, ("points", "moment"))
    chaos.run(6)
    chaos.finish(spark)


def test_whatever_dies_beside_a_driver_nothing_is_lost(spark, tmp_path) -> None:
    chaos = Chaos(tmp_path, SEED, ("points",))
    chaos.run(1)
    # Whoever goes on in the same folder goes on from there, over a round that was broken off.
    for kind in ("executors", "broker"):
        other = Chaos(tmp_path, 0, (kind,))
        assert other.progress == chaos.progress
        (tmp_path / f"round-{chaos.progress.rounds}" / "driver").mkdir(parents=True)
        other.run(other.progress.kills + 1)
        chaos = other
    assert chaos.progress.executors * chaos.progress.brokers > 0
    chaos.finish(spark)


@pytest.mark.timeout(5400)
def test_whatever_is_killed_of_airflow_nothing_is_lost(spark, tmp_path) -> None:
    break_off(tmp_path)
    chaos = Chaos(tmp_path, SEED, ("airflow",))
    assert chaos.progress.kills == 0
    chaos.run(1)
    assert chaos.progress.tasks == chaos.progress.kills
    chaos.finish(spark)


def break_off(folder: Path) -> None:
    """Kill chaos in a round of Airflow's: that lives on, and so does what it has at work."""
    command = ["--kills=1", f"--seed={SEED}", f"--folder={folder}", "--rounds=airflow"]
    home = Home(folder / "airflow" / "home")
    with (folder / "broken-off.log").open("wb") as log:
        chaos = subprocess.Popen(
            [sys.executable, "-m", "tests.support.chaos", *command],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: chaos.poll() is not None or jobs(home) or None, 1800, every=2)
    finally:
        chaos.kill()
        chaos.wait(60)
    assert jobs(home) != [], (folder / "broken-off.log").read_text()


def jobs(home: Home) -> list[Process]:
    """The processes of Spark jobs that an Airflow has at work."""
    # To ask for what runs there makes its secrets, which is for its launcher to do.
    there = home.left() if home.logs.exists() else []
    return [item for item in there if "/spark_apps/" in command_of(item)]
