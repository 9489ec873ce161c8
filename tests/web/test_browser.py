"""A person at the browser: logs in, fills the form in, rejects one run, sees another succeed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Error

from capstan.storage.ledger.runs import Step, read_history
from tests.support.airflow_api import until
from tests.support.browser import ask_for_decision, log_in, new_page, rests

if TYPE_CHECKING:
    from conftest import World
    from playwright.sync_api import Browser, Locator, Page

REPLAY = "capstan_replay"
BACKFILL = "capstan_backfill__flights_by_day"
DAY = "2013-01-08"
"""One that no other test backfills."""
ASKED = {"workers": ["EWR", "LGA"], "since": "2013-01-02", "until": "2013-01-04", "into": "by_form"}


def section(form: Locator, name: str) -> None:
    """Open a section of the form: one is open at a time."""
    form.get_by_role("button", name=name).click()


def choose_several(page: Page, form: Locator, field: str, *values: str) -> None:
    """Choose values of a field that offers several."""
    group = form.get_by_role("group").filter(has_text=field)
    for value in values:
        group.get_by_role("combobox").click()
        page.get_by_role("option", name=value).click()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_from_login_to_a_rejection_and_to_a_certificate(
    captured: World, browser: Browser, pictures: Path
) -> None:
    page = new_page(browser)
    try:
        log_in(page, captured.rest, wrongly=True)
        page.screenshot(path=pictures / "dags.png")
        rejected(captured, page, triggered(captured, page, pictures, approve=True))
        # Nothing is held: the same range can be replayed into the same table.
        certified(captured, page, pictures, triggered(captured, page, pictures))
        backfilled(captured, page, pictures)
    except (AssertionError, Error):
        page.screenshot(path=pictures / "failed.png")
        raise


def triggered(world: World, page: Page, pictures: Path, *, approve: bool = False) -> str:
    """Fill Airflow's own form in, and trigger; the run."""
    page.goto(f"{world.rest.url}/dags")
    page.get_by_role("link", name=REPLAY).first.click()
    page.get_by_role("link", name="Audit Log").wait_for()
    page.get_by_role("button", name="Trigger Dag").click()
    form = page.get_by_role("dialog").filter(has_text=f"Trigger Dag - {REPLAY}")
    # The usual fields are open.
    choose_several(page, form, "Workers", "EWR", "LGA")
    form.locator("#element_since").fill(ASKED["since"])
    form.locator("#element_until").fill(ASKED["until"])
    page.screenshot(path=pictures / "form.png")
    form.locator("#element_into").fill(ASKED["into"])
    page.screenshot(path=pictures / "form-target.png")
    section(form, "How to run")
    if approve:
        form.locator("[id='switch:element_approve']").click()
    page.screenshot(path=pictures / "form-how.png")
    before = {str(run["dag_run_id"]) for run in world.rest.runs(REPLAY)}
    form.get_by_role("button", name="Trigger", exact=True).click()
    form.wait_for(state="hidden")
    return until(
        lambda: next(iter({str(r["dag_run_id"]) for r in world.rest.runs(REPLAY)} - before), None),
        240,
    )


def rejected(world: World, page: Page, run: str) -> None:
    """Reject it in Airflow's own page: the target is as it was, what was staged stays."""
    rests(page)
    reported = world.waiting(run)
    ask_for_decision(page, world.rest, REPLAY, run, "too many")("Reject")
    assert world.rest.wait(REPLAY, run) == "failed"
    assert world.last_line(REPLAY, run, "publish").startswith("CAP-REJECTED: ")
    assert world.rows(ASKED["into"]) == []
    history = read_history(world.lake, str(reported["run"]))
    assert history.last.step is Step.REJECTED
    assert (history.last.detail["by"], history.last.detail["reason"]) == ("admin", "too many")
    assert list(Path(world.lake.root, "staging").glob(f"{reported['run']}*"))
    given = world.rest.call("GET", f"/dags/{REPLAY}/dagRuns/{quote(run)}")
    assert given["triggering_user_name"] == "admin"


def certified(world: World, page: Page, pictures: Path, run: str) -> None:
    """A run succeeds, and its certificate is seen, in Airflow's own page."""
    rests(page)
    world.rest.require(REPLAY, run)
    place = f"{world.rest.url}/dags/{REPLAY}/runs/{quote(run)}"
    page.goto(place)
    # The run's own state, and those of its tasks.
    page.get_by_text("Success", exact=True).nth(3).wait_for()
    page.screenshot(path=pictures / "run.png")
    certificate: Any = world.rest.xcom(REPLAY, run, "replay")
    page.goto(f"{place}/tasks/replay/details")
    page.get_by_role("link", name="Run", exact=True).click()
    inner = page.frame_locator('iframe[title="Capstan"]')
    inner.get_by_role("heading", name=f"Run {certificate['run']}").wait_for()
    page.goto(f"{place}/tasks/replay/details")
    page.get_by_role("link", name="Certificate", exact=True).click()
    page.get_by_text(f"Certificate of {ASKED['into']}").first.scroll_into_view_if_needed()
    page.screenshot(path=pictures / "certificate.png")
    assert certificate["workers"] == ["EWR", "LGA"]
    assert certificate["published"]
    assert len(world.rows(ASKED["into"])) == certificate["records"] > 100


def backfilled(world: World, page: Page, pictures: Path) -> None:
    """A day by Airflow's own form for backfills, which unpauses the DAG."""
    page.goto(f"{world.rest.url}/dags/{BACKFILL}")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog").filter(has_text=BACKFILL)
    form.get_by_text("Backfill", exact=True).first.click()
    for number in range(2):
        page.get_by_test_id("datetime-input").nth(number).click()
        page.get_by_placeholder("YYYY/MM/DD").fill(DAY.replace("-", "/"))
        page.get_by_placeholder("HH:mm").fill("00:00")
        page.get_by_placeholder("HH:mm").press("Escape")
        page.get_by_placeholder("HH:mm").wait_for(state="hidden")
    form.locator("input[name=max_active_runs]").fill("4")
    form.get_by_text("1 run will be triggered.").wait_for()
    page.screenshot(path=pictures / "backfill.png")
    form.get_by_role("button", name="Run Backfill").click()

    def begun() -> str | None:
        runs = {str(r["data_interval_start"])[:10]: r for r in world.rest.runs(BACKFILL)}
        return str(runs[DAY]["dag_run_id"]) if DAY in runs else None

    run = until(begun, 240)
    rests(page)
    world.rest.require(BACKFILL, run)
    played: Any = world.rest.xcom(BACKFILL, run, "replay")
    assert (played["since"][:10], played["published"]) == (DAY, True)
