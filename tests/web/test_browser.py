"""A person at the browser: logs in, fills the form in, triggers, and sees it succeed.

`CAPSTAN_SCREENSHOTS` names a folder for the pictures of the pages on the way.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from playwright.sync_api import Error, sync_playwright

from capstan.testing.rest import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Locator, Page

    from conftest import World

REPLAY = "capstan_replay"
NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60_000.0
# Without these it calls home at every start, as often as it is let.
QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page of a browser that has never been anywhere."""
    named = [os.environ.get("CAPSTAN_CHROMIUM"), *NAMES]
    program = next((found for name in named if name and (found := shutil.which(name))), None)
    if program is None:
        message = "there is no Chromium: run tests/install-browser, or set CAPSTAN_CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*QUIET, *root])
        context = browser.new_context(
            viewport={"width": 1440, "height": 900}, color_scheme="light", timezone_id="UTC"
        )
        page = context.new_page()
        page.set_default_timeout(SECONDS)
        yield page
        browser.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("CAPSTAN_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def log_in(page: Page, world: World) -> None:
    page.goto(f"{world.rest.url}/dags")
    page.fill("input[name=username]", "admin")
    page.fill("input[name=password]", "not the password")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Invalid credentials").wait_for()
    page.fill("input[name=password]", world.rest.password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name=REPLAY).wait_for()


def section(form: Locator, name: str) -> None:
    """Open a section of the form: one is open at a time."""
    form.get_by_role("button", name=name).click()


def choose_several(page: Page, form: Locator, field: str, *values: str) -> None:
    """Choose values of a field that offers several."""
    group = form.get_by_role("group").filter(has_text=field)
    for value in values:
        group.get_by_role("combobox").click()
        page.get_by_role("option", name=value).click()


def test_from_login_to_certificate(
    captured: World, page: Page, pictures: Path, request: pytest.FixtureRequest
) -> None:
    try:
        drive(captured, page, pictures)
    except Error:
        page.screenshot(path=pictures / "failed.png")
        raise


def drive(world: World, page: Page, pictures: Path) -> None:
    log_in(page, world)
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
