"""The pages of the plugin: behind Airflow's login, for those who may see the DAGs, and harmless."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shlex
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode
from uuid import uuid4

import deltalake
import pytest
import typer
from airflow.api_fastapi import app as airflow_app
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from pyarrow import fs
from sqlalchemy import delete, insert, text, update
from starlette.applications import Starlette
from starlette.testclient import TestClient

from capstan.airflow import connections
from capstan.airflow.lake_queries import preview_request
from capstan.airflow.settings import Settings, read_settings
from capstan.airflow.web.actions import again
from capstan.airflow.web.plugin import PREFIX, CapstanPlugin, _pages, app
from capstan.airflow.web.prefilled_form import _hide_runs
from capstan.airflow.web.routes import make_app, read_ahead
from capstan.airflow.web.security import HEADERS, capture_dag, replay_dag
from capstan.airflow.web.visit import current_settings
from capstan.cli.app import app as cli
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.replay.planning.request import CHANGES, HOW, INPUT, OUTPUT, Request
from capstan.reporting.html import STATIC
from capstan.reporting.run_view import RunView
from capstan.storage.delta import table_cache
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from tests.support.bulk_ledger import publish_all
from tests.support.jvmless_lake import Books, lay_tape
from tests.support.recorded_tapes import START
from tests.support.s3_server import BUCKET, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from conftest import Place

pytestmark = pytest.mark.dags

DAY_US = 86_400_000_000
RUN = "by_day-0a0a0a0a-1"
REPLAY_DAG, ROLLBACK_DAG = "capstan_replay", "capstan_rollback"
ALL = (capture_dag("little"), REPLAY_DAG, "capstan_backfill__by_day")
PAGES = (
    "/", "/streams/little", "/replays/by_day", "/runs", "/tables", f"/runs/{RUN}",
    f"/runs/{RUN}/report.html", f"/runs/{RUN}/report.json", "/fill?stream=little&into=by_day",
)  # fmt: skip


FIELDS = (
    "into", "streams", "since", "until", "known_at", "as_of", "peers", "replay", "workers",
    "transform", "pipeline", "sink", "mode", "keys",
)  # fmt: skip
"""What a query can say of a replay beside its stream."""


class Choosy(SimpleAuthManager):
    """An auth manager by whose word a user sees the DAGs that their name lists."""

    def is_authorized_dag(  # type: ignore[override]
        self, *, method: str, user: SimpleAuthManagerUser, details: DagDetails | None = None,
        access_entity: DagAccessEntity | None = None,
    ) -> bool:  # fmt: skip
        known = user.username.split(",")
        named = details is not None and details.id in known
        starts = user.role == "starter" and access_entity is DagAccessEntity.RUN
        return named and (method == "GET" or user.role == "user" or starts)


@pytest.fixture(scope="module")
def auth() -> Iterator[Choosy]:
    before = airflow_app._AuthManagerState.instance
    actual = airflow_app._AuthManagerState.instance = Choosy()
    yield actual
    airflow_app._AuthManagerState.instance = before


def put_dags(paused: Mapping[str, bool]) -> None:
    """Have Airflow know these DAGs, and no others."""
    with create_session() as session:
        session.execute(text("PRAGMA foreign_keys = OFF"))
        # Stale ones count as gone. Deleted, they would leave their tags behind.
        session.execute(update(DagModel).values(is_stale=True, is_paused=False))
        for dag, is_paused in paused.items():
            known = session.get(DagModel, dag) or DagModel(dag_id=dag, bundle_name="b")
            known.is_paused, known.is_stale = is_paused, False
            session.add(known)


@pytest.fixture
def lake(place: Place) -> Lake:
    """A lake with a stream of which a day is replayed, one failed, and the rest is not."""
    return fill(Lake.at(place.lake))


def fill(lake: Lake) -> Lake:
    begin = int(START.timestamp()) * 1_000_000
    hours = [(begin + n * 3_600_000_000,) for n in range(0, 96, 3)]
    lay_tape(lake, "little", ["north", "<b>south</b>"], hours, (begin + 4 * DAY_US,))
    for table in ("records", "late"):
        _empty(f"{lake.stream('little').root}/{table}")
    kept = Books(lake, "little", lake.table("by_day"))
    kept.published(RUN, [0, 1], Region(Box((begin,), (begin + DAY_US,))))
    kept.failed("by_day-0b0b0b0b-1", None, Region(Box((begin + DAY_US,), (begin + 2 * DAY_US,))))
    return lake


def _empty(table: str) -> None:
    from tests.support import recorded_tapes

    schema = recorded_tapes._LATE if table.endswith("/late") else recorded_tapes._RECORDS
    recorded_tapes.write(table, schema.empty_table())


@pytest.fixture
def client(lake: Lake, auth: Choosy) -> Iterator[TestClient]:
    outer = Starlette()
    outer.mount(PREFIX, app)
    table_cache.enable()
    yield TestClient(outer, base_url="http://testserver")
    table_cache.disable()
    put_dags({})


@pytest.fixture
def seeing(client: TestClient, auth: Choosy) -> Callable[..., TestClient]:
    """The client of a user who sees these DAGs; one with the role `user` may trigger them.

    Airflow has these DAGs, or those that are `here`; one with the role `starter` may not edit any.
    """

    def log_in(
        *dags: str, role: str = "user", here: Sequence[str] = (), paused: Sequence[str] = ()
    ) -> TestClient:
        put_dags({dag: dag in paused for dag in here or dags})
        user = SimpleAuthManagerUser(username=",".join(dags), role=role)
        client.cookies.set("_token", auth.generate_jwt(user))
        return client

    return log_in


@pytest.mark.nightly
def test_pages_of_a_lake_on_s3_are_those_of_a_lake_in_a_folder(
    seeing: Callable[..., TestClient], place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the keys of a connection: the process has no variables that lead there."""
    client = seeing(*ALL)
    pages = {path: timeless(client.get(f"{PREFIX}{path}").text) for path in PAGES}
    there = f"s3a://{BUCKET}/lake"
    with objects(tmp_path) as s3:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in s3.variables.items():
                patch.setenv(name, value)
            fill(Lake.at(there))
        extra = {"endpoint_url": s3.endpoint, "region_name": "us-east-1"}
        keys = {"login": "nobody", "password": "m4rk"}
        connection = {"conn_type": "aws", **keys, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
        monkeypatch.setenv(connections.VARIABLE, "store")
        monkeypatch.setenv("CAPSTAN_LAKE", there)
        monkeypatch.setattr(connections, "_read", None)
        connections.use()
        for path, expected in pages.items():
            answer = client.get(f"{PREFIX}{path}")
            assert answer.status_code == 200, (path, answer.text)
            assert "m4rk" not in answer.text
            actual = timeless(answer.text)
            for form in (str, partial(quote, safe="")):
                actual = actual.replace(form(there), form(str(place.lake)))
            assert actual == expected, path


def timeless(page: str) -> str:
    """A page without times of the clock; those of the stream are in 2024."""
    return re.sub(r"20(2[5-9]|[3-9]\d)-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?", "then", page)


def routes() -> list[str]:
    """A path of every route that the application has."""
    actual = [route.path for route in make_app().routes]  # type: ignore[attr-defined]
    return [re.sub(r"\{[^}]*\}", "little", path) for path in actual]


def test_every_route_requires_a_login(client: TestClient) -> None:
    paths = [*routes(), *PAGES, *(f"/{name}" for name in STATIC), "/nowhere", "/streams/nowhere"]
    assert len(paths) > 15
    for path in paths:
        answer = client.get(f"{PREFIX}{path}", follow_redirects=False)
        assert answer.status_code == 401, path
        assert "little" not in answer.text.replace(path, "")
        assert "<a data-airflow href=" in answer.text
    for token in ("", "nonsense", "a.b.c"):
        client.cookies.set("_token", token)
        assert client.get(f"{PREFIX}/").status_code in (401, 403)


def test_who_is_not_logged_in_sees_a_page_as_others_are(client: TestClient) -> None:
    """The style sheet is behind the login, too, so that it is in the page."""
    answer = client.get(f"{PREFIX}/")
    assert "stylesheet" not in answer.text
    assert "<script" not in answer.text
    style = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    policy = answer.headers["Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert "frame-ancestors 'self'" in policy


def test_every_answer_has_its_headers(seeing: Callable[..., TestClient]) -> None:
    client = seeing(*ALL)
    for path in (*PAGES, "/style.css", "/page.js", "/nowhere", "/streams/.."):
        answer = client.get(f"{PREFIX}{path}")
        for name, value in HEADERS.items():
            if name not in ("Cache-Control", "Content-Security-Policy"):
                assert answer.headers[name] == value, path
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert not re.search(r"https?:|\*|unsafe|data:", policy)
        assert ("no-store" in answer.headers["Cache-Control"]) == (path[1:] not in STATIC)


def test_users_who_see_the_dags_see_the_pages(seeing: Callable[..., TestClient]) -> None:
    client = seeing(*ALL)
    for path in PAGES:
        answer = client.get(f"{PREFIX}{path}")
        assert answer.status_code == 200, (path, answer.text)
        assert "<b>south" not in answer.text
    overview = client.get(f"{PREFIX}/").text
    assert f'href="{PREFIX}/streams/little"' in overview
    assert f'href="{PREFIX}/replays/by_day"' in overview
    assert f'href="{PREFIX}/runs/{RUN}"' in overview
    report = client.get(f"{PREFIX}/runs/{RUN}/report.html")
    assert report.headers["Content-Disposition"] == f'attachment; filename="{RUN}.html"'


@pytest.mark.parametrize(
    ("dags", "shown", "refused"),
    [
        ((), (), PAGES[1:3] + PAGES[5:]),
        ((REPLAY_DAG,), (), ("/streams/little", "/replays/by_day", f"/runs/{RUN}")),
        ((capture_dag("little"),), ("/streams/little",), ("/replays/by_day", f"/runs/{RUN}")),
        ((capture_dag("little"), REPLAY_DAG), (f"/runs/{RUN}",), ("/replays/by_day",)),
        ((capture_dag("other"), REPLAY_DAG), (), ("/streams/little", f"/runs/{RUN}")),
        (ALL, PAGES, ()),
    ],
)
def test_pages_show_only_data_of_visible_dags(
    seeing: Callable[..., TestClient],
    dags: tuple[str, ...],
    shown: tuple[str, ...],
    refused: tuple[str, ...],
) -> None:
    client = seeing(*dags)
    texts = [client.get(f"{PREFIX}{path}").text for path in ("/", "/runs")]
    stream, replay = capture_dag("little") in dags, REPLAY_DAG in dags
    assert ('/streams/little"' in texts[0]) == stream
    assert ('/replays/by_day"' in texts[0]) == (dags == ALL)
    assert any(RUN in text for text in texts) == (stream and replay)
    for path in shown:
        assert client.get(f"{PREFIX}{path}").status_code == 200, path
    for path in refused:
        answer = client.get(f"{PREFIX}{path}")
        assert answer.status_code in (403, 404), path
        assert "south" not in answer.text


WAITS = "by_day-0f0f0f0f-1"


def listed(client: TestClient) -> dict[str, list[dict[str, Any]]]:
    """What needs attention, by kind."""
    answer = client.get(f"{PREFIX}/attention.json")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for item in answer.json()["attention"]:
        by_kind.setdefault(item["kind"], []).append(item)
    return by_kind


def test_what_needs_attention_comes_first(seeing: Callable[..., TestClient], lake: Lake) -> None:
    day = int(START.timestamp()) * 1_000_000
    kept = Books(lake, "little", lake.table("by_day"), _claims=9, _now=datetime.now(UTC))
    kept.claimed(WAITS, [0, 1], Region(Box((day + DAY_US,), (day + 2 * DAY_US,))))
    kept.stepped(WAITS, "intent", {"request": {}, "certificate": {"records": 7}})
    kept.stepped(WAITS, "audited", {})
    client = seeing(*ALL)
    text = client.get(f"{PREFIX}/").text
    assert text.index('id="attention"') < text.index('id="streams"')
    block = text[text.index('id="attention"') : text.index('id="streams"')]
    assert f'<a href="{PREFIX}/runs/{WAITS}">{WAITS}</a>' in block
    assert "7 records from the start wait to be published into by_day" in block
    assert f"<code>capstan publish {WAITS}</code>" in block
    assert f'<a href="{PREFIX}/replays/by_day">by_day</a>' in block
    assert "<code>capstan backfill by_day</code>" in block
    found = listed(client)
    assert {kind: [item["name"] for item in items] for kind, items in found.items()} == {
        "waiting": [WAITS], "gap": ["by_day"], "stale": ["by_day"],
    }  # fmt: skip
    # A form leads to a DAG, which not all may trigger.
    fills = re.findall(r'href="([^"]*/fill[^"]*)"', block)
    forms = [item["form"] for kind in ("gap", "stale") for item in found[kind]]
    assert [fill.replace("&amp;", "&") for fill in fills] == [PREFIX + form for form in forms]
    assert [client.get(PREFIX + form).status_code for form in forms] == [200, 200]
    block = seeing(*ALL, role="viewer").get(f"{PREFIX}/").text.partition('id="streams"')[0]
    assert WAITS in block
    assert "/fill" not in block


def test_attention_is_only_to_what_a_user_may_see(
    seeing: Callable[..., TestClient], lake: Lake
) -> None:
    day = int(START.timestamp()) * 1_000_000
    now = datetime.now(UTC)
    kept = Books(lake, "little", lake.table("by_day"), _claims=9, _now=now)
    kept.failed(WAITS, [0], Region(Box((day + 3 * DAY_US,), (day + 4 * DAY_US,))))
    secret = Books(lake, "secret", lake.table("hidden"), _claims=19, _now=now)
    secret.failed("hidden-0a0a0a0a-1", [0], Region(Box((day,), (day + DAY_US,))))
    assert set(listed(seeing(*ALL))) == {"failed", "gap", "stale"}
    assert listed(seeing(ALL[0])) == {}
    for dags in ((), ALL[1:], ("somebody_elses",)):
        assert seeing(*dags).get(f"{PREFIX}/attention.json").status_code == 403
    assert set(listed(seeing(*ALL[:2]))) == {"failed"}
    for dags in ((), ALL[:1], ALL):
        client = seeing(*dags)
        for path in ("/", "/attention.json"):
            text = client.get(f"{PREFIX}{path}").text
            assert ("secret" in text, "hidden" in text) == (False, False)
    assert "Nothing needs attention." in seeing().get(f"{PREFIX}/").text


def test_a_missing_lake_is_no_lake_in_order(
    seeing: Callable[..., TestClient], place: Place
) -> None:
    client = seeing(*ALL)
    Path(place.lake).rename(place.root / "gone")
    assert 'id="attention"' not in client.get(f"{PREFIX}/").text
    assert client.get(f"{PREFIX}/attention.json").status_code == 503


def test_existence_is_revealed_only_to_users_with_access(seeing: Callable[..., TestClient]) -> None:
    client = seeing(REPLAY_DAG, capture_dag("nowhere"))
    codes = {
        path: client.get(f"{PREFIX}{path}").status_code
        for path in ("/streams/nowhere", "/streams/little", "/streams/neither", f"/runs/{RUN}",
                     "/runs/t-00000000-1")
    }  # fmt: skip
    assert codes == {
        "/streams/nowhere": 404, "/streams/little": 403, "/streams/neither": 403,
        f"/runs/{RUN}": 404, "/runs/t-00000000-1": 404,
    }  # fmt: skip


HIDDEN = """
  hidden_replay:
    stream: secret
    target: by_day
    description: "of the hidden stream"
"""


def test_what_is_out_of_sight_is_not_mentioned(
    seeing: Callable[..., TestClient], place: Place, lake: Lake
) -> None:
    text = place.streams.read_text(encoding="utf-8")
    begin, end = text.index("  little:"), text.index("transforms:")
    secret = text[begin:end].replace("  little:", "  secret:").replace(
        "{by: column, column: place}", "{by: column, column: place, labels: [xray]}"
    )  # fmt: skip
    place.streams.write_text(text[:end] + secret + text[end:] + HIDDEN[1:], encoding="utf-8")
    day = int(START.timestamp()) * 1_000_000
    lay_tape(lake, "secret", ["xray"], [(day,)], (day + 4 * DAY_US,))
    over = Region(Box((day,), (day + DAY_US,)))
    now = datetime.now(UTC)
    kept = Books(lake, "secret", lake.table("by_day"), _claims=9, _version=9, _now=now)
    kept.published("by_day-0c0c0c0c-1", None, over)
    kept.claimed("by_day-0d0d0d0d-1", None, over)
    table = lake.table("by_day")
    pages = (
        "/", "/runs", "/tables", f"/tables?target={table}", "/streams/little",
        "/replays/by_day", f"/runs/{RUN}", "/fill",
        "/fill?stream=little&into=by_day", "/fill?stream=little&into=by_day&replay=nothing",
        "/fill?stream=nowhere&into=by_day", "/fill?stream=little&into=by_day&dry_run=true",
    )  # fmt: skip
    words = ("secret", "hidden", "xray", "0c0c0c0c", "0d0d0d0d")
    client = seeing(*ALL, capture_dag("nowhere"))
    for path in pages:
        answer = client.get(f"{PREFIX}{path}")
        assert answer.status_code == 200, path
        assert [word for word in words if word in answer.text] == [], path
    plan = client.get(f"{PREFIX}/fill?stream=little&into=by_day").text
    # Covered by one, claimed by another, which is also why it may not be triggered.
    assert plan.count("a run that you may not see") == 3
    # Who sees the stream sees all of it.
    client = seeing(*ALL, capture_dag("secret"))
    actual = {
        word for path in pages for word in words if word in client.get(f"{PREFIX}{path}").text
    }
    assert actual == set(words)


def test_runs_of_a_declared_replay_need_access_to_its_dag(
    seeing: Callable[..., TestClient], lake: Lake
) -> None:
    own = "by_day-0e0e0e0e-1"
    kept = Books(lake, "little", lake.table("by_day"))
    kept.stepped(own, "intent", {"request": {"replay": "by_day"}, "certificate": {}})
    little, backfill = ALL[0], ALL[2]
    for dags, shown in (
        ((little, REPLAY_DAG), {RUN}), ((little, backfill), {own}), (ALL, {RUN, own}),
        ((REPLAY_DAG, backfill), set()),
    ):  # fmt: skip
        client = seeing(*dags)
        listed = client.get(f"{PREFIX}/runs").text
        assert {run for run in (RUN, own) if run in listed} == shown
        codes = {run: client.get(f"{PREFIX}/runs/{run}").status_code for run in (RUN, own)}
        assert codes == {run: 200 if run in shown else 404 for run in (RUN, own)}


UNFINISHED = "by_day-0f0f0f0f-1"
TASK = {"dag_id": REPLAY_DAG, "run_id": "r:1+0", "task_id": "replay", "map_index": -1}


@contextmanager
def task_there(task: Mapping[str, object], state: str | None = None) -> Iterator[None]:
    """Airflow has a DAG run with one task instance while the block lasts."""
    run = {name: task[name] for name in ("dag_id", "run_id")}
    with create_session() as session:
        session.execute(text("PRAGMA foreign_keys = OFF"))
        about = {**run, "run_type": "manual", "state": "running", "run_after": datetime.now(UTC)}
        session.execute(insert(DagRun).values(**about))
        own = {**task, "id": uuid4(), "pool": "spark", "pool_slots": 1, "state": state}
        session.execute(insert(TaskInstance).values(**own))
    yield
    with create_session() as session:
        for table in (TaskInstance, DagRun):
            session.execute(delete(table).where(table.run_id == run["run_id"]))


@pytest.fixture
def task(place: Place) -> Iterator[Callable[..., None]]:
    """Sets the state of the task that has a run made, or of its DAG run if it is `ended`."""

    def put(state: str | None, **more: object) -> None:
        with create_session() as session:
            table = DagRun if state == "ended" else TaskInstance
            own = {"state": "failed" if state == "ended" else state, **more}
            session.execute(update(table).where(table.run_id == "r:1+0").values(**own))

    with task_there(TASK):
        yield put


def test_pages_tell_running_queued_dead_and_waiting_runs_apart(
    seeing: Callable[..., TestClient], lake: Lake, task: Callable[[str | None], None]
) -> None:
    client, begin = seeing(*ALL), int(START.timestamp()) * 1_000_000
    kept = Books(lake, "little", lake.table("by_day"), _claims=9, _now=datetime.now(UTC))
    region = Region(Box((begin + 2 * DAY_US,), (begin + 3 * DAY_US,)))
    kept.claimed(UNFINISHED, None, region)
    paths = ["/", "/runs", "/replays/by_day", f"/runs/{UNFINISHED}"]

    def shown() -> tuple[str, str]:
        """The state on each page, and after how many seconds each is looked at again."""
        found: set[tuple[str, str]] = set()
        for path in paths:
            page = client.get(f"{PREFIX}{path}").text
            page = re.sub(r"<p class=.legend.*", "", page)
            states = re.findall(r"(?:badge|cell) (running|queued|waiting|dead)\"", page)
            seconds = re.findall(r"<main [^>]*data-refresh=.(\d+)", page)
            found |= {(state, "".join(seconds)) for state in states or ["nothing"]}
        [one] = found
        return one

    assert shown() == ("running", "5")
    by = {"dag": REPLAY_DAG, "dag_run": "r:1+0"}
    made = {**by, "task": "replay", "try_number": 1, "user": "ada"}
    kept.stepped(UNFINISHED, "intent", {"request": {}, "certificate": {}, "made_by": made})
    # This page does not list runs with only a claim.
    paths.append("/streams/little")
    for state, expected, seconds in (
        ("running", "running", "5"), ("queued", "queued", "5"), (None, "queued", "5"),
        ("up_for_retry", "queued", "5"), ("failed", "dead", ""), ("success", "dead", ""),
    ):  # fmt: skip
        task(state)
        assert shown() == (expected, seconds), state
    # An attempt that has only a claim may be made by something else.
    kept.claimed(UNFINISHED, None, region, attempt=2)
    assert shown() == ("running", "5")
    kept.stepped(UNFINISHED, "intent", {"certificate": {}, "made_by": by}, attempt=2)
    assert shown() == ("running", "5")
    task("ended")
    assert shown() == ("dead", "")
    # Airflow does not know it any more.
    other = {**by, "dag_run": "gone"}
    kept.stepped(UNFINISHED, "intent", {"certificate": {}, "made_by": other}, attempt=2)
    assert shown() == ("running", "5")
    kept.stepped(UNFINISHED, "audited", {"audit": {}}, attempt=2)
    assert shown() == ("waiting", "30")
    assert f'href="/dags/{REPLAY_DAG}/runs/gone/required_actions"' in (
        client.get(f"{PREFIX}/runs/{UNFINISHED}").text
    )
    # Who may not see the runs sees that the range is taken, and no name.
    hidden = seeing(ALL[0], ALL[2]).get(f"{PREFIX}/replays/by_day").text
    assert "cell waiting" in hidden
    assert UNFINISHED not in hidden


def test_a_failed_try_between_two_retries_has_not_failed(
    seeing: Callable[..., TestClient], lake: Lake, task: Callable[..., None]
) -> None:
    client, begin = seeing(*ALL), int(START.timestamp()) * 1_000_000
    kept = Books(lake, "little", lake.table("by_day"), _claims=9, _now=datetime.now(UTC))
    kept.claimed(UNFINISHED, None, Region(Box((begin + 2 * DAY_US,), (begin + 3 * DAY_US,))))
    made = {"dag": REPLAY_DAG, "dag_run": "r:1+0", "task": "replay", "try_number": 1}
    kept.stepped(UNFINISHED, "failed", {"error": "CAP-BROKEN", "made_by": made})

    def shown() -> tuple[bool, set[str]]:
        """Whether it is listed as failed, and its state on pages."""
        pages = [client.get(f"{PREFIX}{path}").text for path in (
            "/runs", f"/runs/{UNFINISHED}", "/replays/by_day"
        )]  # fmt: skip
        found = re.findall(rf"{UNFINISHED}</a></td>\s*<td><span class=.badge (\w+)", pages[0])
        found += re.findall(r"<h1>Run .*?<span class=.badge (\w+)", pages[1], re.DOTALL)
        day = f"{START + timedelta(days=2):%Y-%m-%d}"
        square = rf"data-since=.{day}[^>]*>\s*<title>[^<]*</title><rect class=.cell (\w+)"
        found += re.findall(square, pages[2])
        assert len(found) == 3
        names = [item["name"] for item in listed(client).get("failed", [])]
        return UNFINISHED in names, set(found)

    for state, try_number, expected in (
        ("up_for_retry", 1, "queued"), ("queued", 2, "queued"), ("running", 2, "running"),
        # The try that has failed to make it may be at work on others.
        ("running", 1, "failed"), ("failed", 2, "failed"),
    ):  # fmt: skip
        task(state, try_number=try_number)
        assert shown() == (expected == "failed", {expected}), (state, try_number)


@pytest.mark.parametrize("name", ["..%2f..%2fetc", "a'b", "x;DROP", "X", "a" * 65, "%00", "a b"])
def test_invalid_names_are_not_looked_up(seeing: Callable[..., TestClient], name: str) -> None:
    client = seeing(*ALL, capture_dag("X"))
    for kind in ("streams", "replays", "runs"):
        answer = client.get(f"{PREFIX}/{kind}/{name}")
        assert answer.status_code in (400, 403, 404), (kind, answer.text)
        assert "Traceback" not in answer.text
    assert client.get(f"{PREFIX}/fill?stream={name}").status_code in (400, 403)
    for field in FIELDS:
        answer = client.get(f"{PREFIX}/fill?stream=little&into=t&{field}={name}")
        assert answer.status_code in (200, 400), (field, answer.text)
        # Some of these are names that a column may have.
        if answer.status_code == 200 and field != "keys":
            assert 'class="problem"' in answer.text, field
        assert "CAP-BROKEN" not in answer.text


HOSTILE = (
    "../../../../etc/passwd", "x' OR 1=1 --", "`; DROP TABLE x; --", "os:system",
    "\"><script>alert(1)</script>{{ 7*1000007 }}", "\x00", "9" * 400,
)  # fmt: skip


@pytest.mark.rest
def test_every_field_of_the_form_rejects_invalid_values(
    seeing: Callable[..., TestClient], place: Place
) -> None:
    client, names = seeing(*ALL), list(place.bag().dags[REPLAY_DAG].params)
    assert {"replay", "workers", "keys", "transform", "pipeline", "sink", "as_of"} <= set(names)
    for index, name in enumerate((*names, "follow", "nothing")):
        for value in (HOSTILE[index % len(HOSTILE)], HOSTILE[(index + 3) % len(HOSTILE)]):
            given = {"stream": "little", "into": "by_day", name: value}
            answer = client.get(f"{PREFIX}/fill", params=given)
            assert answer.status_code in (200, 400, 403), (name, value, answer.text)
            text = answer.text
            assert "Traceback" not in text
            assert "<script>alert" not in text
            assert "7000049" not in text
            assert "root:" not in text
            # A switch is off, a path of a table may be any, and what is no field is left.
            if (
                name in ("into", "follow", "nothing", "dry_run", "diff")
                or answer.status_code != 200
            ):
                continue
            switch = f'name="{name}" data-kind="switch"' in text
            assert switch or 'class="problem"' in text, (name, value)
    for part in ("ledger/claims", "streams/little/events", "tables//by_day", "staging/x"):
        given = {"stream": "little", "into": f"{place.lake}/{part}"}
        assert "CAP-NAME" in client.get(f"{PREFIX}/fill", params=given).text, part
    for value in HOSTILE:
        answer = client.get(f"{PREFIX}/tables", params={"target": value})
        assert answer.status_code == 200, (value, answer.text)
        assert RUN not in answer.text
        assert "<script>alert" not in answer.text
    stored = {"streams", "ledger", "tables"}
    assert {path.name for path in Path(place.lake).iterdir()} == stored


@pytest.mark.parametrize(
    "path",
    ["/runs?page=0", "/runs?page=x", "/runs?page=99999999", "/replays/by_day?year=x",
     "/runs?sort=detail", "/runs?since=yesterday", f"/runs?text={'x' * 201}", "/tables?page=0"],
)  # fmt: skip
def test_an_invalid_query_is_refused(seeing: Callable[..., TestClient], path: str) -> None:
    answer = seeing(*ALL).get(f"{PREFIX}{path}")
    assert answer.status_code == 400
    assert "CAP-REQUEST" in answer.text


def test_ten_thousand_runs_are_shown_by_pages(
    seeing: Callable[..., TestClient], lake: Lake
) -> None:
    hour = DAY_US // 24
    regions = [Region(Box((n * hour,), ((n + 1) * hour,))) for n in range(10_000)]
    runs = {f"many-{n:08x}-1": ([0, 1], region) for n, region in enumerate(regions)}
    bounds = {"since": "2024-05-01T00:00:00.000000Z", "until": "2024-05-02T00:00:00.000000Z"}
    certificate = {"workers": ["north", "south"], "records": 12_345, "transform": "t", **bounds}
    publish_all(Books(lake, "little", lake.table("by_day")), runs, certificate=certificate)
    client = seeing(*ALL)
    for path, listed in (
        ("/", 10), ("/runs", 50), ("/runs?sort=run", 50), ("/runs?page=200", 50),
        ("/runs?page=201", 2), ("/runs?text=00000ff&stream=little", 17),
        ("/streams/little", 10), ("/tables", 0),
        (f"/tables?target={lake.table('by_day')}", 50),
    ):  # fmt: skip
        text = client.get(f"{PREFIX}{path}").text
        assert len(set(re.findall(f'href="{PREFIX}/runs/([a-z_0-9-]+)"', text))) == listed, path
        assert len(text) < 100_000, path
    text = client.get(f"{PREFIX}/streams/little").text
    assert f'<a href="{PREFIX}/runs?stream=little">All 10,002 runs</a>' in text
    assert "There are only 201 pages." in client.get(f"{PREFIX}/runs?page=202").text


def test_runs_are_found_by_what_a_form_sends(seeing: Callable[..., TestClient]) -> None:
    """A form without a script sends all its fields, also empty ones."""
    client, other = seeing(*ALL), "by_day-0b0b0b0b-1"
    empty = dict.fromkeys(("text", "stream", "table", "state", "since", "until"), "")
    for given, found in (
        ({}, {RUN, other}), ({"state": "failed"}, {other}), ({"text": "0A0A"}, {RUN}),
        ({"table": "by_day", "stream": "little"}, {RUN, other}), ({"since": "2124-01-01"}, set()),
        ({"text": HOSTILE[4]}, set()), ({"stream": HOSTILE[1]}, set()),
    ):  # fmt: skip
        text = client.get(f"{PREFIX}/runs", params={**empty, **given}).text
        assert {run for run in (RUN, other) if f"/runs/{run}" in text} == found, given
        assert ("No run is as you search for." in text) == (not found)
        assert "<script>alert" not in text
    # What is searched for stays in the form and in the links, and its order in the form.
    text = client.get(f"{PREFIX}/runs?state=failed&sort=run").text
    assert '<option value="failed" selected>failed</option>' in text
    assert '<input type="hidden" name="sort" value="run">' in text
    assert 'aria-sort="ascending"><a href="?state=failed&amp;sort=-run">' in text


def test_facts_are_links_and_each_page_says_where_it_is(
    seeing: Callable[..., TestClient], lake: Lake
) -> None:
    client = seeing(*ALL)
    stream = f'<a href="{PREFIX}/streams/little">little</a>'
    table = f'<a href="{PREFIX}/tables?{urlencode({"target": lake.table("by_day")})}">by_day</a>'
    for path, facts in {
        "/": (stream, table), "/replays/by_day": (stream, table), "/runs": (stream, table),
        f"/runs/{RUN}": (stream, table), "/tables": (stream, table),
    }.items():  # fmt: skip
        text = client.get(f"{PREFIX}{path}").text
        assert [fact for fact in facts if fact not in text] == [], path
        assert ('aria-label="Breadcrumb"' in text) == (path != "/")
        assert text.index('href="#content"') < text.index("<nav")
        assert '<main id="content"' in text
        assert "<th></th>" not in text


def test_a_cell_leads_to_its_run_or_to_its_runs(
    seeing: Callable[..., TestClient], lake: Lake, place: Place
) -> None:
    """Of a gap, to the form, for who may fill it."""
    begin = int(START.timestamp()) * 1_000_000
    day, another, run = "2024-05-03", "by_day-0e0e0e0e-1", "by_day-0f0f0f0f-1"
    transform = read_settings(place.root / "any.py").declarations.transforms["by_day"]
    kept = Books(
        lake, "little", lake.table("by_day"), transform.name, transform.code_hash,
        _claims=9, _version=9, _now=datetime.now(UTC),
    )  # fmt: skip
    third = begin + 2 * DAY_US
    kept.published(run, [0, 1], Region(Box((third,), (third + DAY_US,))))
    client = seeing(*ALL)

    def leads(client: TestClient) -> dict[str, str]:
        page = html.unescape(client.get(f"{PREFIX}/replays/by_day").text)
        found = re.findall(r'<a href="([^"]+)" aria-label="(\d{4}-\d\d-\d\d): ', page)
        return {name: place for place, name in found}

    places = leads(client)
    assert places.pop(day) == f"{PREFIX}/runs/{run}"
    assert len(places) > 2
    assert all("/fill?" in place for place in places.values())
    # Another run, later, has the day of one worker.
    kept.published(another, [0], Region(Box((third,), (third + DAY_US,))))
    query = leads(client)[day]
    assert query == f"?year=2024&at={day}#cell"
    text = client.get(f"{PREFIX}/replays/by_day{query}").text
    section = text[text.index('id="cell"') :].split("</section>")[0]
    assert {name for name in (run, another, RUN) if f"/runs/{name}" in section} == {run, another}
    assert 'id="cell"' not in client.get(f"{PREFIX}/replays/by_day?at=nothing").text
    viewer = leads(seeing(*ALL, role="viewer"))
    assert not any("/fill?" in place for place in viewer.values())
    assert viewer[f"{START:%Y-%m-%d}"] == f"{PREFIX}/runs/{RUN}"


def test_the_report_of_a_run_is_there_for_programs(
    seeing: Callable[..., TestClient], lake: Lake
) -> None:
    answer = seeing(*ALL).get(f"{PREFIX}/runs/{RUN}/report.json")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{RUN}.json"'
    report = answer.json()
    named = {name: report[name] for name in ("run", "state", "streams", "target", "published")}
    assert named == {
        "run": RUN, "state": "published", "streams": ["little"], "target": lake.table("by_day"),
        "published": True,
    }  # fmt: skip
    assert [(step["attempt"], step["step"]) for step in report["steps"]] == [
        (1, "intent"), (1, "done"),
    ]  # fmt: skip
    assert report["steps"][1]["detail"] == {"attempt": 1, "target_version": 1}
    failed = seeing(*ALL).get(f"{PREFIX}/runs/by_day-0b0b0b0b-1/report.json").json()
    assert (failed["state"], failed["certificate"], failed["error"]) == (
        "failed", None, {"error": "CAP-AUDIT"},
    )  # fmt: skip
    assert seeing(REPLAY_DAG).get(f"{PREFIX}/runs/{RUN}/report.json").status_code == 404


def test_a_form_without_a_target_has_an_empty_field(seeing: Callable[..., TestClient]) -> None:
    text = seeing(*ALL).get(f"{PREFIX}/fill?stream=little").text
    assert "NOTSET" not in text
    assert re.search(r'name="into"[^>]* value=""', text)


class Form(HTMLParser):
    """What the script of the page sends of a form: its fields as they stand."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.conf: dict[str, object] = {}
        self._select = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        kind, name, value = given.get("data-kind"), given.get("name") or "", given.get("value")
        if tag == "form":
            self.conf |= json.loads(given.get("data-conf") or "{}")
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and "selected" in given:
            self.conf[self._select] = value or None
        elif kind == "switch":
            self.conf[name] = "checked" in given
        elif kind == "list":
            self.conf[name] = [part.strip() for part in (value or "").split(",") if part] or None
        elif kind == "whole":
            self.conf[name] = int(value) if value else None
        elif kind == "text":
            self.conf[name] = value or None

    def handle_endtag(self, tag: str) -> None:
        self._select = "" if tag == "select" else self._select


def test_a_gap_leads_to_a_form_for_its_declared_replay(
    seeing: Callable[..., TestClient], place: Place, execute: Any, context: Any
) -> None:
    text = place.streams.read_text(encoding="utf-8")
    place.streams.write_text(text + "    checks: [{not_null: [day]}]\n", encoding="utf-8")
    client = seeing(*ALL)
    page = client.get(f"{PREFIX}/replays/by_day").text
    links = re.findall(r'<a class="button" href="([^"]+)">Fill</a>', page)
    form = client.get(links[0].replace("&amp;", "&")).text
    assert 'data-runs="/api/v2/dags/capstan_replay/dagRuns"' in form
    assert 'class="problem"' not in form

    dag = place.bag().dags[REPLAY_DAG]
    dag.params.update(Form(form).conf)
    where = {**context(), "params": dag.params.validate()}
    # What the DAG's first task makes of it, and hands to the job.
    plan = dag.get_task("plan")
    plan.without_approval = ()
    requested = execute(plan, where)["request"]
    declared = read_settings(place.root / "any.py").declarations.replay("by_day")
    names = ("replay", "stream", "into", "transform", "mode")
    assert {name: requested[name] for name in names} == {
        "replay": "by_day", "stream": declared.stream, "into": declared.target,
        "transform": declared.transform, "mode": "replace",
    }  # fmt: skip
    assert (requested["since"], requested["until"]) == ("2024-05-02", "2024-05-03")
    assert set(requested["workers"]) == {"north", "<b>south</b>"}
    # The declared replay's own checks go with it.
    assert preview_request(
        read_settings(place.root / "any.py"), Request.from_json(requested)
    ).plan.checks


def test_the_form_has_every_field_of_the_dag(
    seeing: Callable[..., TestClient], place: Place
) -> None:
    form = seeing(*ALL).get(f"{PREFIX}/fill?stream=little&into=t&dry_run=true&peers=2").text
    params = place.bag().dags[REPLAY_DAG].params
    assert re.findall(r'name="([a-z_]+)"', form.split("<form")[1]) == list(params)
    assert re.search(r'name="dry_run"[^>]* checked', form)
    assert re.search(r'name="peers"[^>]* value="2"', form)


def test_the_plan_of_a_form_does_not_name_a_hidden_run_that_stands() -> None:
    plan = {"covered": [], "held_by": [], "stands": RUN}
    assert _hide_runs(plan, [RUN]) == plan
    assert _hide_runs(plan, [])["stands"] == "a run that you may not see"


def test_a_field_that_a_link_leaves_empty_is_as_declared(seeing: Callable[..., TestClient]) -> None:
    form = seeing(*ALL).get(f"{PREFIX}/fill?replay=by_day&into=&until=").text
    for name, value in (("into", "by_day"), ("until", "2024-05-06")):
        assert re.search(rf'name="{name}"[^>]* value="{value}"', form), name


def test_a_form_takes_fields_as_a_link_writes_them(
    seeing: Callable[..., TestClient], place: Place
) -> None:
    client, link = seeing(*ALL), f"{PREFIX}/fill?stream=little&into=by_day"
    assert 'class="problem"' not in client.get(f"{link}&peers=2&as_of=0").text
    assert "CAP-REQUEST" in client.get(f"{link}&peers=two").text
    # No list, so no such worker; it is not as if none had been given.
    assert "CAP-WORKER" in client.get(f"{link}&workers=%22north").text
    assert 1_000 < max(map(len, re.findall("x+", client.get(f"{link}{'x' * 9_000}").text))) < 3_000

    text = place.streams.read_text(encoding="utf-8")
    place.streams.write_text(f"{text}    approve: true\n", encoding="utf-8")
    asked = client.get(f"{PREFIX}/fill?replay=by_day").text
    assert re.search(r'name="approve"[^>]* checked', asked)


def test_the_form_triggers_the_dag_of_the_prefix(
    seeing: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSTAN_DAG_PREFIX", "replays_")
    page = seeing("replays_replay", "replays_capture__little").get(f"{PREFIX}/fill?stream=little")
    assert 'data-runs="/api/v2/dags/replays_replay/dagRuns"' in page.text
    assert REPLAY_DAG not in page.text


def test_a_declared_replay_fills_the_form_and_binds_it(seeing: Callable[..., TestClient]) -> None:
    client = seeing(*ALL)
    page = client.get(f"{PREFIX}/fill?replay=by_day&until=2024-05-03").text
    form = page.split("<form")[1]
    for name, value in (("into", "by_day"), ("since", "2024-05-01"), ("until", "2024-05-03")):
        assert re.search(rf'name="{name}"[^>]* value="{value}"', form), name
    assert '<option value="by_day" selected>' in form
    other = client.get(f"{PREFIX}/fill?replay=by_day&until=2024-05-07").text
    said = "replay by_day has until 2024-05-06T00:00:00+00:00, not 2024-05-07"
    assert said in unescape(other)


def test_usual_fields_are_open_and_the_others_folded(seeing: Callable[..., TestClient]) -> None:
    page = seeing(*ALL).get(f"{PREFIX}/fill?stream=little&into=t&peers=2").text
    form = page.split("<form")[1].split("</form>")[0]
    open_, *folded = form.split("<details")
    usual = ["stream", "replay", "into", "since", "until", "workers"]
    assert re.findall(r'name="([a-z_]+)"', open_) == usual
    titles = [re.search(r"<summary>([^<]+)<", part)[1] for part in folded]  # type: ignore[index]
    assert titles == [INPUT, OUTPUT, CHANGES, HOW]
    # Descriptions are markdown in Airflow, and shown as such here.
    about = re.findall(r'about">(.*?)</p>', form)
    assert not re.search(r"[*`]", "".join(about))
    assert "<em>Peers</em>" in "".join(about)
    # A section with something in it is open.
    assert [part.startswith(" open>") for part in folded] == [False, False, False, True]


def test_a_trigger_waits_for_a_plan_that_is_not_refused(
    seeing: Callable[..., TestClient], place: Place
) -> None:
    client = seeing(*ALL)
    trigger = re.compile(r'<button type="submit" autocomplete="off"( disabled)?>Trigger</button>')

    def shown(query: str) -> tuple[str, bool]:
        text = unescape(client.get(f"{PREFIX}/fill?stream=little&{query}").text)
        found = trigger.search(text)
        assert found is not None
        return text, found[1] is None

    text, may = shown("into=t&until=2024-05-02&workers=north")
    assert may
    sentence = re.search(r'<p id="sentence"><strong>([^<]+)<', text)
    assert sentence is not None
    assert re.fullmatch(
        r"Replays [0-9,]+ records of little \(north\), from the start to before 2024-05-02, "
        r"into t, replacing what is there of these workers and times\.",
        sentence[1],
    )
    assert f'data-note="{sentence[1]}"' in text
    assert 'data-title="replay little north ..2024-05-02 into t"' in text
    for query, code in (
        ("into=/etc/x&until=2024-05-02", "CAP-ROOT"),
        ("into=t&until=2030-01-01", "CAP-INCOMPLETE"),
        ("into=t&since=x", "CAP-TIME"),
    ):
        text, may = shown(query)
        assert (code in text, may) == (True, False), query
        assert "data-title" not in text
        assert "The plan is refused" in text
    # What waits, or only plans, may be triggered.
    for more in ("wait=true", "dry_run=true", "partial=true"):
        assert shown(f"into=t&until=2030-01-01&{more}")[1], more
    lake = Lake.at(place.lake)
    Books(lake, "little", lake.table("t"), _now=datetime.now(UTC)).claimed(
        "t-0f0f0f0f-1", [0, 1], Region(Box((None,), (None,)))
    )
    text, may = shown("into=t&until=2024-05-02")
    assert ("CAP-HELD" in text, may) == (True, False)


def test_a_table_that_only_a_catalog_knows_is_said_to_be_so(
    seeing: Callable[..., TestClient],
) -> None:
    page = seeing(*ALL).get(f"{PREFIX}/fill?stream=little&into=shop.orders&until=2024-05-02").text
    assert "shop.orders is new to the lake; the run asks the catalog where it is" in page


@pytest.mark.parametrize("count", ["--5", "-", "5-", "1.5", "\u0663", "\u00b2"])
def test_a_non_number_is_refused_on_the_page(seeing: Callable[..., TestClient], count: str) -> None:
    requested = {"stream": "little", "into": "t", "peers": count}
    answer = seeing(*ALL).get(f"{PREFIX}/fill", params=requested)
    assert (answer.status_code, "CAP-REQUEST" in answer.text) == (200, True), answer.text


def test_the_form_is_hidden_from_users_who_may_not_trigger(
    seeing: Callable[..., TestClient],
) -> None:
    client = seeing(*ALL, role="viewer")
    assert "/fill?" not in client.get(f"{PREFIX}/replays/by_day").text
    assert client.get(f"{PREFIX}/fill?stream=little&into=t").status_code == 403
    # Nor for who sees no stream at all.
    assert seeing(REPLAY_DAG).get(f"{PREFIX}/fill").status_code == 403


@pytest.fixture
def asked(task: Callable[[str | None], None]) -> Callable[..., None]:
    """Has the tasks `approve` and `publish` of a group be in a state, and the question answered."""

    def put(state: str | None, publish: str | None = None, group: str = "", **answer: Any) -> None:
        with create_session() as session:
            session.execute(delete(HITLDetail))
            session.execute(delete(TaskInstance).where(TaskInstance.task_id != "replay"))
            for name, own in (("approve", state), ("publish", publish)):
                ti = {**TASK, "task_id": group + name, "id": uuid4(), "state": own}
                session.execute(insert(TaskInstance).values(**ti, pool="p", pool_slots=1))
                if name == "approve" and state is not None:
                    detail = {"ti_id": ti["id"], "options": ["Approve", "Reject"], "subject": "?"}
                    session.execute(insert(HITLDetail).values(**detail, params={}, **answer))

    return put


def test_a_run_that_waits_is_decided_about_by_who_may(
    seeing: Callable[..., TestClient], lake: Lake, asked: Callable[..., None]
) -> None:
    made = {"dag": REPLAY_DAG, "dag_run": "r:1+0", "task": "first.replay"}
    kept = Books(lake, "little", lake.table("by_day"), _claims=9, _now=datetime.now(UTC))
    kept.stepped(UNFINISHED, "intent", {"request": {}, "certificate": {}})
    kept.stepped(UNFINISHED, "audited", {"audit": {}})
    page = f"{PREFIX}/runs/{UNFINISHED}"
    asked("awaiting_input", group="first.")
    # Airflow does not know a run of the command line.
    assert "data-decide" not in seeing(*ALL).get(page).text
    kept.stepped(UNFINISHED, "audited", {"audit": {}, "made_by": made})
    text = seeing(*ALL).get(page).text
    assert re.findall('data-decide="([^"]*)"', text) == [
        "/api/v2/dags/capstan_replay/dagRuns/r%3A1%2B0/taskInstances/first.approve/-1/hitlDetails"
    ]
    assert re.findall('<button type="submit"[^>]* value="([^"]*)"', text) == ["Approve", "Reject"]
    assert "data-decide" not in seeing(*ALL, role="viewer").get(page).text
    kept.stepped(UNFINISHED, "rejected", {"by": "ada"})
    assert "data-decide" not in seeing(*ALL).get(page).text


def test_what_has_come_of_a_question_takes_the_place_of_its_form(
    seeing: Callable[..., TestClient], lake: Lake, asked: Callable[..., None]
) -> None:
    made = {"dag": REPLAY_DAG, "dag_run": "r:1+0", "task": "replay"}
    kept = Books(lake, "little", lake.table("by_day"), _claims=9, _now=datetime.now(UTC))
    kept.stepped(UNFINISHED, "intent", {"request": {}, "certificate": {}})
    kept.stepped(UNFINISHED, "audited", {"audit": {}, "made_by": made})
    client = seeing(*ALL)

    def shown() -> tuple[str, str]:
        """The sentence about the question, and after how many seconds it is looked at again."""
        text = client.get(f"{PREFIX}/runs/{UNFINISHED}").text
        assert "data-decide" not in text
        assert "waits for a decision: in Airflow" not in text
        [about] = re.findall("<p>([^/]*answered.*?)</p>", text, re.DOTALL)
        [seconds] = re.findall(r"<main [^>]*?(?:data-refresh=.(\d+)|>)", text) or [""]
        return " ".join(re.sub("<[^>]*>", "", about).split()), seconds

    at = datetime(2024, 5, 3, 4, 5, tzinfo=UTC)
    answer = {"responded_at": at, "responded_by": {"id": "7", "name": "ada"}}
    approved = {**answer, "chosen_options": ["Approve"]}
    lost = (
        "has ended as failed: nothing was published. Clear it to try again, or use "
        f"capstan publish {UNFINISHED} or capstan reject {UNFINISHED}."
    )
    said = "ada has answered Approve at 2024-05-03 04:05:00 UTC"
    for given, more, expected, seconds in (
        (("running",), {}, "Nobody has answered, as the task approve does not ask yet.", "30"),
        (("scheduled",), approved, f"{said}; the task approve carries it out.", "5"),
        (("success", "running"), approved, f"{said}; the task publish carries it out.", "5"),
        (
            ("failed",), approved,
            f"{said}, and the task approve {lost}", "",
        ),
        (
            ("success", "failed"), approved,
            f"{said}, and the task publish {lost}", "",
        ),
        (
            ("failed",), {},
            f"Nobody has answered, and the task approve {lost}", "",
        ),
        (
            ("success",), {"responded_at": at, "chosen_options": ["Reject"]},
            "Nobody has answered in time, which counts as Reject; the task publish carries it out.",
            "5",
        ),
    ):  # fmt: skip
        asked(*given, **more)
        assert shown() == (expected, seconds), given
    asked("awaiting_input")
    assert "data-decide" in client.get(f"{PREFIX}/runs/{UNFINISHED}").text
    # What Airflow has not begun, or does not know any more, may be decided elsewhere.
    asked(None)
    text = client.get(f"{PREFIX}/runs/{UNFINISHED}").text
    assert ("waits for a decision: in Airflow" in text, "data-decide" in text) == (True, False)


def test_who_has_triggered_a_run_is_not_offered_to_approve_it_where_others_have_to(
    seeing: Callable[..., TestClient], lake: Lake, place: Place, asked: Callable[..., None]
) -> None:
    asked("awaiting_input")
    with place.streams.open("a", encoding="utf-8") as file:
        file.write("    approve: others\n")
    made = {"dag": REPLAY_DAG, "dag_run": "r:1+0", "task": "replay"}
    kept = Books(lake, "little", lake.table("by_day"), _claims=9, _now=datetime.now(UTC))
    kept.stepped(UNFINISHED, "intent", {"request": {}, "certificate": {}})
    for user, offered in ((",".join(ALL), ["Reject"]), ("bea", ["Approve", "Reject"])):
        kept.stepped(UNFINISHED, "audited", {"audit": {}, "made_by": {**made, "user": user}})
        text = seeing(*ALL).get(f"{PREFIX}/runs/{UNFINISHED}").text
        assert re.findall('<button type="submit"[^>]* value="([^"]*)"', text) == offered


GAPS = {"fill": True, "replays": ["by_day"]}
ACTIONS = {
    f"/runs/{RUN}": [("audit", {"runs": [RUN]}), ("rollback", {"run": RUN})],
    "/runs/by_day-0b0b0b0b-1": [],
    "/streams/little": [
        ("verify", {"stream": "little", "deep": True}), ("maintain", {"streams": ["little"]}),
    ],
    "/replays/by_day": [
        ("gaps", {**GAPS, "what": "gaps"}), ("gaps", {**GAPS, "what": "stale"}),
    ],
}  # fmt: skip
"""The actions of pages: the kinds of their DAGs, each with the parameters of a run."""


@pytest.mark.parametrize("page", ACTIONS)
def test_pages_have_actions_for_who_may_trigger_their_dag(
    page: str, seeing: Callable[..., TestClient], place: Place
) -> None:
    dags = [f"capstan_{kind}" for kind, _ in ACTIONS[page]]
    text = seeing(*ALL, *dags).get(f"{PREFIX}{page}").text
    forms = [f"<form {form}" for form in text.split('<form class="action"')[1:]]
    confs = [{k: v for k, v in Form(form).conf.items() if v is not None} for form in forms]
    kinds = [kind for form in forms for kind in re.findall(r"capstan_(\w+)/dagRuns", form)]
    assert list(zip(kinds, confs, strict=True)) == ACTIONS[page]
    for form, dag, conf in zip(forms, dags, confs, strict=True):
        # Airflow takes what its form of that DAG has.
        params = place.bag().dags[dag].params
        params.update(conf)
        params.validate()
        [command] = re.findall(r'data-command="([^"]+)"', form)
        assert parses(html.unescape(command)), command
    for client in (seeing(*ALL), seeing(*ALL, *dags, role="viewer")):
        assert '<form class="action"' not in client.get(f"{PREFIX}{page}").text


def test_actions_are_offered_only_where_their_dag_is(seeing: Callable[..., TestClient]) -> None:
    """A guest's Airflow may leave DAGs out, and one that was there may be gone."""
    dags = [f"capstan_{kind}" for kind in ("audit", "rollback", "gaps")]
    page = f"{PREFIX}/runs/{RUN}"
    text = seeing(*ALL, *dags, here=[ALL[0], REPLAY_DAG, dags[1]]).get(page).text
    assert re.findall(r"capstan_(\w+)/dagRuns", text) == ["rollback"]
    assert "Replay again" in text
    client = seeing(*ALL, *dags, here=ALL[:1])
    text = client.get(page).text
    assert ("/dagRuns" in text, "Replay again" in text) == (False, False)
    for path in ("/", "/replays/by_day"):
        text = client.get(f"{PREFIX}{path}").text
        assert ("/dagRuns" in text, "/fill?" in text) == (False, False)
    assert client.get(f"{PREFIX}/fill?stream=little&into=t").status_code == 403
    with create_session() as session:
        session.merge(DagModel(dag_id=dags[0], is_paused=False, is_stale=True, bundle_name="b"))
    assert "/dagRuns" not in client.get(page).text


def test_a_paused_dag_is_unpaused_by_who_may(seeing: Callable[..., TestClient]) -> None:
    given = {"dags": "capstan_gaps", "page": f"{PREFIX}/replays/by_day"}
    for role, paused, runs, boxes in (
        ("user", [], 2, 0), ("user", [given["dags"]], 2, 2), ("starter", [], 2, 0),
        ("starter", [given["dags"]], 0, 0),
    ):  # fmt: skip
        text = seeing(*ALL, given["dags"], role=role, paused=paused).get(given["page"]).text
        counts = text.count("/dagRuns"), text.count("data-unpause")
        assert counts == (runs, boxes), role
        asks = "capstan_gaps is paused, and its runs would wait: ask somebody who may edit"
        assert (asks in text) == (runs == 0)
        # What it would have done, the command still does.
        assert 'data-command="capstan backfill by_day --gaps"' in text
        actions = text[text.index('id="actions"') :]
        assert actions.count('<button type="submit"') == runs


def parses(command: str) -> bool:
    """Whether the command line takes a command, as far as its parser goes."""
    program, verb, *given = shlex.split(command)
    commands = typer.main.get_command(cli).commands  # type: ignore[attr-defined]
    return program == "capstan" and bool(commands[verb].make_context(verb, given))


def test_a_run_is_replayed_again_by_the_form(seeing: Callable[..., TestClient]) -> None:
    page = f"{PREFIX}/runs/{RUN}"
    assert 'href="/capstan/fill?mode=replace">Replay again' in seeing(*ALL).get(page).text
    assert "Replay again" not in seeing(*ALL, role="viewer").get(page).text
    asked = {"stream": "little", "workers": ["a", "b"], "since": "2024-05-01", "adopt": False}
    view = RunView("t-1-1", "little", "t", "failed", False, 1, START, request=asked)
    assert parse_qs(again(view)) == {
        "stream": ["little"], "workers": ["a", "b"], "since": ["2024-05-01"],
    }  # fmt: skip
    several = {
        "streams": {"orders": "sold", "payments": "paid"}, "sequence_by": ["version"],
        "workers_of": {"orders": ["a", "b"]}, "partial": True,
    }  # fmt: skip
    assert parse_qs(again(replace(view, request=several))) == {
        "streams": ["orders=sold, payments=paid"], "sequence_by": ["version"],
        "workers_of": ["orders=a, b"], "partial": ["true"],
    }  # fmt: skip


def test_what_the_overview_shows_is_read_ahead(
    seeing: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = read_ahead(current_settings())
    assert thread is not None
    thread.join(60)
    tables: list[str] = []
    whole = deltalake.DeltaTable.__init__

    def counted(table: deltalake.DeltaTable, path: str, *more: Any, **options: Any) -> None:
        tables.append(path)
        whole(table, path, *more, **options)

    monkeypatch.setattr(deltalake.DeltaTable, "__init__", counted)
    client = seeing(*ALL)
    shown = client.get(f"{PREFIX}/").text
    assert tables == []
    for page in ("streams/little", "replays/by_day", f"runs/{RUN}"):
        assert f'href="{PREFIX}/{page}"' in shown
    # What is on a page of its own is read for that.
    assert client.get(f"{PREFIX}/streams/little").status_code == 200
    assert tables != []


class Counted:
    """The local file system as an object store, of which it counts what is opened."""

    def __init__(self) -> None:
        self.files = fs.LocalFileSystem()
        self.opened: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)

    def open_input_stream(self, path: str) -> Any:
        self.opened.append(path)
        return self.files.open_input_stream(path)


def test_a_second_look_reads_the_newest_entries_alone(
    seeing: Callable[..., TestClient], lake: Lake, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many replays are declared: while something runs, a page asks again and again."""
    more = [f"more_{n}" for n in range(5)]
    with place.streams.open("a", encoding="utf-8") as file:
        for name in more:
            about = f"transform: by_day, target: {name}, since: 2024-05-01, until: 2024-05-06"
            file.write(f'  {name}: {{stream: little, {about}, schedule: "@daily"}}\n')
    client = seeing(*ALL, *(f"capstan_backfill__{name}" for name in more))
    begin = int(START.timestamp()) * 1_000_000
    day = Region(Box((begin,), (begin + DAY_US,)))
    for n, name in enumerate(more):
        kept = Books(lake, "little", lake.table(name), _claims=9 + n, _now=datetime.now(UTC))
        kept.claimed(f"{name}-0a0a0a0a-1", None, day)
    store, tables, claimed = Counted(), list[str](), list[object]()
    monkeypatch.setattr("capstan.storage.lake._open", lambda path: (store, path))
    monkeypatch.setattr("capstan.storage.ledger.claims._claim_states", counting(
        claimed, claims._claim_states))  # fmt: skip
    monkeypatch.setattr(deltalake.DeltaTable, "__init__", counting(
        tables, deltalake.DeltaTable.__init__))  # fmt: skip
    asks = {"X-Capstan-Follows": "1"}
    text = client.get(f"{PREFIX}/").text
    assert (text.count("badge running"), 'data-refresh="5"' in text) == (10, True)
    assert all(name in text for name in more)
    first = len(store.opened)
    assert (first > 0, claimed != []) == (True, True)
    for headers in (asks, {}):
        for kept_of in (store.opened, tables, claimed):
            kept_of.clear()
        assert client.get(f"{PREFIX}/", headers=headers).text.count("badge running") == 10
        assert (tables, claimed) == ([], [])
        looks = Counter(path.rpartition("/")[0] for path in store.opened)
        assert all("/_delta_log" in log for log in looks)
        # The newest entry that is known, and that there is none after it.
        assert max(looks.values()) == 2, looks


def counting(calls: list[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose calls are listed by their second argument."""

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(given[1])
        return function(*given, **named)

    return counted


def test_what_needs_attention_is_listed_again_every_half_minute_while_something_runs(
    seeing: Callable[..., TestClient], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, asks = seeing(*ALL), {"X-Capstan-Follows": "1"}
    day = int(START.timestamp()) * 1_000_000
    kept = Books(lake, "little", lake.table("by_day"), _claims=9, _now=datetime.now(UTC))
    moment = datetime.now(UTC)
    monkeypatch.setattr("capstan.airflow.web.visit.now", lambda: moment)

    def shown(**headers: str) -> tuple[bool, bool]:
        """Whether the run is among what needs attention, and among the newest runs."""
        text = client.get(f"{PREFIX}/", headers=headers).text
        block, _, rest = text.partition('id="streams"')
        return WAITS in block, WAITS in rest

    assert shown() == (False, False)
    kept.claimed(WAITS, [0, 1], Region(Box((day + DAY_US,), (day + 2 * DAY_US,))))
    kept.stepped(WAITS, "intent", {"request": {}, "certificate": {}})
    kept.stepped(WAITS, "audited", {})
    moment += timedelta(seconds=30)
    assert shown(**asks) == (False, True)
    # Others see what they may see, and whoever opens the page sees it as it is.
    assert set(listed(client)) == {"waiting", "gap", "stale"}
    assert "Nothing needs attention" in seeing().get(f"{PREFIX}/", headers=asks).text
    client = seeing(*ALL)
    moment += timedelta(seconds=1)
    assert shown(**asks) == (True, True)
    kept.stepped(WAITS, "rejected", {})
    assert shown(**asks) == (True, True)
    assert shown() == (False, True)


def test_the_first_request_of_a_process_has_it_read(
    seeing: Callable[..., TestClient], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, began = list[str](), threading.Event()

    def reading(found: Settings) -> None:
        read.append(found.lake)
        began.set()

    monkeypatch.setattr("capstan.airflow.web.routes._read_overview", reading)
    _pages.cache_clear()
    client = seeing(*ALL)
    for _ in range(2):
        assert client.get(f"{PREFIX}/icon.svg").status_code == 200
    assert began.wait(60)
    assert read == [str(place.lake)]


def test_pages_with_an_error_prefetch_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    # There is no lake yet.
    read_ahead(current_settings()).join(60)
    place.streams.write_text("streams: [", encoding="utf-8")
    read_ahead(current_settings()).join(60)
    assert failed == []


def test_a_missing_lake_is_refused(
    seeing: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSTAN_LAKE", "/nowhere/at/all")
    client = seeing(*ALL)
    overview = client.get(f"{PREFIX}/")
    assert overview.status_code == 200
    assert "CAP-LAKE" in overview.text
    # Nothing is said of streams and runs that nobody can see now.
    for path in PAGES[1:]:
        answer = client.get(f"{PREFIX}{path}")
        if path.startswith("/fill"):
            assert "not on tape" in answer.text
            continue
        assert (answer.status_code, "CAP-LAKE" in answer.text) == (503, True), path
        assert "not captured yet" not in answer.text


def test_declarations_that_are_wrong(seeing: Callable[..., TestClient], place: Place) -> None:
    place.streams.write_text("streams: [", encoding="utf-8")
    answer = seeing(*ALL).get(f"{PREFIX}/")
    assert answer.status_code == 200
    assert "CAP-DECLARE" in answer.text
    assert str(place.streams) in answer.text


def test_the_dags_that_are_asked_about_are_those_that_are_there(place: Place) -> None:
    with place.streams.open("a", encoding="utf-8") as file:
        for name, more in (("pairs", ""), ("daily", ', schedule: "@daily"')):
            about = f"pipeline: places, sink: pairs, target: {name}, follow: {name}{more}"
            file.write(f"  {name}: {{stream: little, {about}}}\n")
    actual = read_settings(place.root / "any.py").declarations
    dags = set(place.bag().dags)
    assert capture_dag("little") in dags
    assert REPLAY_DAG in dags
    assert {replay_dag(replay) for replay in actual.replays.values()} <= dags


def test_airflow_takes_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow._shared.plugins_manager import is_valid_plugin

    assert is_valid_plugin(CapstanPlugin)
    view = CapstanPlugin.external_views[0]
    assert view["href"].startswith("/")
    # The UI follows links inside the frame by the place of this one.
    assert view["href"].endswith(f"{PREFIX}/")


@pytest.mark.rest
def test_a_process_that_serves_no_page_pays_nothing_for_it(place: Place) -> None:
    code = (
        "import sys, capstan.airflow.web.plugin; "
        "heavy = ('pyspark', 'deltalake', 'pyarrow', 'capstan.airflow.web.routes'); "
        "sys.exit(', '.join(name for name in heavy if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr[-300:]
