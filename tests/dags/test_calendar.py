"""Ranges of a calendar in a browser, chosen by a mouse, a finger or keys: one selection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.airflow.web.plugin import PREFIX
from tests.dags import test_console as of_console
from tests.support.browser import new_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page

    from tests.dags.test_console import Console

pytestmark = pytest.mark.dags

auth, browser, console = of_console.auth, of_console.browser, of_console.console
ADDRESS, served = of_console.ADDRESS, of_console.served
PATH = f"{ADDRESS}{PREFIX}/replays/flights_by_day"
FIRST, LAST = "2013-11-02", "2013-11-06"
REST = 400


def place(page: Page, day: str) -> tuple[float, float]:
    box = page.locator(f"[data-since='{day}'] rect").bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def by_mouse(page: Page, *days: str) -> None:
    page.mouse.move(*place(page, days[0]))
    page.mouse.down()
    for day in days[1:]:
        page.mouse.move(*place(page, day), steps=3)
    page.mouse.up()


_TOUCH = """([kind, x, y]) => {
  const at = document.elementFromPoint(x, y);
  const where = { bubbles: true, cancelable: true, clientX: x, clientY: y };
  at.dispatchEvent(kind === "click"
    ? new MouseEvent(kind, { ...where, detail: 1 })
    : new PointerEvent(kind, { ...where, pointerId: 7, pointerType: "touch", isPrimary: true }));
}"""


def by_finger(page: Page, *days: str) -> None:
    # A browser under load may take a real touch that rests for a gesture of its own, for ever.
    def touch(kind: str, day: str) -> None:
        page.evaluate(_TOUCH, [kind, *place(page, day)])

    touch("pointerdown", days[0])
    page.wait_for_timeout(REST)
    for day in days[1:]:
        touch("pointermove", day)
    touch("pointerup", days[-1])
    touch("click", days[-1])


def swipe(page: Page, *days: str) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})

    def touch(kind: str, *points: tuple[float, float]) -> None:
        touched = [{"x": x, "y": y} for x, y in points]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touched})

    touch("touchStart", place(page, days[0]))
    for day in days[1:]:
        touch("touchMove", place(page, day))
    touch("touchEnd")


def by_clicks(page: Page, *days: str) -> None:
    for day in (days[0], days[-1]):
        page.locator(f"[data-since='{day}']").click(modifiers=["Shift"])


def by_keys(page: Page, *days: str) -> None:
    for day in (days[0], days[-1]):
        page.locator(f"[data-since='{day}']").focus()
        page.keyboard.press("Shift+Enter")


def chosen(page: Page) -> tuple[list[str], list[str], str]:
    """The cells of the range, its bounds in the form, and the form's command."""
    cells = page.eval_on_selector_all(".chosen", "all => all.map((each) => each.dataset.since)")
    form = page.locator("form.action").filter(has_text="Fill gaps")
    bounds = [form.locator(f"input[name={name}]").input_value() for name in ("since", "until")]
    return cells, bounds, form.locator("code").inner_text()


@pytest.mark.parametrize("console", ["full"], indirect=True)
@pytest.mark.parametrize("way", [by_mouse, by_finger, by_clicks, by_keys])
@pytest.mark.parametrize("days", [(FIRST, "2013-11-19", LAST), (LAST, "2013-10-29", FIRST)])
def test_a_range_is_chosen(
    console: Console, browser: Browser, way: Callable[..., None], days: tuple[str, ...]
) -> None:
    page = served(new_page(browser), console.seen_by(console.dags))
    page.goto(PATH)
    page.locator(".calendar").scroll_into_view_if_needed()
    way(page, *days)
    command = f"capstan backfill flights_by_day --gaps --since {FIRST} --until 2013-11-07"
    cells = [f"2013-11-{day:02}" for day in range(2, 7)]
    assert chosen(page) == (cells, [FIRST, "2013-11-07"], command)
    # What is no bound stays empty. Nothing was opened, and another range takes its place.
    assert (page.get_by_label("Because").input_value(), page.url) == ("", PATH)
    way(page, LAST, LAST)
    if way is by_mouse:
        # A click alone chooses nothing, and opens its cell.
        page.wait_for_url(f"{ADDRESS}{PREFIX}/fill?**")
    else:
        assert chosen(page)[:2] == ([LAST], [LAST, "2013-11-07"])


@pytest.mark.parametrize("console", ["full"], indirect=True)
def test_a_range_is_seen_whatever_its_cells_are(console: Console, browser: Browser) -> None:
    page = served(new_page(browser), console.seen_by(console.dags))
    page.goto(PATH)
    # Covered days, gaps and stale ones.
    by_clicks(page, "2013-09-18", "2013-10-02")
    seen = page.eval_on_selector_all(
        ".chosen rect",
        "all => all.map(getComputedStyle).map((style) => `${style.fill} ${style.stroke}`)",
    )
    assert (len(seen), len(set(seen))) == (15, 1)


@pytest.mark.parametrize("console", ["full"], indirect=True)
def test_a_finger_that_does_not_rest_scrolls(console: Console, browser: Browser) -> None:
    page = served(new_page(browser, width=390), console.seen_by(console.dags))
    page.goto(PATH)
    page.locator(f"[data-since='{FIRST}']").scroll_into_view_if_needed()
    before = page.evaluate("document.querySelector('.calendar').scrollLeft")
    assert before > 0
    swipe(page, FIRST, "2013-11-12", "2013-11-26")
    page.wait_for_function(f"document.querySelector('.calendar').scrollLeft < {before}")
    assert chosen(page)[:2] == ([], ["", ""])


@pytest.mark.parametrize("console", ["full"], indirect=True)
def test_nobody_chooses_a_range_without_a_form_for_it(console: Console, browser: Browser) -> None:
    page = served(new_page(browser), console.seen_by(console.dags - {"capstan_gaps"}))
    page.goto(PATH)
    page.locator(".calendar").scroll_into_view_if_needed()
    by_mouse(page, FIRST, LAST)
    assert page.locator(".chosen").count() == 0
