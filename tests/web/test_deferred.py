"""A task that has left its slot: whoever watches for it is killed, and it goes on all the same."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capstan.airflow.local.processes import send
from tests.support import lake_contents
from tests.support.airflow_api import until
from tests.support.live_airflow import components

if TYPE_CHECKING:
    from conftest import World

DAG = "detached"


@pytest.mark.rest
@pytest.mark.slow
def test_a_deferred_task_survives_whoever_watches(captured: World) -> None:
    """The driver outlives its task; triggerer and scheduler are killed while it works."""
    rest, home = captured.rest, captured.launched.home
    run = rest.trigger(DAG)

    def deferred() -> bool | None:
        return rest.task(DAG, run, "result")["state"] == "deferred" or None

    until(deferred, 240)
    before = components(home)
    watchers = ("triggerer", "scheduler")
    for name in watchers:
        send(before[name], signal.SIGKILL)
    for name in watchers:
        until(lambda name=name: components(home).get(name) not in (None, before[name]) or None, 120)
    assert deferred()
    assert captured.rows(DAG) == []
    (Path(captured.lake.root) / "go").touch()
    rest.require(DAG, run)

    assert rest.task(DAG, run, "result")["try_number"] == 1
    certificate = rest.xcom(DAG, run, "result")
    assert isinstance(certificate, dict)
    assert certificate["published"]
    assert len(captured.rows(DAG)) == certificate["records"] > 0
    lake_contents.require_published_once(captured.lake, str(certificate["run"]))
