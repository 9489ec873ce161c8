"""A local browser for tests, without calls home."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import pytest

from tests.support.airflow_api import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.support.airflow_api import Rest

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 180_000.0
"""Milliseconds that a page waits for an element."""

_QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_browser() -> str | None:
    """The program of a Chromium: `CAPSTAN_CHROMIUM`, or the first on the path."""
    named = [os.environ.get("CAPSTAN_CHROMIUM"), *NAMES]
    return next((program for name in named if name and (program := shutil.which(name))), None)


def require_browser() -> str:
    """The program of a Chromium; without one, the test is skipped, and fails in CI."""
    program = find_browser()
    if program is None:
        message = "there is no Chromium: run tests/install-browser, or set CAPSTAN_CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return program


@contextmanager
def browsing(program: str) -> Iterator[Browser]:
    """A browser with a new profile."""
    from playwright.sync_api import sync_playwright

    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*_QUIET, *root])
        yield browser
        browser.close()


def new_page(
    browser: Browser, *, scheme: Literal["light", "dark"] = "light", width: int = 1440
) -> Page:
    """A page in its own context, with time zone UTC.

    Args:
        browser: The browser.
        scheme: The preferred color scheme.
        width: Width of its window, in pixels.
    """
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, timezone_id="UTC"
    )
    page = context.new_page()
    page.set_default_timeout(SECONDS)
    return page


def log_in(page: Page, rest: Rest, *, wrongly: bool = False) -> None:
    """Log in to Airflow as its administrator, and wait for the list of DAGs.

    Args:
        page: The page.
        rest: The Airflow.
        wrongly: First try a wrong password, and check that it is refused.
    """
    page.goto(f"{rest.url}/dags")
    page.fill("input[name=username]", "admin")
    sign_in = page.get_by_role("button", name="Sign in")
    if wrongly:
        page.fill("input[name=password]", "not the password")
        sign_in.click()
        page.get_by_text("Invalid credentials").wait_for()
    page.fill("input[name=password]", rest.password)
    sign_in.click()
    page.get_by_role("link", name="capstan_replay").wait_for()


def ask_for_decision(
    page: Page, rest: Rest, dag: str, run: str, reason: str
) -> Callable[[str], None]:
    """Open Airflow's question of the task `approve`, and give a reason.

    Returns:
        A function that presses the button with a name, and waits until Airflow has the decision.
    """
    task = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/approve/-1/hitlDetails"
    page.goto(f"{rest.url}/dags/{dag}/runs/{quote(run)}/tasks/approve/required_actions")
    page.get_by_role("button", name="Approve", exact=True).wait_for()
    page.locator("#element_reason").fill(reason)

    def decide(option: str) -> None:
        page.get_by_role("button", name=option, exact=True).click()
        until(lambda: rest.call("GET", task)["response_received"] or None, 240)
        rests(page)

    return decide


def rests(page: Page) -> None:
    """Leave Airflow's pages while waiting for a run: they would poll and redraw all the time."""
    page.goto("about:blank")
