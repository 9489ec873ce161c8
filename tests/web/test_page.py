"""A person at Capstan's page in Airflow: what is recorded, what is missing, how it is filled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from playwright.sync_api import Error

from capstan.testing.browser import log_in, new_page

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, FrameLocator, Page

    from conftest import World

REPLAY = "capstan_replay"
COVERAGE = "flights_by_day"


def framed(page: Page) -> FrameLocator:
    return page.frame_locator('iframe[title="Capstan"]')


def theme(page: Page) -> str | None:
    return framed(page).locator("html").get_attribute("data-theme")


def test_from_the_overview_to_a_gap_that_is_filled(
    captured: World, browser: Browser, pictures: Path
) -> None:
    page = new_page(browser)
    said: list[str] = []
    page.on("console", lambda each: said.append(each.text) if each.type == "error" else None)
    try:
        drive(captured, page, pictures)
    except Error:
        page.screenshot(path=pictures / "page-failed.png")
        raise
    # What a policy forbids is told to the console.
    assert not [text for text in said if "Content Security Policy" in text]


def drive(world: World, page: Page, pictures: Path) -> None:
    log_in(page, world.rest)
    page.get_by_test_id("nav-sidebar").get_by_role("link", name="Capstan").click()
    inner = framed(page)
    inner.get_by_role("heading", name="Streams").wait_for()
    page.screenshot(path=pictures / "page-overview.png")

    inner.get_by_role("link", name="flights", exact=True).click()
    inner.get_by_role("heading", name="Frontiers").wait_for()
    for label in ("EWR", "JFK", "LGA"):
        inner.get_by_role("cell", name=label, exact=True).wait_for()
    page.screenshot(path=pictures / "page-stream.png")

    # A link out of the frame leads the window itself.
    inner.get_by_role("link", name="The DAG capstan_capture__flights").scroll_into_view_if_needed()
    inner.get_by_role("link", name="The DAG capstan_capture__flights").click()
    page.wait_for_url(f"{world.rest.url}/dags/capstan_capture__flights**")

    page.goto(f"{world.rest.url}/plugin/capstan")
    inner.get_by_role("link", name=COVERAGE, exact=True).first.click()
    inner.get_by_role("heading", name="Coverage").wait_for()
    page.screenshot(path=pictures / "page-coverage.png")
    gap = inner.get_by_role("row").filter(has_text="gap").first
    day = gap.get_by_role("cell").first.inner_text()
    gap.get_by_role("link", name="Fill").click()
    inner.get_by_role("heading", name="What it would do").wait_for()
    # One day of it is enough.
    until = f"{day[:8]}{int(day[8:]) + 1:02}"
    inner.locator("input[name=until]").fill(until)
    assert inner.locator("input[name=since]").input_value().startswith(day)
    page.screenshot(path=pictures / "page-form.png")
    inner.get_by_role("button", name="Trigger").click()
    page.wait_for_url(re.compile(r".*/dags/capstan_replay/runs/.+"))
    run = unquote(re.sub(r"[/?].*", "", page.url.split("/runs/")[1]))
    world.rest.require(REPLAY, run)

    certificate = world.rest.xcom(REPLAY, run, "replay")
    assert isinstance(certificate, dict)
    page.goto(f"{world.rest.url}/plugin/capstan")
    inner.get_by_role("link", name=str(certificate["run"])).click()
    inner.get_by_role("heading", name="Certificate").wait_for()
    page.screenshot(path=pictures / "page-run.png")
    with page.expect_download() as download:
        inner.get_by_role("link", name="Report as one file").click()
    report = download.value.path().read_text(encoding="utf-8")
    assert str(certificate["fingerprint"]) in report
    page.goto(f"{world.rest.url}/plugin/capstan")
    inner.get_by_role("link", name=COVERAGE, exact=True).first.click()
    covered = inner.locator("a, g").filter(has_text=f"{day}: covered")
    covered.first.wait_for(state="attached")


def test_the_page_looks_as_airflow_does(captured: World, browser: Browser, pictures: Path) -> None:
    page = new_page(browser, scheme="dark")
    log_in(page, captured.rest)
    for name, place in {"overview": "", "stream": "/streams/flights",
                        "coverage": f"/replays/{COVERAGE}"}.items():  # fmt: skip
        page.goto(f"{captured.rest.url}/plugin/capstan/capstan{place}/".removesuffix("/")
                  if place else f"{captured.rest.url}/plugin/capstan")  # fmt: skip
        framed(page).get_by_role("heading").first.wait_for()
        assert theme(page) == "dark"
        page.screenshot(path=pictures / f"page-{name}-dark.png")
    # Airflow's own choice wins over what the user likes elsewhere.
    page.evaluate("localStorage.setItem('theme', 'light')")
    page.goto(f"{captured.rest.url}/plugin/capstan")
    framed(page).get_by_role("heading", name="Streams").wait_for()
    assert theme(page) == "light"
    page.screenshot(path=pictures / "page-overview-chosen-light.png")


def test_the_page_fits_a_narrow_window(captured: World, browser: Browser, pictures: Path) -> None:
    page = new_page(browser, width=480)
    log_in(page, captured.rest)
    for place in ("/", "/streams/flights", f"/replays/{COVERAGE}", "/runs"):
        page.goto(f"{captured.rest.url}/capstan{place}")
        page.get_by_role("heading").first.wait_for()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 480, place
        name = place.strip("/").replace("/", "-") or "overview"
        page.screenshot(path=pictures / f"page-{name}-narrow.png", full_page=True)


def test_nobody_sees_the_page_without_a_login(captured: World, browser: Browser) -> None:
    page = new_page(browser)
    answer = page.goto(f"{captured.rest.url}/capstan/")
    assert answer is not None
    assert answer.status == 401
    assert page.get_by_text("flights").count() == 0
