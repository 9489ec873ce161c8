"""The pages in a browser, without Airflow around them: zones, refreshes, keys."""

from __future__ import annotations

from datetime import UTC, datetime
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
        # What is offered as a file is shown.
        without = ("content-length", "content-disposition")
        headers = {name: value for name, value in given.headers.items() if name not in without}
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


def test_pages_can_be_read_by_others_than_eyes(
    browser: Browser, seeing: Callable[..., TestClient]
) -> None:
    page = served(new_page(browser), seeing(*ALL))
    for path in SHOWN:
        page.goto(f"{ADDRESS}{PREFIX}{path}")
        # What `test_axe_finds_nothing` does not look for.
        found = page.evaluate(
            """() => {
              const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
              return {
                headings: document.querySelectorAll("h1").length,
                twice: ids.filter((id, i) => ids.indexOf(id) !== i),
              };
            }"""
        )
        assert found == {"headings": 1, "twice": []}, path
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content", path


def test_fields_of_a_section_are_beside_each_other(
    browser: Browser, seeing: Callable[..., TestClient]
) -> None:
    page = served(new_page(browser), seeing(*ALL))
    page.goto(f"{ADDRESS}{PREFIX}/fill?replay=by_day")
    tops = page.eval_on_selector_all(
        "details[open] .field", "all => all.map((each) => each.getBoundingClientRect().top)"
    )
    assert len(tops) > 3
    assert len(set(tops[:3])) == 1


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
