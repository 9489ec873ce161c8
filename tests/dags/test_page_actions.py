"""What a person does from a page: offered to who may, and sent to Airflow's API as it takes it."""

from __future__ import annotations

import ast
import inspect
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pytest
from airflow.api_fastapi.core_api.routes.public import public_router
from airflow.providers.standard.operators.hitl import ApprovalOperator
from pydantic import TypeAdapter, ValidationError
from starlette.routing import Match

from capstan.airflow.settings import dag_id
from capstan.airflow.web import actions
from capstan.airflow.web.plugin import PREFIX
from capstan.reporting.coverage_view import Coverage, view_coverage
from capstan.reporting.run_view import list_runs
from capstan.reporting.stream_view import StreamHistory, view_stream
from tests.dags import test_console as of_console
from tests.dags.test_page import task_there
from tests.support.browser import new_page
from tests.support.console_lakes import MADE_BY, PUBLISHED, WAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from playwright.sync_api import Browser, Locator, Page, Route

    from capstan.airflow.web.actions import Action
    from tests.dags.test_console import Console

pytestmark = [pytest.mark.dags, pytest.mark.parametrize("console", ["full"], indirect=True)]

auth, browser, console = of_console.auth, of_console.browser, of_console.console
ADDRESS, served = of_console.ADDRESS, of_console.served

Sent = list[tuple[str, str, Any]]
"""The requests to Airflow's API: method, path and body."""


def defined() -> list[tuple[str, str]]:
    """The actions that the product defines: the function of their subject, and the DAG's kind."""
    found = []
    for function in ast.parse(inspect.getsource(actions)).body:
        for call in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Action":
                named = {each.arg: each.value for each in call.keywords}
                kind = named.get("kind") or call.args[2]
                assert isinstance(kind, ast.Constant), ast.unparse(call)
                found.append((function.name, str(kind.value)))
    return found


def of_runs(console: Console) -> Iterator[tuple[str, Action]]:
    for view in list_runs(console.lake):
        yield from ((f"/runs/{view.run}", each) for each in actions.of_run(view))


def of_streams(console: Console) -> Iterator[tuple[str, Action]]:
    for name in console.lake.streams():
        view = view_stream(console.lake, console.declared, name)
        assert isinstance(view, StreamHistory)
        yield from ((f"/streams/{name}", each) for each in actions.of_stream(view))


def of_replays(console: Console) -> Iterator[tuple[str, Action]]:
    for name in console.declared.replays:
        view = view_coverage(console.lake, console.declared, name)
        assert isinstance(view, Coverage)
        yield from ((f"/replays/{name}", each) for each in actions.of_replay(view))


SUBJECTS: Mapping[str, Callable[[Console], Iterator[tuple[str, Action]]]] = {
    "of_run": of_runs, "of_stream": of_streams, "of_replay": of_replays,
}  # fmt: skip
"""What the functions of the product say of a lake: pages with their actions."""


def sent(page: Page, *, refused: bool = False) -> Sent:
    """What the page sends to Airflow's API from now on."""
    requests: Sent = []

    def answer(route: Route) -> None:
        request, path = route.request, urlsplit(route.request.url).path
        body = json.loads(request.post_data or "null")
        requests.append((request.method, path, body))
        said = {"detail": "not now"} if refused else {"dag_run_id": "manual:1"}
        route.fulfill(status=409 if refused else 200, json=said)

    page.context.unroute(f"{ADDRESS}/api/**")
    page.context.route(f"{ADDRESS}/api/**", answer)
    return requests


def takes(method: str, path: str, body: Any) -> bool:
    """Whether Airflow's API has a route for a request, and a body like its."""
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    [taker] = [each for each in public_router.routes if each.matches(scope)[0] is Match.FULL]
    [taken] = taker.dependant.body_params  # type: ignore[attr-defined]
    try:
        TypeAdapter(taken.field_info.annotation).validate_python(body)
    except ValidationError:
        return False
    return True


def looking(
    console: Console, browser: Browser, path: str, dags: set[str], role: str = "user"
) -> Page:
    page = served(new_page(browser), console.seen_by(dags, role))
    # Nothing runs behind it that would take longer.
    page.set_default_timeout(20_000)
    page.goto(f"{ADDRESS}{PREFIX}{path}")
    page.get_by_role("heading", level=1).wait_for()
    return page


def form_of(page: Page, title: str) -> Locator:
    button = page.get_by_role("button", name=title, exact=True)
    return page.locator("form.action").filter(has=button)


@pytest.mark.parametrize(("subject", "kind"), defined())
def test_an_action_is_offered_to_who_may_trigger_its_dag(
    console: Console, browser: Browser, subject: str, kind: str
) -> None:
    offered = {
        each.title: (path, each) for path, each in SUBJECTS[subject](console) if each.kind == kind
    }
    assert offered, "lay something in the lakes of tests/support/console_lakes.py that has it"
    for path, action in offered.values():
        for dags, role in ((console.dags - {dag_id(kind)}, "user"), (console.dags, "viewer")):
            page = looking(console, browser, path, dags, role)
            assert form_of(page, action.title).count() == 0
        page = looking(console, browser, path, console.dags)
        form = form_of(page, action.title)
        assert action.command == form.locator("code").inner_text()
        refused = sent(page, refused=True)
        form.get_by_role("button", name=action.title).click()
        if action.confirm:
            # The browser itself asks for what has to be ticked.
            assert refused == []
            form.get_by_label(action.confirm).check()
            form.get_by_role("button", name=action.title).click()
        form.get_by_role("alert").filter(has_text="409: not now").wait_for()
        for name, title in action.fields.items():
            form.get_by_label(title).fill(f"a {name}")
        taken = sent(page)
        form.get_by_role("button", name=action.title).click()
        page.wait_for_url(f"{ADDRESS}/dags/{action.dag}/runs/manual%3A1")
        runs = f"/api/v2/dags/{action.dag}/dagRuns"
        empty = dict.fromkeys(action.fields)
        filled = {name: f"a {name}" for name in action.fields}
        for requests, fields in ((refused, empty), (taken, filled)):
            conf = {**action.conf, **fields}
            assert requests == [("POST", runs, {"conf": conf, "logical_date": None})]
            assert takes(*requests[0])


def test_a_replay_says_who_has_paused_it(console: Console, browser: Browser) -> None:
    page = looking(console, browser, "/replays/orders_by_batch", console.dags)
    page.get_by_text("paused by ada since ").wait_for()
    titles = ("Resume", "Pause", "Fill gaps")
    assert [form_of(page, title).count() for title in titles] == [1, 0, 0]
    ends = {
        each.title: (each.conf["resume"], each.command.rpartition(" ")[2])
        for _, each in of_replays(console)
        if each.kind == "pause"
    }
    assert ends == {"Resume": (True, "--resume"), "Pause": (False, "--pause")}


@pytest.mark.parametrize("decision", [ApprovalOperator.APPROVE, ApprovalOperator.REJECT])
def test_a_decision_is_offered_to_who_may_decide(
    console: Console, browser: Browser, decision: str
) -> None:
    path = f"/runs/{WAITS}"
    asks = {"dag_id": "capstan_replay", "run_id": MADE_BY["dag_run"], "task_id": "approve"}
    with task_there({**asks, "map_index": -1}, "awaiting_input"):
        page = looking(console, browser, path, console.dags, "viewer")
        assert form_of(page, decision).count() == 0
        page = looking(console, browser, path, console.dags)
        taken = sent(page)
        form = form_of(page, decision)
        form.get_by_label("Reason").fill("as agreed")
        with page.expect_event("load"):
            form.get_by_role("button", name=decision).click()
    run = f"/api/v2/dags/capstan_replay/dagRuns/{quote(MADE_BY['dag_run'], safe='')}"
    asked = f"{run}/taskInstances/approve/-1/hitlDetails"
    body = {"chosen_options": [decision], "params_input": {"reason": "as agreed"}}
    assert taken == [("PATCH", asked, body)]
    assert takes(*taken[0])
    # Once it is decided, nobody is asked again.
    page.goto(f"{ADDRESS}{PREFIX}/runs/{PUBLISHED}")
    assert form_of(page, decision).count() == 0


def test_a_run_is_replayed_again_by_who_may_replay(console: Console, browser: Browser) -> None:
    path = f"/runs/{PUBLISHED}"
    page = looking(console, browser, path, console.dags, "viewer")
    assert page.get_by_role("link", name="Replay again").count() == 0
    page = looking(console, browser, path, console.dags)
    page.get_by_role("link", name="Replay again").click()
    page.get_by_role("heading", name="Plan").wait_for()
    taken = sent(page)
    page.get_by_role("button", name="Trigger").click()
    page.wait_for_url(f"{ADDRESS}/dags/capstan_replay/runs/manual%3A1")
    [(method, where, body)] = taken
    assert (method, where) == ("POST", "/api/v2/dags/capstan_replay/dagRuns")
    assert takes(method, where, body)
    names = ("replay", "stream", "into", "workers", "since", "until", "mode")
    assert {name: body["conf"][name] for name in names} == {
        "replay": "march_departures", "stream": "flights", "into": "march_departures",
        "workers": ["EWR", "LGA"], "since": "2013-03-01", "until": "2013-04-01", "mode": "replace",
    }  # fmt: skip
