"""DAGs over a real lake, with real Spark where one is needed; what needs none starts none."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from airflow.models.asset import AssetEvent
from airflow.models.xcom import XComModel
from airflow.sdk.exceptions import (
    AirflowRescheduleException,
    DownstreamTasksSkipped,
)
from airflow.utils.session import create_session
from sqlalchemy import select

from capstan.airflow.audit import ListAuditsOperator
from capstan.airflow.certify import CertificateOperator
from capstan.airflow.failing import TaskRefusedError
from capstan.airflow.frontier import FrontierSensor
from capstan.airflow.lineage import lineage
from capstan.airflow.plan import PlanReplayOperator
from capstan.airflow.resolving import foresee, pinned, read_request
from capstan.airflow.setting import Setting, read_setting
from capstan.ledger.identity import short_name
from capstan.ledger.regions import region_text
from capstan.tape.lake import Lake
from capstan.testing.streams import START
from capstan.verify.broken import known_violations

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Place

DAGS = Path(__file__).parents[2] / "dags"
DAY = timedelta(days=1)
HOURS = """
  hours:
    stream: little
    pipeline: places
    sink: hours
    target: place_hours
    since: 2024-05-01
    until: 2024-05-06
    schedule: "@daily"
"""
PAIRS = """
  pairs:
    stream: little
    pipeline: places
    sink: pairs
    target: pairs
    since: 2024-05-01
    follow: pairs
"""
FILLED = """
  filled: {stream: little, target: filled, since: 2024-05-01, until: 2024-05-05}
"""
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def setting(taped: Place) -> Setting:
    return read_setting(DAGS / "any.py")


def extra(uri: str) -> Any:
    with create_session() as session:
        events = select(AssetEvent).order_by(AssetEvent.id.desc())
        return next(event.extra for event in session.scalars(events) if event.uri == uri)


def xcom(run: Any, task: str, key: str = "return_value") -> Any:
    with create_session() as session:
        found = session.scalars(
            select(XComModel).where(
                XComModel.run_id == run.run_id, XComModel.task_id == task, XComModel.key == key
            )
        ).one()
        return XComModel.deserialize_value(found)


def test_a_capture_tells_the_frontier_and_the_labels(taped: Place) -> None:
    told = extra("capstan://streams/little")
    assert told["records"] + sum(told["late"].values()) == told["fed"] == 144
    assert told["frontier"] == ["2024-05-03T21:00:00.000000Z"]
    known = json.loads((taped.work / "workers.json").read_text(encoding="utf-8"))
    assert known == {"little": ["a", "b", "c"]}
    assert list(taped.work.rglob("result.json")) == []


def test_a_replay_by_hand(taped: Place) -> None:
    asked = {"into": "copied", "workers": ["a", "c"], "until": "2024-05-02"}
    first = taped.run("capstan_replay", asked)
    assert first.state == "success"
    certificate = xcom(first, "replay")
    assert certificate["records"] == 32
    assert certificate["audit"]["passed"]
    assert xcom(first, "certificate").startswith(f"## Certificate of {certificate['run']}\n")
    assert extra("capstan://tables/copied")["fingerprint"] == certificate["fingerprint"]
    found = lineage("replay", str(taped.lake), certificate)
    [tape], [table] = found.inputs, found.outputs
    assert tape.name == str(taped.lake / "streams" / "little" / "events")
    assert table.name == str(taped.lake / "tables" / "copied")
    assert table.outputFacets["outputStatistics"].rowCount == 32  # type: ignore[attr-defined]
    assert deltalake.DeltaTable(tape.name).to_pyarrow_dataset().count_rows() > 0
    names = ("Certificate", "Target", "Run")
    links = [xcom(first, "replay", f"_link_{name}Link") for name in names]
    assert links[0].endswith("/tasks/certificate/rendered_templates")
    assert links[1].endswith("/assets?name_pattern=capstan%2Ftables%2Fcopied")
    assert links[2].endswith(f"/plugin/capstan/capstan/runs/{certificate['run']}")


def test_a_day_is_backfilled_and_an_audit_tells_what_was_changed_since(taped: Place) -> None:
    # A run by hand has the interval that ends with its date.
    run = taped.run("capstan_backfill__by_day", date=datetime(2024, 5, 2, tzinfo=UTC))
    assert run.state == "success"
    assert xcom(run, "replay")["until"] == "2024-05-02T00:00:00.000000Z"
    assert extra("capstan://tables/by_day")["records"] == 48
    table = taped.lake / "tables" / "by_day"
    found = deltalake.DeltaTable(str(table)).to_pyarrow_table()
    assert sorted(found["seen"].to_pylist()) == [16, 16, 16]

    wrong = found.set_column(found.schema.get_field_index("seen"), "seen", pa.array([1, 16, 16]))
    deltalake.write_deltalake(str(table), wrong, mode="overwrite")
    refused = taped.run("capstan_audit", {"target": "by_day"})
    assert refused.state == "failed"
    answer = xcom(refused, "audit")
    assert answer["error"] == "CAP-AUDIT"
    [audit] = answer["audits"]
    assert audit["findings"][0]["kind"] == "changed"
    _, audited = lineage("audit", str(taped.lake), answer).inputs
    assert audited.name == str(table)
    assert audited.facets is not None
    [told] = audited.facets["dataQualityAssertions"].assertions  # type: ignore[attr-defined]
    assert (told.success, told.params) == (False, {"run": audit["run"]})


@pytest.mark.nightly
def test_what_is_missing_is_filled_by_a_run_for_each_interval(
    taped: Place, execute: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = tmp_path / "streams.yaml"
    declared.write_text(taped.streams.read_text(encoding="utf-8") + FILLED, encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_STREAMS", str(declared))
    asked = {"fill": True, "replays": ["filled"], "chunk": 1}
    filled = taped.run("capstan_gaps", asked)
    assert filled.state == "success"
    [backfill] = xcom(filled, "fill")["backfills"]
    became = [(run["since"][:10], run["records"], run["published"]) for run in backfill["runs"]]
    assert became == [("2024-05-01", 48, True), ("2024-05-02", 48, True)]
    found = deltalake.DeltaTable(str(taped.lake / "tables" / "filled")).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == list(range(96))
    assert extra("capstan://tables/filled")["run"] == backfill["runs"][-1]["run"]
    # And then there is nothing to fill.
    task, where = taped.bag().dags["capstan_gaps"].get_task("gaps"), context()
    where |= {"params": asked, "task": task}
    with pytest.raises(DownstreamTasksSkipped):
        execute(task, where)
    [told] = where["ti"].pushed["return_value"]["replays"]
    assert (told["counts"]["covered"], told["counts"]["gap"]) == (2, 0)


@pytest.mark.nightly
def test_a_recording_that_breaks_a_rule_fails_the_maintenance(
    taped: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(taped.lake, tmp_path / "lake")
    monkeypatch.setenv("CAPSTAN_LAKE", str(tmp_path / "lake"))
    lake = Lake.at(tmp_path / "lake")
    assert taped.run("capstan_maintain").state == "success"
    path = lake.stream("little").events
    events = deltalake.DeltaTable(path).to_pyarrow_table().sort_by("commit")
    last = events.slice(events.num_rows - 1).to_pylist()[0]
    stray = {**last, "kind": "progress", "seq": 99, "updates": [], "commit": last["commit"] + 1}
    stray |= dict.fromkeys(("time", "records", "fingerprint"))
    rows = pa.Table.from_pylist([stray], schema=events.schema)
    deltalake.write_deltalake(path, rows, mode="append")
    refused = taped.run("capstan_maintain", {"streams": ["little"]})
    assert refused.state == "failed"
    assert xcom(refused, "maintain")["error"] == "CAP-VIOLATION"
    assert [known.rule for known in known_violations(lake)] == ["seq"]


def fields(**more: object) -> dict[str, object]:
    return {"stream": "little", "into": "planned", **more}


def planner(setting: Setting, asked: dict[str, object]) -> PlanReplayOperator:
    return PlanReplayOperator(task_id="plan", setting=setting, asked=lambda _: asked)


class Store(dict[str, object]):
    """What a task keeps beyond its try."""

    def set(self, key: str, value: object) -> None:
        json.dumps(value)
        self[key] = value


def test_a_plan_pins_the_cut(setting: Setting, execute: Any, context: Any) -> None:
    task, where = planner(setting, fields(until="2024-05-02", dry_run=False, keys=[])), context()
    where["task_state_store"] = store = Store()
    found = execute(task, where)
    assert found["request"]["as_of"] == 1
    assert found["records"] == found["plan"]["records"] == 48
    assert task.plan.startswith("## Plan: little into planned\n")
    assert list(store.values()) == [found["request"]]
    assert read_request(found["request"]) == read_request(fields(until="2024-05-02", as_of=1))


def test_a_dry_run_ends_after_the_plan(setting: Setting, execute: Any, context: Any) -> None:
    where = context()
    task = planner(setting, fields(until="2030-01-01", dry_run=True))
    where["task"] = type("Task", (), {"get_flat_relative_ids": lambda *_, **__: {"b", "a"}})()
    with pytest.raises(DownstreamTasksSkipped) as caught:
        execute(task, where)
    assert caught.value.tasks == ["a", "b"]
    assert where["ti"].pushed["return_value"]["plan"]["complete"] is False


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"workers": ["a", "x"]}, "CAP-WORKER"),
        ({"workers": "a"}, "CAP-REQUEST"),
        ({"since": "2024-05-02", "until": "2024-05-01"}, "CAP-RANGE"),
        ({"since": "soon"}, "CAP-TIME"),
        ({"transform": "none_such"}, "CAP-TRANSFORM"),
        ({"pipeline": "none_such"}, "CAP-PIPELINE"),
        ({"pipeline": "places"}, "CAP-PIPELINE"),
        ({"pipeline": "places", "sink": "hours", "workers": ["a"]}, "CAP-WORKERS"),
        ({"transform": "by_day", "until": "2024-05-01T05:00:00Z"}, "CAP-GRAIN"),
        ({"as_of": 9}, "CAP-CUT"),
        ({"into": "../x"}, "CAP-NAME"),
        ({"stream": "none_such"}, "CAP-STREAM"),
        ({"mode": "merge"}, "CAP-KEYS"),
        ({"direct": True, "mode": "append"}, "CAP-DIRECT"),
        ({"untill": "2024-05-01"}, "CAP-REQUEST"),
        ({"until": "2024-05-09"}, "CAP-INCOMPLETE"),
    ],
)
def test_a_plan_refuses_what_cannot_be_meant(
    setting: Setting, more: dict[str, object], code: str, execute: Any, context: Any
) -> None:
    with pytest.raises(TaskRefusedError, match=f"^{code}: "):
        execute(planner(setting, fields(**more)), context())


def test_a_plan_waits_where_it_is_asked_to(setting: Setting, execute: Any, context: Any) -> None:
    with pytest.raises(AirflowRescheduleException):
        execute(planner(setting, fields(until="2024-05-09", wait=True)), context())
    where = context()
    where["ti"].since = datetime.now(UTC) - timedelta(days=8)
    with pytest.raises(TaskRefusedError, match="^CAP-INCOMPLETE: "):
        execute(planner(setting, fields(until="2024-05-09", wait=True)), where)
    found = execute(planner(setting, fields(until="2024-05-09", partial=True)), context())
    assert found["plan"]["complete"] is False


CLAIMS = pa.schema(
    [
        ("claim", pa.int64()),
        ("kind", pa.string()),
        ("run", pa.string()),
        ("attempt", pa.int32()),
        ("stream", pa.string()),
        ("target", pa.string()),
        ("workers", pa.list_(pa.int32())),
        ("region", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("expires", pa.timestamp("us", "UTC")),
    ]
)


def claim(setting: Setting, asked: dict[str, object]) -> None:
    """What an app leaves in the ledger that was killed after its claim."""
    plan = foresee(setting, read_request(asked)).plan
    now = datetime.now(UTC)
    row = {
        "claim": 0, "kind": "claim", "attempt": 1, "stream": "little", "target": plan.target,
        "run": f"{short_name(plan.target)}-{plan.identity[:8]}-1",
        "workers": sorted(plan.workers), "region": region_text(plan.scope.region),
        "at": now, "expires": now + DAY,
    }  # fmt: skip
    table = pa.Table.from_pylist([row], schema=CLAIMS)
    deltalake.write_deltalake(Lake.at(setting.lake).ledger("claims"), table, mode="append")


def test_a_cleared_run_goes_on_at_the_cut_that_still_holds_its_range(
    taped: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    execute: Any,
    context: Any,
) -> None:
    shutil.copytree(taped.lake, tmp_path / "lake")
    monkeypatch.setenv("CAPSTAN_LAKE", str(tmp_path / "lake"))
    setting, store = read_setting(DAGS / "any.py"), Store()
    asked = fields(until="2024-05-01T12:00:00Z")

    def planned() -> object:
        where = context()
        where["task_state_store"] = store
        return execute(planner(setting, asked), where)["request"]["as_of"]

    def begun_at(cut: int) -> None:
        """What a try has kept that began when the tape was shorter."""
        [(key, kept)] = store.items()
        store[key] = {**kept, "as_of": cut}  # type: ignore[dict-item]

    assert planned() == 1
    begun_at(0)
    assert planned() == 1
    begun_at(0)
    claim(setting, {**asked, "as_of": 0})
    assert planned() == 0
    asked["until"] = "2024-05-01T11:00:00Z"
    assert planned() == 1


def test_the_pinned_request_is_the_same_run(setting: Setting) -> None:
    asked = read_request(fields(until="2024-05-02"))
    found = foresee(setting, asked)
    assert foresee(setting, pinned(found)).plan.identity == found.plan.identity
    followed = read_request(fields(follow="nightly"))
    assert pinned(foresee(setting, followed)) == followed


def sensor(setting: Setting, asked: dict[str, object], **more: Any) -> FrontierSensor:
    return FrontierSensor(task_id="complete", setting=setting, asked=lambda _: asked, **more)


@pytest.mark.parametrize(
    ("more", "complete"),
    [
        ({"until": "2024-05-03"}, True),
        ({"until": "2024-05-03T21:00:00Z"}, True),
        ({"until": "2024-05-03T21:00:01Z"}, False),
        ({"until": "2024-05-04", "workers": ["a"]}, False),
        ({"stream": "later", "until": "2024-05-01"}, False),
    ],
)
def test_the_sensor_asks_the_frontier(
    taped: Place,
    more: dict[str, object],
    complete: bool,
    monkeypatch: pytest.MonkeyPatch,
    context: Any,
) -> None:
    text = taped.streams.read_text(encoding="utf-8").replace("replays:\n", "replays:\n")
    more_streams = taped.root / "more.yaml"
    head, rest = text.split("transforms:\n")
    body = head.split("  little:\n")[1]
    more_streams.write_text(f"{head}  later:\n{body}transforms:\n{rest}", encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_STREAMS", str(more_streams))
    setting = read_setting(DAGS / "any.py")
    assert sensor(setting, fields(**more)).poke(context()) is complete


def test_the_sensor_frees_its_slot_refuses_and_gives_up(
    setting: Setting, execute: Any, context: Any
) -> None:
    waiting = sensor(setting, fields(until="2024-05-09"), poke_interval=timedelta(minutes=3))
    assert waiting.reschedule
    where = context()
    with pytest.raises(AirflowRescheduleException):
        execute(waiting, where)
    where["ti"].since = datetime.now(UTC) - timedelta(days=8)
    with pytest.raises(
        TaskRefusedError, match="^CAP-INCOMPLETE: stream little: .* the frontier is at 2024-"
    ):
        execute(waiting, where)
    with pytest.raises(TaskRefusedError, match="CAP-WORKER"):
        execute(sensor(setting, fields(workers=["x"])), context())


@pytest.mark.parametrize(
    ("since", "until", "problem"),
    [
        (None, None, "this run has no data interval"),
        (START, START, "this run has no data interval"),
        (START - DAY, START, "is not inside the bounds of replay by_day"),
        (START + 5 * DAY, START + 6 * DAY, "is not inside the bounds of replay by_day"),
    ],
)
def test_an_interval_that_is_none_is_refused(
    taped: Place,
    since: datetime | None,
    until: datetime | None,
    problem: str,
    execute: Any,
    context: Any,
) -> None:
    task = taped.bag().dags["capstan_backfill__by_day"].get_task("plan")
    where = context()
    where |= {"data_interval_start": since, "data_interval_end": until, "params": {}}
    with pytest.raises(TaskRefusedError, match=f"CAP-INTERVAL: .*{problem}"):
        execute(task, where)


@pytest.mark.parametrize(
    ("since", "until", "asked"),
    [
        (START - DAY, START + DAY, ["2024-05-01T00:00:00+00:00", "2024-05-02T00:00:00+00:00"]),
        (
            START + 4 * DAY,
            START + 11 * DAY,
            ["2024-05-05T00:00:00+00:00", "2024-05-06T00:00:00+00:00"],
        ),
    ],
)
def test_an_interval_over_the_bounds_of_its_replay_is_cut_at_them(
    taped: Place, since: datetime, until: datetime, asked: list[str], context: Any
) -> None:
    """As a week is that begins before the first day that is declared, or ends after the last."""
    sensor = taped.bag().dags["capstan_backfill__by_day"].get_task("complete")
    where = context()
    where |= {"data_interval_start": since, "data_interval_end": until, "params": {}}
    request = sensor._asked(where)
    assert [request["since"], request["until"]] == asked


def test_a_backfill_takes_its_parameters(taped: Place, execute: Any, context: Any) -> None:
    task = taped.bag().dags["capstan_backfill__by_day"].get_task("plan")
    where = context()
    where |= {"data_interval_start": START, "data_interval_end": START + DAY}
    where["params"] = {"workers": ["b"], "direct": True, "adopt": True, "dry_run": False}
    with pytest.raises(DownstreamTasksSkipped) as caught:
        execute(task, where)
    # Nobody is to approve it.
    assert caught.value.tasks == ["approve", "publish"]
    request = where["ti"].pushed["request"]
    assert (request["workers"], request["direct"], request["adopt"]) == (["b"], True, True)
    assert (request["since"], request["transform"]) == ("2024-05-01T00:00:00+00:00", "by_day")


def test_a_backfill_through_a_pipeline_asks_for_it(
    taped: Place, execute: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = tmp_path / "streams.yaml"
    declared.write_text(taped.streams.read_text(encoding="utf-8") + HOURS, encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_STREAMS", str(declared))
    dag = taped.bag().dags["capstan_backfill__hours"]
    where = context()
    where |= {"data_interval_start": START, "data_interval_end": START + DAY, "params": {}}
    with pytest.raises(DownstreamTasksSkipped):
        execute(dag.get_task("plan"), where)
    request = where["ti"].pushed["request"]
    assert (request["pipeline"], request["sink"]) == ("places", "hours")
    assert (request["transform"], request["replay"]) == (None, "hours")


def test_a_replay_that_follows_goes_on_from_its_state(
    taped: Place, execute: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = tmp_path / "streams.yaml"
    declared.write_text(taped.streams.read_text(encoding="utf-8") + PAIRS, encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_STREAMS", str(declared))
    first = taped.run("capstan_follow__pairs", {"peers": 2})
    assert first.state == "success"
    certificate = xcom(first, "replay")
    state = certificate["pipeline"]["state"]
    assert (certificate["follow"], certificate["peers"], state["peers"]) == ("pairs", 2, 2)
    where = context()
    where["params"] = {"peers": 3}
    with pytest.raises(DownstreamTasksSkipped):
        execute(taped.bag().dags["capstan_follow__pairs"].get_task("plan"), where)
    request = where["ti"].pushed["request"]
    assert (request["follow"], request["peers"], request["as_of"]) == ("pairs", 3, None)
    assert (request["pipeline"], request["sink"], request["replay"]) == ("places", "pairs", "pairs")
    plan = where["ti"].pushed["plan"]
    assert (plan["peers"], plan["records"]) == (3, 0)
    assert plan["pipeline"]["resumed"] == state["snapshot"]


@pytest.fixture
def listed(setting: Setting, execute: Any, context: Any) -> Callable[..., list[Any]]:
    def found(**params: object) -> list[Any]:
        where = context()
        where["params"] = {"target": None, "runs": None, "newest": None, **params}
        answer = execute(ListAuditsOperator(task_id="plan", setting=setting), where)
        return list(answer["request"]["audits"])

    return found


@pytest.mark.nightly
def test_audits_are_of_what_stands(taped: Place, listed: Callable[..., list[Any]]) -> None:
    with pytest.raises(TaskRefusedError, match="CAP-TARGET: no replay has published into 'by_dya'"):
        listed(target="by_dya")
    first = taped.run("capstan_replay", {"into": "twice", "until": "2024-05-02"})
    later = {"into": "twice", "since": "2024-05-01T12:00:00Z", "until": "2024-05-03"}
    second = taped.run("capstan_replay", later)
    names = [xcom(run, "replay")["run"] for run in (second, first)]
    found = listed(target="twice")
    assert found == [{"run": names[0], "version": None}, {"run": names[1], "version": 1}]
    assert listed(target="twice", newest=1) == found[:1]
    assert listed(runs=[names[1]]) == found[1:]
    with pytest.raises(TaskRefusedError, match="CAP-RUN: run 'none' has published nothing"):
        listed(runs=["none"])


def test_a_certificate_needs_a_result(execute: Any, context: Any) -> None:
    with pytest.raises(TaskRefusedError, match="CAP-RESULT"):
        execute(CertificateOperator(task_id="certificate", result=None), context())
