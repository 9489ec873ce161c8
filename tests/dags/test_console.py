"""Every page of the console in a browser, in each state: what axe finds, and whether it fits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from axe_playwright_python.sync_playwright import Axe
from starlette.applications import Starlette
from starlette.testclient import TestClient

from capstan.airflow.settings import dag_id, read_settings
from capstan.airflow.web.plugin import PREFIX, app
from capstan.airflow.web.security import capture_dag
from capstan.storage.delta import table_cache
from capstan.storage.lake import Lake
from tests.dags import test_page as of_pages
from tests.dags import test_page_in_browser as in_browser
from tests.support.browser import new_page
from tests.support.console_lakes import DECLARED, STATES, pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from conftest import Place
    from playwright.sync_api import Browser, Page

    from capstan.core.config import ProjectConfig

pytestmark = pytest.mark.dags

auth, browser = of_pages.auth, in_browser.browser
ADDRESS, served = in_browser.ADDRESS, in_browser.served
# The folder's settings for Airflow leave out what the environment says of Capstan.
PICTURES = os.environ.get("CAPSTAN_SCREENSHOTS")
WIDTHS = (1440, 1024, 390)
_PLACED = """(root) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    texts.currentNode.data = texts.currentNode.data.replaceAll(root, "/data/lake");
  }
}"""
"""Pictures are the same wherever the tests have their lake."""


@dataclass(frozen=True, slots=True)
class Console:
    """The pages of a lake, and who looks at them."""

    state: str
    place: Place
    auth: Any
    client: TestClient

    @property
    def lake(self) -> Lake:
        return Lake.at(self.place.lake)

    @property
    def declared(self) -> ProjectConfig:
        return read_settings(self.place.root / "any.py").declarations

    @property
    def dags(self) -> set[str]:
        """The DAGs that data and actions belong to."""
        kinds = ("replay", "audit", "rollback", "unlock", "pause", "gaps", "verify", "maintain",
                 "put_back")  # fmt: skip
        captures = map(capture_dag, self.declared.streams)
        return {*map(dag_id, kinds), *captures, dag_id("backfill", "flights_by_day")}

    def seen_by(self, dags: set[str], role: str = "user") -> TestClient:
        """The client of who sees these DAGs, and with the role `user` may trigger them."""
        of_pages.put_dags(dict.fromkeys(self.dags, False))
        user = SimpleAuthManagerUser(username=",".join(sorted(dags)), role=role)
        self.client.cookies.set("_token", self.auth.generate_jwt(user))
        return self.client


@pytest.fixture(scope="module")
def console(
    request: pytest.FixtureRequest,
    placed: Callable[[str, str], AbstractContextManager[Place]],
    auth: Any,
) -> Iterator[Console]:
    with placed(request.param, DECLARED) as place:
        outer = Starlette()
        outer.mount(PREFIX, app)
        client = TestClient(outer, base_url=ADDRESS, raise_server_exceptions=False)
        found = Console(request.param, place, auth, client)
        STATES[request.param](found.lake, found.declared)
        table_cache.enable()
        yield found
        table_cache.disable()
        of_pages.put_dags({})


in_each_state = pytest.mark.parametrize("console", STATES, indirect=True, scope="module")


def shown(console: Console, page: Page) -> Iterator[tuple[str, Page]]:
    """Each page of a console by its name, loaded once."""
    served(page, console.seen_by(console.dags))
    for name, path in pages(console.state, console.lake):
        answer = page.goto(f"{ADDRESS}{PREFIX}{path}")
        assert answer is not None
        assert answer.status < 500, path
        yield name, page


@in_each_state
def test_axe_finds_nothing(console: Console, browser: Browser) -> None:
    found = []
    for name, page in shown(console, new_page(browser)):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in (WIDTHS[0], WIDTHS[-1]):
                page.set_viewport_size({"width": width, "height": 900})
                # The browser evaluates it for the debugger, whom no policy binds.
                results = Axe().run(page)
                found += [
                    f"{name} {scheme} {width}: {broken['id']}: {node['html'][:150]}"
                    for broken in results.response["violations"]
                    for node in broken["nodes"]
                ]
    assert not found, "\n".join(found)


@in_each_state
def test_no_page_is_wider_than_its_window(console: Console, browser: Browser) -> None:
    """What is wide scrolls by itself; with `CAPSTAN_SCREENSHOTS`, each page leaves its pictures."""
    for name, page in shown(console, new_page(browser)):
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            if PICTURES and width != 1024:
                page.evaluate(_PLACED, console.lake.root)
                for scheme in ("light", "dark"):
                    page.emulate_media(color_scheme=scheme)
                    page.screenshot(
                        path=Path(PICTURES, f"{name}-{width}-{scheme}.png"), full_page=True
                    )
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
