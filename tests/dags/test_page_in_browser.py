"""The pages in a browser, without Airflow around them: zones, narrow windows, keys."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from capstan.airflow.web.plugin import PREFIX
from capstan.core.times import Box
from capstan.core.times.region import Region
from tests.dags import test_page as of_pages
from tests.support.browser import browsing, new_page, require_browser
from tests.support.jvmless_lake import EVENT, Books

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page, Route
    from starlette.testclient import TestClient

    from capstan.storage.lake import Lake

pytestmark = pytest.mark.dags

auth, lake, client, seeing = of_pages.auth, of_pages.lake, of_pages.client, of_pages.seeing
ALL, RUN = of_pages.ALL, of_pages.RUN
ADDRESS = "http://testserver"
NARROW = 390
# The folder's settings for Airflow leave out what the environment says of Capstan.
PICTURES = os.environ.get("CAPSTAN_SCREENSHOTS")
SHOWN = (
    "/", "/streams/little", "/replays/by_day", "/runs", f"/runs/{RUN}", "/runs/by_day-0b0b0b0b-1",
    "/tables", "/fill?stream=little&into=by_day", "/nowhere",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing(require_browser()) as actual:
        yield actual


def served(page: Page, client: TestClient) -> Page:
    """A page that this process serves, to whom the client is logged in as."""

    def answer(route: Route) -> None:
        asked = urlsplit(route.request.url)
        given = client.get(f"{asked.path}?{asked.query}")
        headers = {name: value for name, value in given.headers.items() if name != "content-length"}
        route.fulfill(status=given.status_code, headers=headers, body=given.content)

    page.context.route(f"{ADDRESS}/**", answer)
    return page


def choose_zone(page: Page, zone: str) -> None:
    """What Airflow's selector does, in another document of the same origin."""
    other = page.context.new_page()
    other.goto(f"{ADDRESS}{PREFIX}/tables")
    other.evaluate("zone => localStorage.setItem('timezone', JSON.stringify(zone))", zone)
    other.close()


def test_times_are_in_the_zone_that_airflow_has_chosen(
    browser: Browser, seeing: Callable[..., TestClient]
) -> None:
    page = served(new_page(browser), seeing(*ALL))
    page.goto(f"{ADDRESS}{PREFIX}/runs/{RUN}")
    at = page.locator("p time").first
    # The browser's own zone, as long as none was chosen.
    assert at.inner_text() == "2024-01-01 00:00:04 UTC"
    assert at.get_attribute("title") is None
    choose_zone(page, "America/New_York")
    page.get_by_text("2023-12-31 19:00:04 EST").first.wait_for()
    assert at.get_attribute("title") == "2024-01-01 00:00:04 UTC"
    assert at.get_attribute("datetime") == "2024-01-01T00:00:04Z"
    # Also in what is opened, or put into the page, later.
    page.goto(f"{ADDRESS}{PREFIX}/streams/little")
    frontier = page.locator("dd time").first
    assert frontier.inner_text() == "2024-05-04 20:00 EDT"
    assert frontier.get_attribute("title") == "2024-05-05 UTC"
    for zone, shown in {
        "Asia/Kathmandu": "2024-05-05 05:45 GMT+5:45", "No/Where": "2024-05-05 UTC",
    }.items():  # fmt: skip
        choose_zone(page, zone)
        page.locator("dd", has_text=shown).first.wait_for()
    assert frontier.get_attribute("title") is None


def test_what_is_brought_up_to_date_stays_in_that_zone(
    browser: Browser, seeing: Callable[..., TestClient], lake: Lake
) -> None:
    """What has not changed is not put there anew, so that nothing flickers."""
    kept = Books(lake, "little", lake.table("by_day"), _claims=9, _now=datetime.now(UTC))
    name = "by_day-0e0e0e0e-1"
    kept.claimed(name, None, Region(Box.everything(EVENT)))
    kept.stepped(name, "intent", {"region": "{}"})
    page = served(new_page(browser), seeing(*ALL))
    page.add_init_script("localStorage.setItem('timezone', '\"Asia/Kathmandu\"')")
    page.goto(f"{ADDRESS}{PREFIX}/runs/{name}")
    row = page.locator("#steps ~ .wide time").first
    assert row.inner_text().endswith("GMT+5:45")
    page.evaluate("document.querySelector('#steps').parentElement.marked = true")
    for _ in range(2):  # At the second one, the first one is shown.
        with page.expect_response(f"**{PREFIX}/runs/{name}"):
            pass
    assert page.evaluate("document.querySelector('#steps').parentElement.marked")
    kept.stepped(name, "failed", {"error": "CAP-AUDIT"})
    page.locator("#steps ~ .wide tbody tr").nth(1).wait_for()
    assert page.locator("#steps ~ .wide time").nth(1).inner_text().endswith("GMT+5:45")
    assert not page.evaluate("document.querySelector('#steps').parentElement.marked")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_narrow_window(
    browser: Browser, seeing: Callable[..., TestClient], tmp_path: Path, scheme: str
) -> None:
    pictures = Path(PICTURES or tmp_path)
    client = seeing(*ALL)
    for width in (NARROW, 1440):
        page = served(new_page(browser, scheme=scheme, width=width), client)  # type: ignore[arg-type]
        for path in SHOWN:
            page.goto(f"{ADDRESS}{PREFIX}{path}")
            name = path.strip("/").split("?")[0].replace("/", "-") or "overview"
            page.screenshot(path=pictures / f"{name}-{width}-{scheme}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)


def test_pages_can_be_read_by_others_than_eyes(
    browser: Browser, seeing: Callable[..., TestClient]
) -> None:
    page = served(new_page(browser), seeing(*ALL))
    for path in SHOWN:
        page.goto(f"{ADDRESS}{PREFIX}{path}")
        found = page.evaluate(
            """() => {
              const all = (selector) => [...document.querySelectorAll(selector)];
              const ids = all("[id]").map((e) => e.id);
              return {
                headings: all("h1").length,
                empty: all("th, h1, h2, h3, a, button").filter(
                  (e) => !e.textContent.trim() && !e.getAttribute("aria-label")).length,
                unnamed: all("input:not([type=hidden]), select").filter(
                  (e) => !e.labels.length).map((e) => e.name),
                twice: ids.filter((id, i) => ids.indexOf(id) !== i),
                nowhere: all("[aria-labelledby]").filter(
                  (e) => !document.getElementById(e.getAttribute("aria-labelledby"))).length,
                levels: all("h1, h2, h3").map((e) => Number(e.tagName[1])),
                plain: all("svg").filter((e) => !e.getAttribute("aria-label")).length,
              };
            }"""
        )
        levels = found.pop("levels")
        assert found == {
            "headings": 1, "empty": 0, "unnamed": [], "twice": [], "nowhere": 0, "plain": 0,
        }, path  # fmt: skip
        # No heading skips a level.
        assert all(after <= before + 1 for before, after in pairwise(levels))
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content", path


def test_a_calendar_is_one_stop_of_the_tab_key(
    browser: Browser, seeing: Callable[..., TestClient]
) -> None:
    page = served(new_page(browser), seeing(*ALL))
    page.goto(f"{ADDRESS}{PREFIX}/replays/by_day")
    stop = page.locator(".calendar a[tabindex='0']")
    assert page.locator(".calendar a").count() == 4
    assert stop.count() == 1
    stop.focus()
    for key, day in {
        "ArrowDown": "2024-05-02", "End": "2024-05-04", "ArrowUp": "2024-05-03",
        "Home": "2024-05-01", "ArrowLeft": "2024-05-01",
    }.items():  # fmt: skip
        page.keyboard.press(key)
        focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert focused.startswith(day), key
        assert stop.get_attribute("aria-label") == focused
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.calendar')") is None
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Plan").wait_for()
