"""What tasks do that start no Spark, over a tape as a capture leaves it; see `test_jobs`."""

from __future__ import annotations

import copy
import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowRescheduleException, DownstreamTasksSkipped
from airflow.sdk.types import TaskInstanceKey

from capstan.airflow import CapstanTaskGroup, PlanOperator
from capstan.airflow.dags.audit import ListAuditsOperator
from capstan.airflow.lake_queries import preview_request, read_request
from capstan.airflow.operators.approve import ApproveOperator
from capstan.airflow.operators.frontier_sensor import FrontierSensor
from capstan.airflow.operators.plan import PlanReplayOperator
from capstan.airflow.operators.replay import CertificateOperator
from capstan.airflow.settings import Settings, read_settings
from capstan.airflow.tasks.failures import TaskRefusedError
from capstan.airflow.tasks.links import CertificateLink, page
from capstan.replay.planning.plan import request_at_cuts
from capstan.storage.lake import Lake
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.run_identity import short_name
from tests.support.sample_streams import START

if TYPE_CHECKING:
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


@pytest.fixture
def setting(taped: Place) -> Settings:
    return read_settings(DAGS / "any.py")


def fields(**more: object) -> dict[str, object]:
    return {"stream": "little", "into": "planned", **more}


def planner(setting: Settings, asked: dict[str, object]) -> PlanReplayOperator:
    return PlanReplayOperator(task_id="plan", settings=setting, fields=lambda _: asked)


class Store(dict[str, object]):
    """What a task keeps beyond its try."""

    def set(self, key: str, value: object) -> None:
        json.dumps(value)
        self[key] = value


def test_a_plan_pins_the_cut(setting: Settings, execute: Any, context: Any) -> None:
    task, where = planner(setting, fields(until="2024-05-02", dry_run=False, keys=[])), context()
    where["task_state_store"] = store = Store()
    actual = execute(task, where)
    assert actual["request"]["as_of"] == 1
    assert actual["records"] == actual["plan"]["records"] == 48
    assert task.plan.startswith("Plan: little into planned\n")
    assert list(store.values()) == [actual["request"]]
    assert read_request(actual["request"]) == read_request(fields(until="2024-05-02", as_of=1))


def test_a_dry_run_ends_after_the_plan(setting: Settings, execute: Any, context: Any) -> None:
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
        ({"workers": 5}, "CAP-REQUEST"),
        ({"workers": "a,x"}, "CAP-WORKER"),
        ({"workers": ""}, "CAP-REQUEST"),
        ({"until": ""}, "CAP-REQUEST"),
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
        ({"untill": "2024-05-01"}, "CAP-REQUEST"),
        ({"until": "2024-05-09"}, "CAP-INCOMPLETE"),
    ],
)
def test_a_plan_refuses_what_cannot_be_meant(
    setting: Settings, more: dict[str, object], code: str, execute: Any, context: Any
) -> None:
    with pytest.raises(TaskRefusedError, match=f"^{code}: "):
        execute(planner(setting, fields(**more)), context())


SOME = """
  some:
    {stream: little, target: some, workers: [a, "1"], since: 2024-05-01, until: 2024-05-03}
"""


@pytest.fixture
def declared(taped: Place, tmp_path: Path) -> Settings:
    """Declarations with a replay of workers `a` and `b`, the second by its number."""
    streams = tmp_path / "streams.yaml"
    text = taped.streams.read_text(encoding="utf-8") + SOME.lstrip("\n")
    streams.write_text(text, encoding="utf-8")
    return read_settings(DAGS / "any.py", config=streams)


def test_a_declared_replay_is_played_in_part_or_whole(
    declared: Settings, execute: Any, context: Any
) -> None:
    plan = execute(planner(declared, {"replay": "some"}), context())["plan"]
    assert (plan["workers"], plan["target"]) == (["a", "b"], "some")
    assert (plan["since"][:10], plan["until"][:10]) == ("2024-05-01", "2024-05-03")
    part = {"replay": "some", "workers": ["1"], "since": "2024-05-02T05:00:00Z"}
    plan = execute(planner(declared, part), context())["plan"]
    assert (plan["workers"], plan["since"][:13]) == (["b"], "2024-05-02T05")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"workers": ["c"]}, "has workers a, 1, not c"),
        ({"workers": ["a", "2"]}, "has workers a, 1, not c"),
        ({"since": "2024-04-30"}, "has since 2024-05-01T00:00:00+00:00, not 2024-04-30"),
        ({"until": "2024-05-03T01:00Z"}, "has until 2024-05-03T00:00:00+00:00, not 2024-05-03T01"),
        (
            {"since": "2024-04-30", "until": "2024-05-04"},
            "has times 2024-05-01T00:00:00+00:00 to 2024-05-03T00:00:00+00:00, not 2024-04-30 to",
        ),
        ({"into": "other"}, "has into some, not other"),
    ],
)
def test_a_declared_replay_binds_workers_times_and_target(
    declared: Settings, more: dict[str, object], said: str, execute: Any, context: Any
) -> None:
    asked = {"replay": "some", "partial": True, **more}
    with pytest.raises(TaskRefusedError, match=f"^CAP-REQUEST: replay some {re.escape(said)}"):
        execute(planner(declared, asked), context())


def test_a_form_names_no_target_outside_of_the_roots(
    setting: Settings, tmp_path: Path, execute: Any, context: Any
) -> None:
    roots = replace(setting.declarations, roots=(str(tmp_path),))
    other = replace(setting, declarations=roots)
    for given, into in ((setting, "/etc/x"), (setting, f"{tmp_path}/x"), (other, "planned")):
        with pytest.raises(TaskRefusedError, match="^CAP-ROOT: .*targets.roots"):
            execute(planner(given, fields(into=into, until="2024-05-02")), context())
    request = execute(planner(other, fields(into=f"{tmp_path}/x", until="2024-05-02")), context())
    assert request["request"]["into"] == f"{tmp_path}/x"
    audit = {"stream": "little", "target": "/etc/x", "runs": None}
    with pytest.raises(TaskRefusedError, match="^CAP-ROOT: "):
        where = {**context(), "params": audit}
        execute(ListAuditsOperator(task_id="plan", settings=setting), where)


@pytest.mark.parametrize("kind", ["operator", "group"])
def test_a_template_over_parameters_names_no_target_outside_of_the_roots(
    taped: Place, kind: str, tmp_path: Path, execute: Any, context: Any
) -> None:
    def plan(target: str) -> Any:
        with DAG("theirs", schedule=None):
            given = {"stream": "little", "target": target, "since": "{{ params.since }}"}
            if kind == "operator":
                task: Any = PlanOperator(task_id="plan", attempt="a", **given)
            else:
                group = CapstanTaskGroup("g", until="2024-05-02", **given)  # type: ignore[arg-type]
                task = group.children["g.plan"]
        where = context()
        where["params"] = {"into": f"{tmp_path}/x", "since": "2024-05-01"}
        task.render_template_fields({**where, "dag_run": SimpleNamespace(conf=where["params"])})
        return execute(task, where)["request"]["into"]

    for template in ("{{ params.into }}", "{{ dag_run.conf['into'] }}"):
        with pytest.raises(TaskRefusedError, match="^CAP-ROOT: "):
            plan(template)
    # What the DAG itself names is free.
    for own in (f"{tmp_path}/x", f"{{{{ '{tmp_path}' }}}}/x"):
        if kind == "operator":
            assert plan(own) == f"{tmp_path}/x"
            continue
        with pytest.raises(DownstreamTasksSkipped):
            plan(own)


def test_a_plan_waits_where_it_is_asked_to(setting: Settings, execute: Any, context: Any) -> None:
    with pytest.raises(AirflowRescheduleException):
        execute(planner(setting, fields(until="2024-05-09", wait=True)), context())
    where = context()
    where["ti"].since = datetime.now(UTC) - timedelta(days=8)
    with pytest.raises(TaskRefusedError, match="^CAP-INCOMPLETE: "):
        execute(planner(setting, fields(until="2024-05-09", wait=True)), where)
    actual = execute(planner(setting, fields(until="2024-05-09", partial=True)), context())
    assert actual["plan"]["complete"] is False


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


def claim(setting: Settings, asked: dict[str, object]) -> None:
    """What a job leaves in the ledger that was killed after its claim."""
    plan = preview_request(setting, read_request(asked)).plan
    now = datetime.now(UTC)
    row = {
        "claim": 0, "kind": "claim", "attempt": 1, "stream": "little", "target": plan.target,
        "run": f"{short_name(plan.target)}-{plan.identity[:8]}-1",
        "workers": sorted(plan.inputs.workers), "region": region_text(plan.scope.region),
        "at": now, "expires": now + DAY,
    }  # fmt: skip
    table = pa.Table.from_pylist([row], schema=CLAIMS)
    deltalake.write_deltalake(Lake.at(setting.lake).ledger("claims"), table, mode="append")


def test_a_cleared_run_resumes_at_its_locked_cut(
    taped: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, execute: Any, context: Any
) -> None:
    shutil.copytree(taped.lake, tmp_path / "lake")
    monkeypatch.setenv("CAPSTAN_LAKE", str(tmp_path / "lake"))
    setting, store = read_settings(DAGS / "any.py"), Store()
    requested = fields(until="2024-05-01T12:00:00Z")

    def planned() -> object:
        where = context()
        where["task_state_store"] = store
        return execute(planner(setting, requested), where)["request"]["as_of"]

    def begun_at(cut: int) -> None:
        """What a try has kept that began when the tape was shorter."""
        [(key, kept)] = store.items()
        store[key] = {**kept, "as_of": cut}  # type: ignore[dict-item]

    assert planned() == 1
    begun_at(0)
    assert planned() == 1
    begun_at(0)
    claim(setting, {**requested, "as_of": 0})
    assert planned() == 0
    requested["until"] = "2024-05-01T11:00:00Z"
    assert planned() == 1


def test_the_pinned_request_is_the_same_run(setting: Settings) -> None:
    requested = read_request(fields(until="2024-05-02"))
    actual = preview_request(setting, requested)
    assert (
        preview_request(setting, request_at_cuts(actual.plan)).plan.identity == actual.plan.identity
    )
    followed = read_request(fields(follow="nightly"))
    assert request_at_cuts(preview_request(setting, followed).plan) == followed


def sensor(setting: Settings, asked: dict[str, object], **more: Any) -> FrontierSensor:
    return FrontierSensor(task_id="complete", settings=setting, fields=lambda _: asked, **more)


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
    monkeypatch.setenv("CAPSTAN_CONFIG", str(more_streams))
    setting = read_settings(DAGS / "any.py")
    assert sensor(setting, fields(**more)).poke(context()) is complete


def test_the_sensor_frees_its_slot_refuses_and_gives_up(
    setting: Settings, execute: Any, context: Any
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
        (START - DAY, START, "is outside the bounds of replay by_day"),
        (START + 5 * DAY, START + 6 * DAY, "is outside the bounds of replay by_day"),
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
def test_intervals_are_clipped_to_their_replay_s_bounds(
    taped: Place, since: datetime, until: datetime, asked: list[str], context: Any
) -> None:
    """As a week is that begins before the first day that is declared, or ends after the last."""
    sensor = taped.bag().dags["capstan_backfill__by_day"].get_task("complete")
    where = context()
    where |= {"data_interval_start": since, "data_interval_end": until, "params": {}}
    request = sensor._fields(where)
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
    assert (request["workers"], request["direct"], request["adopt"]) == (["b"], False, True)
    assert (request["since"], request["transform"]) == ("2024-05-01T00:00:00+00:00", "by_day")


def test_a_backfill_through_a_pipeline_asks_for_it(
    taped: Place, execute: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = tmp_path / "streams.yaml"
    declared.write_text(taped.streams.read_text(encoding="utf-8") + HOURS, encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_CONFIG", str(declared))
    dag = taped.bag().dags["capstan_backfill__hours"]
    where = context()
    where |= {"data_interval_start": START, "data_interval_end": START + DAY, "params": {}}
    with pytest.raises(DownstreamTasksSkipped):
        execute(dag.get_task("plan"), where)
    request = where["ti"].pushed["request"]
    assert (request["pipeline"], request["sink"]) == ("places", "hours")
    assert (request["transform"], request["replay"]) == (None, "hours")


def test_a_certificate_needs_a_result(execute: Any, context: Any) -> None:
    with pytest.raises(TaskRefusedError, match="CAP-RESULT"):
        execute(CertificateOperator(task_id="certificate", result=None), context())


@pytest.mark.parametrize(
    ("task", "certificate"),
    [("replay", "certificate"), ("nightly.eu.replay", "nightly.eu.certificate")],
)
def test_the_certificate_of_a_task_is_that_of_its_group(task: str, certificate: str) -> None:
    key = TaskInstanceKey("d", task, "r")
    link = CertificateLink().get_link(BaseOperator(task_id="replay"), ti_key=key)
    assert link.endswith(f"/dags/d/runs/r/tasks/{certificate}/rendered_templates")


def links(task: Any) -> dict[str, str]:
    """Where the links of a task lead, below the address of Airflow."""
    key = TaskInstanceKey("d", f"g.{task.task_id}", "r:1+0")
    found = {link.name: link.get_link(task, ti_key=key) for link in task.operator_extra_links}
    return {name: href.removeprefix(page("")) for name, href in found.items()}


def test_each_task_of_a_replay_leads_to_the_others_and_to_its_run(
    taped: Place, setting: Settings, execute: Any, context: Any
) -> None:
    tasks = taped.bag().dags["capstan_replay"].task_dict
    at, runs = "dags/d/runs/r%3A1%2B0/tasks/g.", "plugin/capstan/capstan/runs"
    plan, table = f"{at}plan/rendered_templates", "assets?name_pattern=capstan%2Ftables%2Fplanned"
    certificate = {"Certificate": f"{at}certificate/rendered_templates"}
    approval = f"{at}approve/required_actions"
    planned = planner(setting, fields(until="2024-05-02", dry_run=False, keys=[]))
    execute(planned, context())
    assert links(planned) == {"Plan": plan, **certificate, "Target": table}

    replayed = tasks["replay"]
    usual = {"Run": runs, "Plan": plan, **certificate, "Target": "assets"}
    assert links(replayed) == {**usual, "Approval": ""}
    waits = {"run": "t-1234-1", "stream": "little", "target": "planned", "published": False}
    replayed.take(context(), waits)
    own = {"Run": f"{runs}/t-1234-1", "Plan": plan}
    assert links(replayed) == {**usual, **own, "Approval": approval}
    replayed = copy.copy(tasks["publish"])
    replayed.take_failure(context(), 1, {"error": "CAP-REJECTED", "run": "t-1234-1"})
    assert links(replayed) == {**usual, **own, "Approval": approval}

    approve = ApproveOperator(task_id="approve", result=waits)
    approve._waiting()
    assert links(approve) == {**own, **certificate}
    shown = CertificateOperator(task_id="certificate", result=waits, render=str)
    execute(shown, context())
    assert links(shown) == own
