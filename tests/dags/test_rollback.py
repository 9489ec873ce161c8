"""The DAG `capstan_rollback`: what it asks its job, and what it refuses before there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import DownstreamTasksSkipped
from airflow.sdk.types import TaskInstanceKey

from capstan.airflow.assets import table_asset
from capstan.airflow.documents import rollback_document
from capstan.airflow.tasks.failures import TaskRefusedError
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import Books

if TYPE_CHECKING:
    from conftest import Place

ALL = Region(Box((None,), (None,)))
RESULT = {
    "run": "t-0a0a0a0a-1", "stream": "little", "target": "t", "target_path": "/lake/tables/t",
    "workers": ["a"], "since": None, "until": "2024-05-02", "target_version": 4,
    "rolled_back": True, "unchanged": False,
}  # fmt: skip


@pytest.fixture
def ledgers(place: Place) -> Place:
    """Runs of table `t` that have published, one over the other, and one that has failed."""
    lake = Lake.at(place.lake)
    books = Books(lake, "little", lake.table("t"))
    books.published("t-0b0b0b0b-1", [0], ALL)
    books.published("t-0a0a0a0a-1", [0, 1], ALL)
    books.failed("t-0c0c0c0c-1", [2], ALL)
    books.published("t-0d0d0d0d-1", [3], ALL)
    books.rolled_back("t-0d0d0d0d-1", [3], ALL)
    return place


def test_one_job_takes_the_run_back_and_the_table_is_told(
    ledgers: Place, submit: Any, execute: Any, context: Any
) -> None:
    submit.answers({"exit": 0, "result": RESULT})
    dag = ledgers.bag().dags["capstan_rollback"]
    task = dag.get_task("rollback")
    reported: list[tuple[object, Any]] = []
    where = {**context(), "params": {"run": " t-0a0a0a0a-1 "}}
    task.request = execute(dag.get_task("plan"), where)
    [alias] = task.outlets
    where["outlet_events"][alias].add = lambda asset, extra: reported.append((asset, extra))
    assert execute(task, where) == RESULT
    assert [call["request"] for call in submit.calls] == [{"run": "t-0a0a0a0a-1"}]
    assert reported == [(table_asset("t"), RESULT)]
    assert "\ntarget       t: version 4 has the previous rows\n" in task.shown
    key = TaskInstanceKey("d", "rollback", "r")
    run, table = (link.get_link(task, ti_key=key) for link in task.operator_extra_links)
    assert run.endswith("/plugin/capstan/capstan/runs/t-0a0a0a0a-1")
    assert table.endswith("/assets?name_pattern=capstan%2Ftables%2Ft")


def test_what_was_taken_back_before_changes_no_table(
    ledgers: Place, submit: Any, execute: Any, context: Any
) -> None:
    submit.answers({"exit": 0, "result": {**RESULT, "unchanged": True}})
    task = ledgers.bag().dags["capstan_rollback"].get_task("rollback")
    task.request = {"run": "t-0d0d0d0d-1"}
    execute(task, context())
    assert task.outlets == []
    assert "nothing changed" in str(rollback_document({**RESULT, "unchanged": True}))


def test_what_was_taken_back_before_starts_no_spark(ledgers: Place, submit: Any) -> None:
    run = ledgers.run("capstan_rollback", {"run": "t-0d0d0d0d-1"})
    assert run.state == "success"
    states = {item.task_id: str(item.state) for item in run.get_task_instances()}
    assert states == {"plan": "success", "rollback": "skipped"}
    assert submit.calls == []


def test_a_refused_rollback_waits_for_no_slot(
    ledgers: Place, monkeypatch: pytest.MonkeyPatch, execute: Any, context: Any
) -> None:
    monkeypatch.setenv("CAPSTAN_POOL", "spark")
    dag = ledgers.bag().dags["capstan_rollback"]
    plan = dag.get_task("plan")
    assert (plan.pool, dag.get_task("rollback").pool) == ("default_pool", "spark")
    where = {**context(), "params": {"run": "t-0d0d0d0d-1"}}
    where["task"] = plan
    with pytest.raises(DownstreamTasksSkipped) as caught:
        execute(plan, where)
    assert caught.value.tasks == ["rollback"]
    left = where["ti"].pushed["return_value"]
    assert (left["run"], left["unchanged"]) == ("t-0d0d0d0d-1", True)
    assert "rolled back  already before, nothing changed" in plan.shown


REFUSED = {
    "none": "CAP-RUN",
    "../t-0a0a0a0a-1": "CAP-RUN",
    "t' OR 1=1": "CAP-RUN",
    "t-0c0c0c0c-1": "CAP-NOT-PUBLISHED",
    "t-0b0b0b0b-1": "CAP-LATER",
}


def test_what_cannot_be_taken_back_starts_no_spark(
    ledgers: Place, submit: Any, execute: Any, context: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    for run, code in REFUSED.items():
        task = ledgers.bag().dags["capstan_rollback"].get_task("plan")
        with pytest.raises(TaskRefusedError, match=f"^{code}: "):
            execute(task, {**context(), "params": {"run": run}})
    assert ledgers.run("capstan_rollback", {"run": "t-0b0b0b0b-1"}).state == "failed"
    assert "CAP-LATER: " in capfd.readouterr().out
    assert submit.calls == []
