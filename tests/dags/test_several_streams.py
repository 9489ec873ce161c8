"""Replays of several streams in Airflow: requests, the sensor, lineage, who may see what."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from fastapi import HTTPException

from capstan.airflow.lake_queries import preview_request, read_request, resolve
from capstan.airflow.operators.frontier_sensor import FrontierSensor
from capstan.airflow.settings import Settings, read_settings
from capstan.airflow.tasks.failures import TaskRefusedError
from capstan.airflow.tasks.lineage import lineage
from capstan.airflow.web import routes, security, visit
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import request_at_cuts
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId
from tests.support.jvmless_lake import EVENT, go_on, lay_tape

if TYPE_CHECKING:
    from conftest import Place

HOUR = 3_600_000_000
MOMENT = pa.struct([("event", pa.timestamp("us", "UTC"))])
LATE = pa.schema(
    [("reason", pa.string()), ("worker", pa.int32()), ("batch", pa.int64()), ("time", MOMENT)]
)
DAGS = Path(__file__).parents[2] / "dags"
STREAMS = {"orders": "sold", "payments": "paid"}
STREAM = """
  {name}:
    source: {{format: delta, path: "/data/{name}"}}
    workers: {{by: column, column: place}}
    time: {{domain: event, column: at, every: 1 hour}}
"""
JOINED = """
  joined:
    {streams: {orders: sold, payments: paid}, pipeline: paid, target: joined, follow: f}
  chosen:
    {streams: {orders: sold, payments: paid}, pipeline: paid_by_seller, target: chosen,
     workers_of: {orders: [a]}}
  hourly:
    {streams: {orders: sold, payments: paid}, pipeline: paid, target: hourly, schedule: "@hourly",
     since: 1970-01-01}
"""

PIPELINES = """pipelines:
  paid: tests.support.several_streams:paid
  paid_by_seller: tests.support.several_streams:paid_by_seller
"""


@pytest.fixture
def setting(place: Place) -> Settings:
    text = place.streams.read_text(encoding="utf-8")
    more = "".join(STREAM.format(name=name).lstrip("\n") for name in STREAMS.values())
    text = text.replace("transforms:\n", f"{more}transforms:\n")
    text = text.replace("pipelines:\n", PIPELINES)
    place.streams.write_text(text + JOINED.lstrip("\n"), encoding="utf-8")
    lake = Lake.at(place.lake)
    for name, until in (("sold", 8), ("paid", 6)):
        lay_tape(lake, name, ["a"], [(n * HOUR,) for n in range(10)], (until * HOUR,))
        for path in (lake.stream(name).late, lake.stream(name).records):
            deltalake.DeltaTable.create(path, LATE)
    return read_settings(DAGS / "any.py")


def test_a_form_that_names_the_replay_has_its_streams(setting: Settings) -> None:
    expected = Request.of_streams(STREAMS, "joined", pipeline="paid", follow="f", replay="joined")
    named = {"into": "joined", "replay": "joined"}
    for stream in (None, "sold", "paid", "sold+paid"):
        assert resolve(setting, {**named, "stream": stream, "pipeline": None}) == expected
    assert resolve(setting, {**named, "streams": STREAMS, "pipeline": "paid"}) == expected
    with pytest.raises(InvalidRequestError, match="has stream sold.paid, not little"):
        resolve(setting, {"into": "joined", "replay": "joined", "stream": "little"})
    free = {"streams": STREAMS, "into": "other", "pipeline": "paid"}
    assert resolve(setting, free) == read_request(free)


def test_a_form_has_cuts_and_workers_of_each_stream(setting: Settings) -> None:
    asked = {
        "streams": "payments=paid, orders=sold", "into": "t", "pipeline": "paid",
        "cuts": "orders=0, payments=0", "workers_of": ["orders=a", "payments= a "],
    }  # fmt: skip
    request = resolve(setting, asked)
    assert request.cuts == {"orders": 0, "payments": 0}
    assert request.workers_of == {"orders": ("a",), "payments": ("a",)}
    assert preview_request(setting, request).plan.inputs.cuts == request.cuts
    wrong: dict[str, list[object]] = {
        "cuts": ["orders", "orders=x", "orders=1,orders=2"],
        "workers_of": [["orders"], ["orders=a", "orders=b"]],
    }
    for name, text in ((name, text) for name, texts in wrong.items() for text in texts):
        with pytest.raises(InvalidRequestError) as caught:
            resolve(setting, {**asked, name: text})
        assert caught.value.code == "CAP-REQUEST"
        assert name in caught.value.message


def test_a_form_names_streams_of_no_declared_replay(setting: Settings) -> None:
    requested = {"stream": "little", "streams": "payments=paid, orders=sold", "into": "t"}
    request = resolve(setting, {**requested, "pipeline": "paid", "replay": None})
    assert request == Request.of_streams(STREAMS, "t", pipeline="paid")
    assert preview_request(setting, request).plan.request.streams == STREAMS
    declared = {**requested, "into": "joined", "replay": "joined"}
    assert resolve(setting, declared) == resolve(setting, {"into": "joined", "replay": "joined"})
    other = {**declared, "streams": "orders=paid,payments=sold", "pipeline": "paid"}
    with pytest.raises(InvalidRequestError, match="CAP-REQUEST: replay joined has stream"):
        resolve(setting, other)
    for text, code in {
        "sold": "CAP-STREAMS: streams 'sold' names no source",
        "orders=sold,paid": "CAP-STREAMS",
        "orders=sold": "CAP-STREAMS",
        "orders=sold,orders=paid": "CAP-STREAMS",
        "orders=../x,payments=paid": "CAP-NAME",
        "orders=sold+,payments=paid": "CAP-NAME",
        "a/b=sold,payments=paid": "CAP-STREAMS",
    }.items():
        with pytest.raises(InvalidRequestError, match=code):
            resolve(setting, {**requested, "streams": text, "pipeline": "paid"})


def test_the_page_plans_streams_that_all_may_be_seen(
    setting: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = {"capstan_replay", "capstan_capture__sold"}
    monkeypatch.setattr(security, "_readable", lambda dags, user: allowed & set(dags))
    user = security.Permissions(None)  # type: ignore[arg-type]
    monkeypatch.setattr(security.Permissions, "may_trigger", lambda *_: True)
    given = {"streams": ["orders=sold,payments=paid"], "pipeline": ["paid"], "into": ["t"]}
    query: Any = SimpleNamespace(query_params=Query(given), url=SimpleNamespace(path="/"))
    monkeypatch.setattr(visit.Visit, "page", lambda _, name, **shown: shown)
    asked = visit.Visit(query, setting, user)
    with pytest.raises(HTTPException):
        routes.fill(asked)
    allowed.add("capstan_capture__paid")
    shown: Any = routes.fill(asked)
    assert shown["problem"] == {}
    assert [part["stream"] for part in shown["plan"]["streams"]] == ["sold", "paid"]


class Query(dict[str, list[str]]):
    """The parameters of a query."""

    def getlist(self, name: str) -> list[str]:
        """All values of one."""
        return self[name]


def test_a_form_can_choose_other_workers_than_the_declared_ones(setting: Settings) -> None:
    named = {"into": "chosen", "replay": "chosen"}
    declared = resolve(setting, named)
    assert (declared.workers, declared.workers_of) == (None, {"orders": ("a",)})
    assert preview_request(setting, declared).plan.scope.workers == (0,)
    other = resolve(setting, {**named, "workers": ["b"]})
    assert (other.workers, other.workers_of) == (("b",), {})
    item = resolve(setting, {**named, "workers_of": {"orders": ["b"]}})
    assert (item.workers, item.workers_of) == (None, {"orders": ("b",)})


def test_a_task_pins_all_cuts(setting: Settings) -> None:
    requested = resolve(
        setting, {"into": "hourly", "replay": "hourly", "until": "1970-01-01T05:00:00Z"}
    )
    pinned = request_at_cuts(preview_request(setting, requested).plan)
    assert pinned.cuts == {"orders": 0, "payments": 0}
    again = Request.from_json(json.loads(json.dumps(pinned.to_json())))
    go_on(Lake.at(setting.lake), "paid", [], (9 * HOUR,))
    assert preview_request(setting, again).plan.inputs.cuts == pinned.cuts


@pytest.mark.parametrize(
    ("what", "hour", "complete"),
    [
        ({"stream": ["sold", "paid"]}, 6, True),
        ({"stream": ["sold", "paid"]}, 7, False),
        ({"stream": ["sold"]}, 7, True),
        ({"stream": ["sold", "little"]}, 5, False),
        ({"replay": "joined"}, 6, True),
        ({"replay": "joined"}, 7, False),
        ({"replay": "chosen"}, 6, True),
    ],
)
def test_the_sensor_waits_for_all_streams(
    setting: Settings, what: dict[str, Any], hour: int, complete: bool, context: Any
) -> None:
    until = f"1970-01-01T0{hour}:00:00Z"
    sensor = FrontierSensor(task_id="complete", settings=setting, until=until, **what)
    assert sensor.poke(context()) is complete
    if not complete:
        with pytest.raises(TaskRefusedError, match="CAP-INCOMPLETE"):
            sensor._require_complete(context())


def test_lineage_has_a_tape_for_each_stream() -> None:
    part = {"cut": 3, "records": 10}
    certificate = {
        "run": "r-1",
        "stream": "sold+paid",
        "cut": 3,
        "records": 15,
        "streams": [
            {**part, "source": "orders", "stream": "sold"},
            {"source": "payments", "stream": "paid", "cut": 7, "records": 5},
        ],
        "target": "joined",
        "target_path": "/lake/tables/joined",
        "target_version": 1,
        "published": True,
        "audit": {"passed": True, "kind": "pipeline", "records": 4},
    }
    actual = lineage("replay", "/lake", certificate)
    assert {
        item.name: (
            item.facets["version"].datasetVersion,
            item.inputFacets["inputStatistics"].rowCount,
        )
        for item in actual.inputs
    } == {"/lake/streams/sold/events": ("3", 10), "/lake/streams/paid/events": ("7", 5)}
    audit = {"passed": True, "stream": "sold+paid", "cut": 3, "cuts": {"payments": 7, "orders": 3}}
    audit |= {"target_path": "/lake/tables/joined", "kind": "pipeline", "records": 4}
    read = lineage("audit", "/lake", audit).inputs
    assert [(item.name, item.facets["version"].datasetVersion) for item in read[:2]] == [
        ("/lake/streams/sold/events", "3"),
        ("/lake/streams/paid/events", "7"),
    ]


def test_a_run_is_shown_to_those_who_may_see_all_its_streams(
    setting: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: set[str] = set()
    monkeypatch.setattr(security, "_readable", lambda dags, user: allowed & set(dags))
    user = security.Permissions(None)  # type: ignore[arg-type]
    replay = setting.declarations.replay("joined")
    run: Any = SimpleNamespace(run="r", owner=(replay.stream, "joined"))
    dags = ["capstan_follow__joined", "capstan_capture__sold", "capstan_capture__paid"]
    for lacking in dags:
        allowed.clear()
        allowed.update(set(dags) - {lacking})
        assert user.runs([run], setting.declarations) == []
        assert user.replays([replay]) == []
    allowed.update(dags)
    assert user.runs([run], setting.declarations) == [run]
    assert user.replays([replay]) == [replay]
    # A run that has only claimed its range is known by its streams.
    lake, claimed = Lake.at(setting.lake), RunId("0" * 32, 1, "joined")
    scope = Scope(lake.table("joined"), None, Region(Box.everything(EVENT)))
    claims.claim(lake, claimed, replay.stream, scope)
    for seen in (set(dags), set(dags) - {dags[2]}):
        allowed.intersection_update(seen)
        names = visit.Visit(None, setting, user).visible_runs()  # type: ignore[arg-type]
        assert (claimed.name in names) is (seen == set(dags))
    stranger: Any = SimpleNamespace(run="r", owner=("sold+../x", None))
    assert user.runs([stranger], setting.declarations) == []


def test_dags_of_such_replays_are_made(setting: Settings, place: Place) -> None:
    bag = place.bag()
    assert bag.import_errors == {}
    assert {"capstan_follow__joined", "capstan_backfill__hourly"} <= set(bag.dags)
