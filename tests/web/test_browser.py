"""A person at the browser: logs in, fills the form in, triggers, and sees it succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from playwright.sync_api import Error

from capstan.testing.browser import log_in, new_page
from capstan.testing.rest import until

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Locator, Page

    from conftest import World

REPLAY = "capstan_replay"


def section(form: Locator, name: str) -> None:
    """Open a section of the form: one is open at a time."""
    form.get_by_role("button", name=name).click()


def choose_several(page: Page, form: Locator, field: str, *values: str) -> None:
    """Choose values of a field that offers several."""
    group = form.get_by_role("group").filter(has_text=field)
    for value in values:
        group.get_by_role("combobox").click()
        page.get_by_role("option", name=value).click()


def test_from_login_to_certificate(captured: World, browser: Browser, pictures: Path) -> None:
    page = new_page(browser)
    try:
        drive(captured, page, pictures)
    except Error:
        page.screenshot(path=pictures / "failed.png")
        raise


def drive(world: World, page: Page, pictures: Path) -> None:
    log_in(page, world.rest, wrongly=True)
    page.screenshot(path=pictures / "dags.png")

    page.get_by_role("link", name=REPLAY).first.click()
    page.get_by_role("link", name="Audit Log").wait_for()
    page.get_by_role("button", name="Trigger Dag").click()
    form = page.get_by_role("dialog").filter(has_text=f"Trigger Dag - {REPLAY}")
    section(form, "What to play")
    choose_several(page, form, "Workers", "EWR", "LGA")
    form.locator("#element_since").fill("2013-01-02")
    form.locator("#element_until").fill("2013-01-04")
    page.screenshot(path=pictures / "form.png")
    section(form, "Into which table")
    form.locator("#element_into").fill("by_form")
    page.screenshot(path=pictures / "form-target.png")
    before = {str(run["dag_run_id"]) for run in world.rest.runs(REPLAY)}
    form.get_by_role("button", name="Trigger", exact=True).click()
    form.wait_for(state="hidden")
    run = until(
        lambda: next(iter({str(r["dag_run_id"]) for r in world.rest.runs(REPLAY)} - before), None),
        30,
    )

    page.goto(f"{world.rest.url}/dags/{REPLAY}/runs/{quote(run)}")
    # The run's own state, and those of its three tasks.
    page.get_by_text("Success", exact=True).nth(3).wait_for(timeout=300_000)
    page.screenshot(path=pictures / "run.png")
    page.goto(
        f"{world.rest.url}/dags/{REPLAY}/runs/{quote(run)}/tasks/certificate/rendered_templates"
    )
    page.get_by_text("Certificate of by_form").first.scroll_into_view_if_needed()
    page.screenshot(path=pictures / "certificate.png")

    certificate = world.rest.xcom(REPLAY, run, "replay")
    assert isinstance(certificate, dict)
    assert certificate["workers"] == ["EWR", "LGA"]
    assert certificate["published"]
    assert (
        world.rest.call("GET", f"/dags/{REPLAY}/dagRuns/{quote(run)}")["triggering_user_name"]
        == "admin"
    )
    assert len(world.rows("by_form")) == certificate["records"] > 100
