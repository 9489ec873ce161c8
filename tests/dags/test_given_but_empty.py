"""Arguments that are given and empty: refused by every operator, left out by the form alone."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, Param

from capstan.airflow import (
    AuditOperator,
    BackfillOperator,
    CapstanTaskGroup,
    FrontierSensor,
    PlanOperator,
    ReplayOperator,
    ResultOperator,
    capstan_dags,
    check_declarations,
)
from capstan.airflow.dags.form import filled, replay_form
from capstan.airflow.lake_queries import plan_request
from capstan.airflow.settings import read_settings
from capstan.airflow.tasks.failures import TaskRefusedError
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from conftest import FakeSubmit, Place

NAMES = ("stream", "workers", "since", "until")
EMPTY = ("", " ", "None", None, [], "[]")
DAY = datetime.fromisoformat("2024-05-02")


def task(kind: str, name: str, template: object) -> Any:
    """A task of a kind with one templated argument."""
    given: dict[str, Any] = {"stream": "little", "until": "2024-05-02", name: template}
    with DAG("d", schedule=None, render_template_as_native_obj=True) as dag:
        if kind == "sensor":
            return FrontierSensor(task_id="t", **given)
        if kind == "replay":
            return ReplayOperator(task_id="t", target="t", **given)
        if kind == "plan":
            return PlanOperator(task_id="t", target="t", attempt="x", **given)
        CapstanTaskGroup("g", target="t", **given)
        return dag.get_task("g.plan")


@pytest.mark.parametrize("kind", ["sensor", "replay", "plan", "group"])
def test_no_argument_renders_to_nothing(
    taped: Place, submit: FakeSubmit, execute: Any, context: Any, kind: str
) -> None:
    for name in NAMES:
        for value in EMPTY:
            made = task(kind, name, "{{ params.value }}")
            with pytest.raises(TaskRefusedError, match=rf"^CAP-REQUEST: {name} renders to nothing"):
                made.render_template_fields({**context(), "params": {"value": value}})
            if value is not None:
                # As text in a DAG file.
                with pytest.raises(TaskRefusedError, match=rf"^CAP-[A-Z]+: .*\b{name}\b"):
                    execute(task(kind, name, value), context())
    assert submit.calls == []


def test_no_field_renders_to_nothing(taped: Place, context: Any) -> None:
    for name in ("transform", "as_of", "keys", "mode"):
        fields = {name: "{{ params.value }}"}
        with DAG("d", schedule=None):
            made = ReplayOperator(task_id="t", stream="little", target="t", fields=fields)
            filling = BackfillOperator(task_id="b", replay="by_day", fields=fields)
        for item in (made, filling):
            with pytest.raises(TaskRefusedError, match=f"{name} renders to nothing"):
                item.render_template_fields({**context(), "params": {"value": ""}})


def test_lake_and_declarations_render_to_something(taped: Place, context: Any) -> None:
    for name in ("lake", "config"):
        with DAG("d", schedule=None):
            made = ReplayOperator(
                task_id="t", stream="little", target="t", **{name: "{{ params.value }}"}
            )
        with pytest.raises(TaskRefusedError, match=f"{name} renders to nothing"):
            made.render_template_fields({**context(), "params": {"value": None}})


def test_settings_have_no_empty_place(taped: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ({"lake": ""}, {"lake": " "}, {"config": ""}):
        with pytest.raises(InvalidRequestError, match=f"{next(iter(given))} is empty"):
            read_settings(taped.root / "dags" / "any.py", **given)
    for variable in ("CAPSTAN_LAKE", "CAPSTAN_CONFIG"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "")
            with pytest.raises(InvalidRequestError, match=f"{variable} is empty"):
                read_settings(taped.root / "dags" / "any.py")


@pytest.mark.parametrize("name", ["config", "streams"])
def test_no_declaration_file_is_empty(
    taped: Place, submit: FakeSubmit, execute: Any, context: Any, name: str
) -> None:
    empty: dict[str, Any] = {name: ""}
    for made in (
        FrontierSensor(task_id="t", stream="little", **empty),
        ReplayOperator(task_id="t", stream="little", target="t", **empty),
        ResultOperator(task_id="t", attempt="x", **empty),
    ):
        with pytest.raises(TaskRefusedError, match="^CAP-REQUEST: config is empty"):
            execute(made, context())
    dag_file = taped.root / "dags" / "any.py"
    for declare in (capstan_dags, check_declarations):
        with pytest.raises(InvalidRequestError, match="config is empty"):
            declare(dag_file, **empty)
    with DAG("d", schedule=None) as dag:
        CapstanTaskGroup("g", target="t", stream="little", **empty)
    with pytest.raises(TaskRefusedError, match="^CAP-REQUEST: config is empty"):
        execute(dag.get_task("g.plan"), context())
    assert submit.calls == []


def test_other_operators_refuse_what_is_empty(
    taped: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    for made, name in (
        (BackfillOperator(task_id="t", replay="by_day", since=""), "since"),
        (BackfillOperator(task_id="t", replay="by_day", until=" "), "until"),
        (BackfillOperator(task_id="t", replay=""), "replay"),
        (BackfillOperator(task_id="t", replay="by_day", fields={"every": ""}), "every"),
        (AuditOperator(task_id="t", runs=""), "runs"),
        (AuditOperator(task_id="t", runs=[]), "runs"),
        (AuditOperator(task_id="t", stream="little", table=""), "table"),
        (AuditOperator(task_id="t"), "stream"),
        (FrontierSensor(task_id="t", stream=[]), "stream"),
        (FrontierSensor(task_id="t", stream=["little", ""]), "stream"),
        (FrontierSensor(task_id="t", stream="little", replay=""), "replay"),
    ):
        with pytest.raises(TaskRefusedError, match=rf"\b{name}\b"):
            execute(made, context())
    assert submit.calls == []


def test_times_and_texts_of_names_are_taken(taped: Place, execute: Any, context: Any) -> None:
    for workers in ("a,b", ["a", "b"], ("a", "b")):
        made = PlanOperator(
            task_id="t", stream="little", target="t", attempt="x", workers=workers, until=DAY,
            since=DAY.replace(day=1).date(),
        )  # fmt: skip
        request = execute(made, context())["request"]
        assert request["workers"] == ["a", "b"]
        assert (request["since"], request["until"]) == ("2024-05-01", "2024-05-02T00:00:00")


def test_requests_of_jobs_have_times_as_text(
    taped: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    submit.answers({"exit": 0, "result": {}}, {"exit": 0, "result": {}})
    execute(BackfillOperator(task_id="t", replay="by_day", since=DAY), context())
    audited = AuditOperator(
        task_id="a", stream="little", table="t", fields={"until": DAY, "workers": "a,b"}
    )
    execute(audited, context())
    filled_gaps, compared = (call["request"] for call in submit.calls)
    assert filled_gaps == {"replay": "by_day", "since": "2024-05-02T00:00:00", "until": None}
    assert compared == {"stream": "little", "table": "t", "until": "2024-05-02T00:00:00",
                        "workers": ["a", "b"]}  # fmt: skip


def test_a_blank_field_of_the_form_is_not_given(taped: Place) -> None:
    setting = read_settings(taped.root / "dags" / "any.py")
    blank = dict.fromkeys(replay_form(setting))
    requested = filled({**blank, "stream": "little", "into": "t", "workers": [], "until": ""})
    assert requested == {"stream": "little", "into": "t"}
    plan = plan_request(setting, requested)
    assert plan is not None
    assert plan.request.until is None


@pytest.mark.parametrize(("name", "value"), [("until", ""), ("workers", []), ("keys", []),
                                             ("follow", "")])  # fmt: skip
def test_rest_gives_no_empty_field(taped: Place, name: str, value: object) -> None:
    """Airflow's form sends null for a blank field."""
    form = replay_form(read_settings(taped.root / "dags" / "any.py"))
    param = form[name]
    assert isinstance(param, Param)
    assert param.resolve(None) is None
    with pytest.raises(Exception, match=r"too short|non-empty"):
        param.resolve(value)
