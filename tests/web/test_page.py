"""A person at Capstan's page in Airflow: what is recorded, what is missing, how it is filled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import Error

from tests.support.airflow_api import until
from tests.support.browser import ask_for_decision, log_in, new_page, rests

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import World
    from playwright.sync_api import Browser, FrameLocator, Page

REPLAY = "capstan_replay"
COVERAGE = "flights_by_day"
ROLLBACK = "capstan_rollback"
GAPS = "capstan_gaps"


def framed(page: Page) -> FrameLocator:
    return page.frame_locator('iframe[title="Capstan"]')


def theme(page: Page) -> str | None:
    return framed(page).locator("html").get_attribute("data-theme")


def look(page: Page, world: World, *links: str) -> FrameLocator:
    """Capstan's page in Airflow, from the overview along links."""
    page.goto(f"{world.rest.url}/plugin/capstan")
    inner = framed(page)
    for link in links:
        inner.get_by_role("link", name=link, exact=True).first.click()
    return inner


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_from_a_gap_to_what_is_published_and_taken_back(
    captured: World, browser: Browser, pictures: Path
) -> None:
    page = new_page(browser)
    printed: list[str] = []
    page.on("console", lambda each: printed.append(each.text) if each.type == "error" else None)
    try:
        recorded(captured, page, pictures)
        run, day = filled_in(captured, page, pictures)
        name = approved(captured, page, pictures, run)
        published(captured, page, pictures, name, day)
        taken_back(captured, page, pictures, name, day)
        chosen(captured, page, pictures, day)
    except (AssertionError, Error):
        page.screenshot(path=pictures / "page-failed.png")
        raise
    # What a policy forbids is told to the console.
    assert not [text for text in printed if "Content Security Policy" in text]


def recorded(world: World, page: Page, pictures: Path) -> None:
    """Which streams are recorded, and how far each is complete."""
    log_in(page, world.rest)
    page.get_by_test_id("nav-sidebar").get_by_role("link", name="Capstan").click()
    inner = framed(page)
    inner.get_by_role("heading", name="Streams").wait_for()
    page.screenshot(path=pictures / "page-overview.png")

    inner.get_by_role("link", name="flights", exact=True).first.click()
    inner.get_by_role("heading", name="Frontiers").wait_for()
    for label in ("EWR", "JFK", "LGA"):
        inner.get_by_role("cell", name=label, exact=True).wait_for()
    page.screenshot(path=pictures / "page-stream.png")

    # A link out of the frame leads the window itself.
    inner.get_by_role("link", name="The DAG capstan_capture__flights").scroll_into_view_if_needed()
    inner.get_by_role("link", name="The DAG capstan_capture__flights").click()
    page.wait_for_url(f"{world.rest.url}/dags/capstan_capture__flights**")


def filled_in(world: World, page: Page, pictures: Path) -> tuple[str, str]:
    """From a gap to the form, its plan, and the run: its name, and the day that it plays."""
    inner = look(page, world, COVERAGE)
    inner.get_by_role("heading", name="Coverage").wait_for()
    page.screenshot(path=pictures / "page-coverage.png")
    gap = inner.get_by_role("row").filter(has_text="gap").first
    day = gap.get_by_role("cell").first.inner_text().removesuffix(" UTC")
    gap.get_by_role("link", name="Fill").click()
    inner.get_by_role("heading", name="Plan").wait_for()
    # The declared replay, over the gap; one day of it is enough.
    assert inner.locator("select[name=replay]").input_value() == COVERAGE
    assert inner.locator("input[name=since]").input_value().startswith(day)
    following = next_day(day)
    inner.locator("input[name=until]").fill(following)
    # Other values than those of the plan are not triggered.
    trigger = inner.get_by_role("button", name="Trigger")
    assert trigger.is_disabled()
    inner.get_by_text("How to run").click()
    inner.get_by_label("Approve").check()
    # The plan is of that day alone, once requested.
    inner.get_by_role("button", name="Plan again").click()
    # Airflow's address follows the frame's: what is planned can be handed on as a link.
    page.wait_for_url(re.compile(r".*/fill\?.*&approve=true"))
    page.reload()
    inner.get_by_text(re.compile(f"^from {day}.* to before {following}$")).first.wait_for()
    assert inner.get_by_label("Approve").is_checked()
    page.screenshot(path=pictures / "page-form.png")
    sentence = inner.locator("#sentence").inner_text()
    trigger.click()
    page.wait_for_url(re.compile(r".*/dags/capstan_replay/runs/.+"))
    run = unquote(re.sub(r"[/?].*", "", page.url.split("/runs/")[1]))
    # Its id and its note say what it plays.
    assert run.startswith(f"replay-flights-{day}--{following}-into-{COVERAGE}__")
    made = world.rest.call("GET", f"/dags/capstan_replay/dagRuns/{quote(run)}")
    assert str(made["note"]) == sentence
    assert sentence.startswith("Replays ")
    return run, day


def approved(world: World, page: Page, pictures: Path, run: str) -> str:
    """Certificate, audit and differences are looked at, and approved in Airflow's own page."""
    rests(page)
    before = world.rows(COVERAGE)
    reported = world.waiting(run)
    # No slot is held, no Spark job waits, and readers of the target see nothing yet.
    assert world.launched.spark() == []
    assert world.rows(COVERAGE) == before
    assert (reported["published"], reported["diff"]["added"]) == (False, 3)  # type: ignore[index]
    assert reported["audit"]["passed"]  # type: ignore[index]

    name = str(reported["run"])
    asked = f"/dags/{REPLAY}/dagRuns/{quote(run)}/taskInstances/approve/-1/hitlDetails"
    inner = look(page, world, name)
    inner.get_by_role("heading", name="What publishing would change").wait_for()
    inner.get_by_text("waiting", exact=False).first.wait_for()
    inner.get_by_role("row").filter(has_text=re.compile("started.*admin")).wait_for()
    page.screenshot(path=pictures / "page-waits.png", full_page=True)
    inner.get_by_role("link", name="Required Actions of the DAG run").click()
    page.wait_for_url(re.compile(rf".*/dags/{REPLAY}/runs/.+/required_actions"))
    page.get_by_text(f"Publish {name}").first.wait_for()
    inner = look(page, world, name)
    inner.get_by_role("link", name="log of replay, try 1").click()
    page.wait_for_url(re.compile(rf".*/dags/{REPLAY}/runs/.+/tasks/replay\?try_number=1"))
    page.get_by_text("replay.audited").first.wait_for()

    ask_for_decision(page, world.rest, REPLAY, run, "not from here")
    page.screenshot(path=pictures / "approve.png")
    inner = look(page, world, name)
    inner.get_by_label("Reason").fill("as agreed")
    inner.get_by_role("button", name="Approve").click()
    until(lambda: world.rest.call("GET", asked)["response_received"] or None, 240)
    rests(page)
    world.rest.require(REPLAY, run)
    certificate = world.rest.xcom(REPLAY, run, "publish")
    assert isinstance(certificate, dict)
    assert certificate["published"]
    assert (certificate["approval"]["by"], certificate["approval"]["reason"]) == (
        "admin", "as agreed",
    )  # fmt: skip
    assert len(world.rows(COVERAGE)) == len(before) + 3
    return name


def published(world: World, page: Page, pictures: Path, name: str, day: str) -> None:
    """The page shows the certificate, the report, and the day as covered."""
    inner = look(page, world, name)
    inner.get_by_role("heading", name="Certificate").wait_for()
    inner.get_by_text("by admin at").first.wait_for()
    page.screenshot(path=pictures / "page-run.png")
    with page.expect_download() as download:
        inner.get_by_role("link", name="Report as one file").click()
    assert name in download.value.path().read_text(encoding="utf-8")
    covered = look(page, world, COVERAGE).locator("a, g").filter(has_text=f"{day}: covered")
    covered.first.wait_for(state="attached")


def taken_back(world: World, page: Page, pictures: Path, name: str, day: str) -> None:
    """Rolled back from the run's page: the table is as before, and the page says so."""
    rows = world.rows(COVERAGE)
    inner = look(page, world, name)
    inner.get_by_label(f"Roll back what {name} published").check()
    inner.get_by_role("button", name="Roll back").click()
    page.wait_for_url(re.compile(r".*/dags/capstan_rollback/runs/.+"))
    run = unquote(re.sub(r"[/?].*", "", page.url.split("/runs/")[1]))
    world.rest.require(ROLLBACK, run)
    reported = world.rest.xcom(ROLLBACK, run, "rollback")
    assert isinstance(reported, dict)
    assert (reported["run"], reported["rolled_back"], reported["unchanged"]) == (name, True, False)
    assert len(world.rows(COVERAGE)) == len(rows) - 3
    inner = look(page, world, name)
    inner.get_by_role("heading", name=f"Run {name}").wait_for()
    for deed in ("approved", "rolled back"):
        inner.get_by_role("row").filter(has_text=re.compile(f"^{deed}.*admin")).wait_for()
    page.screenshot(path=pictures / "page-rolled-back.png")
    gap = look(page, world, COVERAGE).locator("a, g").filter(has_text=f"{day}: gap")
    gap.first.wait_for(state="attached")


def chosen(world: World, page: Page, pictures: Path, day: str) -> None:
    """A range of the calendar is chosen, and filled by a run of `capstan_gaps`."""
    inner = look(page, world, COVERAGE)
    for each in (day, next_day(day)):
        inner.get_by_label(re.compile(f"^{each}.*gap")).click(modifiers=["Shift"])
    form = inner.locator("form.action").filter(has_text="Fill gaps")
    bounds = [form.locator(f"input[name={name}]").input_value() for name in ("since", "until")]
    assert bounds == [day, next_day(next_day(day))]
    command = f"capstan backfill {COVERAGE} --gaps --since {bounds[0]} --until {bounds[1]}"
    assert form.locator("code").inner_text() == command
    form.locator("input[name=until]").fill(next_day(day))
    form.get_by_label(f"Unpause {GAPS}").check()
    page.screenshot(path=pictures / "page-range.png")
    form.get_by_role("button", name="Fill gaps").click()
    page.wait_for_url(re.compile(rf".*/dags/{GAPS}/runs/.+"))
    run = unquote(re.sub(r"[/?].*", "", page.url.split("/runs/")[1]))
    rests(page)
    world.rest.require(GAPS, run)
    done = world.rest.xcom(GAPS, run, "fill")
    assert isinstance(done, dict)
    [[made]] = [each["runs"] for each in done["backfills"]]
    assert (made["since"][:10], made["published"]) == (day, True)
    covered = look(page, world, COVERAGE).locator("a, g").filter(has_text=f"{day}: covered")
    covered.first.wait_for(state="attached")


def next_day(day: str) -> str:
    return f"{day[:8]}{int(day[8:]) + 1:02}"


@pytest.mark.rest
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


@pytest.mark.nightly
@pytest.mark.rest
def test_the_page_fits_a_narrow_window(captured: World, browser: Browser, pictures: Path) -> None:
    page = new_page(browser, width=480)
    log_in(page, captured.rest)
    fill = f"/fill?stream=flights&into={COVERAGE}&transform={COVERAGE}"
    places = ("/", "/streams/flights", f"/replays/{COVERAGE}", "/runs", "/tables", fill)
    for place in places:
        page.goto(f"{captured.rest.url}/capstan{place}")
        page.get_by_role("heading").first.wait_for()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 480, place
        name = place.strip("/").split("?")[0].replace("/", "-") or "overview"
        page.screenshot(path=pictures / f"page-{name}-narrow.png", full_page=True)


def test_nobody_sees_the_page_without_a_login(captured: World, browser: Browser) -> None:
    page = new_page(browser)
    answer = page.goto(f"{captured.rest.url}/capstan/")
    assert answer is not None
    assert answer.status == 401
    assert page.get_by_text("flights").count() == 0
