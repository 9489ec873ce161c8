"""A page in a browser, brought up to date while the server says that something runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.airflow.web.security import HEADERS
from capstan.reporting.html import STATIC, static
from tests.support.browser import new_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

AT = "http://capstan.test/capstan"
PAGE = """<!doctype html><html lang="en"><head><title>Runs</title>
<link rel="stylesheet" href="/capstan/style.css"><script src="/capstan/page.js"></script>
<script src="/capstan/times.js" defer></script></head>
<body><main{refresh}>
<h1>Runs</h1>
<section aria-labelledby="filter"><h2 id="filter">Filter</h2><form>{field}</form>
<p>{number}</p></section>
<section aria-labelledby="runs"><h2 id="runs">Runs</h2><p id="state">{state}</p>
<time datetime="2024-05-01T12:00:00Z">2024-05-01 12:00 UTC</time>
<details><summary>More</summary><p>of it</p></details></section>
{more}<section aria-labelledby="tall"><h2 id="tall">Tall</h2>
<time datetime="2024-05-01T12:00:00Z">2024-05-01 12:00 UTC</time><pre>{tall}</pre></section>
</main></body></html>"""
NEW = "<section aria-labelledby='new'><h2 id='new'>New</h2></section>"


class Server:
    """Answers as the plugin does: with a state, and after how many seconds to ask again."""

    def __init__(self) -> None:
        """Begin with a page on which something runs."""
        self.state, self.refresh, self.asked = "running", ' data-refresh="0.2"', 0
        self.field = '<input name="stream">'

    def answer(self, route: Route) -> None:
        name = route.request.url.removeprefix(f"{AT}/")
        if name in STATIC:
            route.fulfill(body=static(name), content_type=STATIC[name], headers=HEADERS)
            return
        self.asked += 1
        more = NEW if self.state == "new" else ""
        text = PAGE.format(
            refresh=self.refresh,
            state=self.state,
            number=self.asked,
            more=more,
            tall="line\n" * 300,
            field=self.field,
        )
        route.fulfill(body=text, content_type="text/html", headers=HEADERS)


def looking(browser: Browser, server: Server) -> Page:
    page = new_page(browser)
    page.set_default_timeout(30_000)
    page.route("**/*", server.answer)
    page.add_init_script("localStorage.setItem('timezone', JSON.stringify('Asia/Tokyo'))")
    page.goto(f"{AT}/runs")
    return page


def test_a_page_follows_what_runs_until_nothing_does(browser: Browser) -> None:
    server = Server()
    page = looking(browser, server)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("framenavigated", lambda _: problems.append("loaded again"))
    page.locator("details").evaluate("each => { each.open = true; }")
    page.evaluate("document.querySelector('#tall').mine = 'kept'")
    page.evaluate("window.scrollTo(0, 400)")
    server.state = "new"
    page.get_by_role("heading", name="New").wait_for()
    server.state, server.refresh = "published", ""
    page.get_by_text("published").wait_for()
    asked = server.asked
    # What was only in between is gone, and what was not changed is the same element.
    assert page.get_by_role("heading").all_inner_texts() == ["Runs", "Filter", "Runs", "Tall"]
    assert page.evaluate("document.querySelector('#tall').mine") == "kept"
    assert page.evaluate("window.scrollY") == 400
    assert page.locator("time").all_inner_texts() == ["2024-05-01 21:00 GMT+9"] * 2
    assert page.locator("details").evaluate("each => each.open")
    assert problems == []
    page.wait_for_timeout(1000)
    assert server.asked == asked


@pytest.mark.parametrize("field", ['<input name="stream">', "<textarea></textarea>"])
def test_what_a_person_is_about_to_send_stays(browser: Browser, field: str) -> None:
    server = Server()
    server.field = field
    page = looking(browser, server)
    page.get_by_role("textbox").fill("flights")
    asked = server.asked
    page.get_by_role("heading", name="Tall").click()
    while server.asked < asked + 3:
        page.wait_for_timeout(100)
    assert page.get_by_role("textbox").input_value() == "flights"
    page.get_by_role("textbox").fill("")
    while server.asked < asked + 6:
        page.wait_for_timeout(100)
    page.evaluate("document.activeElement.blur()")
    number = page.locator("section p").first
    shown = int(number.inner_text())
    while int(number.inner_text()) == shown:
        page.wait_for_timeout(100)


def test_a_page_that_nobody_looks_at_asks_for_nothing(browser: Browser) -> None:
    server = Server()
    page = looking(browser, server)
    hide = (
        "hidden => Object.defineProperty(document, 'hidden', {value: hidden, configurable: true})"
    )
    page.evaluate(hide, True)
    page.wait_for_timeout(500)
    asked = server.asked
    page.wait_for_timeout(1000)
    assert server.asked == asked
    page.evaluate(hide, False)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    while server.asked < asked + 3:
        page.wait_for_timeout(100)


def test_a_page_without_a_login_stops_and_one_without_a_server_does_not(browser: Browser) -> None:
    server = Server()
    page = looking(browser, server)
    codes = [500, 0, 200, 401]

    def failing(route: Route) -> None:
        code = codes.pop(0) if len(codes) > 1 else codes[0]
        server.asked += 1
        if code == 200:
            server.answer(route)
        elif code:
            route.fulfill(status=code, body="<main>not the page</main>", content_type="text/html")
        else:
            route.abort()

    page.unroute("**/*")
    page.route("**/*", failing)
    page.wait_for_timeout(2500)
    assert codes == [401]
    asked = server.asked
    page.wait_for_timeout(1000)
    assert server.asked == asked
    assert page.get_by_text("not the page").count() == 0
