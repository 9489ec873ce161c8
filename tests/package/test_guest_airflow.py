"""An Airflow of a user's own: its virtual environment has the wheel, its DAGs are from `init`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.airflow_api import Rest, until
from tests.support.browser import browsing, find_browser, log_in, new_page
from tests.support.lake_contents import rows
from tests.support.standalone_airflow import standalone
from tests.support.venvs import new_venv

if TYPE_CHECKING:
    from playwright.sync_api import Page

CAPTURE, REPLAY, BACKFILL = (
    "capstan_capture__orders",
    "capstan_replay",
    "capstan_backfill__revenue_by_day",
)
DAYS = 6
FIRST, LAST = "2026-01-05T00:00:00Z", "2026-01-10T00:00:00Z"
SAMPLE_ORDERS = 507
GUEST = """
from airflow.sdk import DAG, TaskGroup

from capstan.airflow import FrontierSensor, ReplayOperator

with DAG("shops", schedule=None, is_paused_upon_creation=False):
    for shop in ("oslo", "berlin"):
        with TaskGroup(shop):
            complete = FrontierSensor(
                task_id="complete", stream="orders", until="2026-01-08", poke_interval=1
            )
            replay = ReplayOperator(
                task_id="replay",
                stream="orders",
                workers=[shop],
                until="2026-01-08",
                target="{{ task.task_group.group_id }}_early",
            )
            complete >> replay
"""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]


class Guest:
    """An Airflow with the wheel, and the lake of its DAGs."""

    def __init__(self, rest: Rest, lake: Path) -> None:
        self.rest = rest
        self.lake = lake

    def rows(self, table: str) -> list[str]:
        return rows(str(self.lake / "tables" / table))


# Airflow 3.2 admits later releases of its libraries, with which it does not start. These bounds
# select those of its time, as its constraints file does.
AIRFLOWS = {
    "3.3": ("apache-airflow==3.3.*",),
    "3.2": ("apache-airflow==3.2.*", "cadwyn<8", "fastapi<0.137", "pydantic<2.14"),
}


@pytest.fixture(scope="module", params=AIRFLOWS)
def guest(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Guest]:
    folder = tmp_path_factory.mktemp("guest").resolve()
    requirements = (f"{wheel}[airflow,java,spark,sql]", *AIRFLOWS[request.param])
    programs = new_venv(folder / "venv", "3.12", *requirements)
    dags, lake = folder / "dags", folder / "lake"
    environment = {
        "HOME": str(folder / "home"),
        "PATH": f"{programs}:/usr/bin:/bin",
        "CAPSTAN_LAKE": str(lake),
        "CAPSTAN_DRIVER_MEMORY": "1g",
        # Jars and the class archive are fetched once for all tests.
        "CAPSTAN_CACHE": os.environ.get("CAPSTAN_TEST_CACHE", str(folder / "cache")),
    }
    command = [str(programs / "capstan"), "init", str(folder / "project"), "--airflow", str(dags)]
    subprocess.run(command, check=True, env=environment, cwd=folder, timeout=120)
    (dags / "shops.py").write_text(GUEST, encoding="utf-8")
    with standalone(folder, programs, dags, environment) as rest:
        yield Guest(rest, lake)


@pytest.fixture(scope="module")
def captured(guest: Guest) -> Guest:
    guest.rest.wait_for_dag(CAPTURE)
    assert guest.rest.import_errors() == []
    guest.rest.unpause(CAPTURE)
    run = guest.rest.run(CAPTURE)
    result = guest.rest.xcom(CAPTURE, run, "capture")
    assert isinstance(result, dict)
    assert result["fed"] == SAMPLE_ORDERS
    return guest


def test_a_replay_by_form_is_published(captured: Guest) -> None:
    conf = {"stream": "orders", "into": "oslo_orders", "workers": ["oslo"], "until": "2026-01-12"}
    run = captured.rest.run(REPLAY, conf)
    certificate = captured.rest.xcom(REPLAY, run, "replay")
    assert isinstance(certificate, dict)
    assert certificate["published"]
    assert len(captured.rows("oslo_orders")) == certificate["records"] > 0
    # Its pages are there, too.
    listed = captured.rest.send("GET", "/capstan/attention.json")
    assert listed["total"] == sum(listed["kinds"].values()) == len(listed["attention"])


def test_six_days_are_filled_by_a_backfill(captured: Guest) -> None:
    captured.rest.unpause(BACKFILL)
    captured.rest.backfill(BACKFILL, FIRST, LAST, max_active_runs=2)

    def ended() -> bool | None:
        states = [str(run["state"]) for run in captured.rest.runs(BACKFILL)]
        return (len(states) == DAYS and set(states) <= {"success", "failed"}) or None

    until(ended, 1800)
    for run in captured.rest.runs(BACKFILL):
        captured.rest.require(BACKFILL, str(run["dag_run_id"]))
    # Three shops a day.
    assert len(captured.rows("revenue_by_day")) == 3 * DAYS


def test_a_dag_of_the_users_own_replays_in_task_groups(captured: Guest) -> None:
    captured.rest.wait_for_dag("shops")
    run = captured.rest.run("shops")
    for shop in ("oslo", "berlin"):
        certificate = captured.rest.xcom("shops", run, f"{shop}.replay")
        assert isinstance(certificate, dict)
        assert certificate["published"]
        assert len(captured.rows(f"{shop}_early")) == certificate["records"] > 0


def test_the_page_shows_the_stream(captured: Guest, tmp_path: Path) -> None:
    program = find_browser()
    assert program is not None, "install Chromium"
    with browsing(program) as browser:
        page: Page = new_page(browser)
        log_in(page, captured.rest)
        page.goto(f"{captured.rest.url}/plugin/capstan")
        frame = page.frame_locator('iframe[title="Capstan"]')
        frame.get_by_role("link", name="orders", exact=True).first.click()
        frame.get_by_role("heading", name="Frontiers").wait_for()
        page.screenshot(path=tmp_path / "page.png")
