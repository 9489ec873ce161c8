"""Plans for jobs that others submit, and the results of these: names, refusals, waiting, events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Asset, TriggerRule, timezone
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from capstan.airflow import PlanOperator, ResultOperator, attempt_template
from capstan.airflow.assets import CAPTURED, REPLAYED
from capstan.airflow.tasks.attempt_name import attempt_name
from capstan.airflow.tasks.failures import TaskBrokenError, TaskRefusedError
from capstan.core.config import check_attempt
from capstan.storage.job_attempts import JobAttempt
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from conftest import Place

DONE = {
    "run": "t-1", "stream": "little", "cut": 1, "records": 32, "published": True, "target": "t",
    "target_path": "/t", "target_version": 1, "attempt": 1, "times": 1, "workers": ["a"],
    "since": None, "until": "2024-05-02", "frontier": [], "complete": True,
}  # fmt: skip
ERROR = {"error": "CAP-STREAM", "message": "there is no stream x", "hint": "see `capstan streams`"}


def attempt(place: Place, name: str = "a") -> JobAttempt:
    return JobAttempt(Lake.at(place.lake), name)


def operator(**more: Any) -> ResultOperator:
    actual = ResultOperator(task_id="result", **{"attempt": "a", **more})
    actual.upstream_task_ids.add("job")
    return actual


def instance(dag: str, run: str, index: int = -1) -> Any:
    return SimpleNamespace(dag_id=dag, run_id=run, map_index=index)


def test_a_name_is_of_a_task_in_a_run() -> None:
    run = "manual__2024-05-01T00:00:00+00:00"
    name = attempt_name(instance("shop", run), "group.plan")
    assert name.startswith("shop-group-plan-manual__2024-05-01T00-00-00-00-00-")
    others = [
        attempt_name(instance("shop", run), "plan"),
        attempt_name(instance("shop.group", run), "plan"),
        attempt_name(instance("shop", run.replace("+", "-")), "group.plan"),
        attempt_name(instance("shop", run, 0), "group.plan"),
        attempt_name(instance("shop", run, 1), "group.plan"),
        attempt_name(instance("läden", run), "plan"),
        attempt_name(instance("x" * 250, "r"), "plan"),
        attempt_name(instance("x" * 250, "s"), "plan"),
        attempt_name(instance("-", "-"), "-"),
    ]
    assert len({name, *others}) == 1 + len(others)
    for item in (name, *others):
        assert check_attempt(item) == item
    assert attempt_template('a"b') == '{{ macros.capstan.attempt_name(ti, "a\\"b") }}'


def test_the_result_of_a_job_is_that_of_the_task(place: Place, execute: Any, context: Any) -> None:
    attempt(place).end("replay", 0, DONE, None)
    where, task = context(), operator()
    where["ti"].states = {"job": "success"}
    assert task.trigger_rule == TriggerRule.ALL_DONE
    assert execute(task, where) == DONE
    assert task.shown.startswith("Certificate of t-1\n")
    assert (task.run_name, task.asset_name) == ("t-1", "capstan/tables/t")
    assert task.outlets == [REPLAYED]


def test_events_are_those_of_the_job(
    place: Place, execute: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.airflow.lake_queries.worker_labels", lambda *_: ["a", "b"])
    where = context()
    events = where["outlet_events"]
    attempt(place).end("replay", 0, DONE, None)
    mine = Asset("s3://shop/t")
    execute(operator(outlets=[mine, REPLAYED]), where)
    [(asset, extra)] = events[REPLAYED].added
    assert (asset.uri, extra["records"], events[mine].extra) == ("capstan://tables/t", 32, extra)
    captured = {"stream": "little", "cut": 3, "frontier": ["2024-05-01"], "records": 7}
    attempt(place).end("capture", 0, captured, None)
    execute(operator(), where)
    [(asset, extra)] = events[CAPTURED].added
    assert (asset.uri, extra["cut"]) == ("capstan://streams/little", 3)
    assert json.loads((place.lake / "labels.json").read_text("utf-8")) == {"little": ["a", "b"]}
    assert len(events[REPLAYED].added) == 1
    waits, where = operator(outlets=[mine]), context()
    attempt(place).end("replay", 0, {**DONE, "published": False}, None)
    execute(waits, where)
    assert waits.outlets == [] and where["outlet_events"] == {}


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_a_job_that_was_refused_fails_the_task_for_good(
    place: Place, execute: Any, context: Any, code: int
) -> None:
    attempt(place).end("replay", code, None, ERROR)
    where, task = context(), operator(patience=timedelta(hours=1))
    where["ti"].states = {"job": "failed"}
    with pytest.raises(TaskRefusedError) as refused:
        execute(task, where)
    assert str(refused.value) == "CAP-STREAM: there is no stream x (see `capstan streams`)"
    assert where["ti"].pushed["return_value"] == ERROR
    assert task.shown == ""


def test_a_job_that_broke_fails_the_task(place: Place, execute: Any, context: Any) -> None:
    attempt(place).end("replay", 5, None, ERROR)
    with pytest.raises(TaskBrokenError, match="^CAP-STREAM: "):
        execute(operator(), context())


def test_what_a_check_has_found_is_shown(place: Place, execute: Any, context: Any) -> None:
    audit = {"kind": "copy", "passed": False, "cells": 9, "differing": 2, "run": "t-1"}
    failed = {**ERROR, "error": "CAP-AUDIT"}
    attempt(place).end("audit", 1, {"audits": [audit], "passed": False}, failed)
    where, task = context(), operator()
    with pytest.raises(TaskRefusedError, match="^CAP-AUDIT: "):
        execute(task, where)
    assert "\nt-1 " in task.shown
    assert where["ti"].pushed["return_value"]["audits"] == [audit]


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ({"job": "failed"}, "job failed, and the job has left no result at "),
        ({"job": "upstream_failed"}, "job failed, and the job has left no result at "),
        ({"job": "success"}, "the job has left no result at "),
        ({}, "the job has left no result at "),
    ],
)
def test_a_job_that_left_nothing_is_refused(
    place: Place, execute: Any, context: Any, states: dict[str, str], told: str
) -> None:
    where = context()
    where["ti"].states = states
    with pytest.raises(TaskRefusedError) as refused:
        execute(operator(), where)
    assert str(refused.value).startswith(f"CAP-RESULT: {told}{place.lake}/jobs/a/result.json (")


def test_results_of_other_starts_are_not_taken(place: Place, execute: Any, context: Any) -> None:
    where = context()
    attempt(place).end("replay", 0, DONE, None)
    # The submitting task has failed after that: this may be of an earlier try of it.
    where["ti"].states = {"job": "failed", "job_1": "success"}
    with pytest.raises(TaskRefusedError, match="CAP-RESULT: job failed, so .* earlier start"):
        execute(operator(), where)
    # A mapped task looks at the one with its own index.
    where["ti"].map_index, where["ti"].states = 1, {"job_0": "failed", "job_1": "success"}
    assert execute(operator(), where) == DONE
    attempt(place, "b").prepare({})
    (place.lake / "jobs" / "a" / "result.json").rename(place.lake / "jobs" / "b" / "result.json")
    with pytest.raises(TaskRefusedError, match="CAP-RESULT: .* is of attempt a "):
        execute(operator(attempt="b"), context())
    (place.lake / "jobs" / "b" / "result.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TaskRefusedError, match="CAP-RESULT: .* is not the result of a job"):
        execute(operator(attempt="b"), context())


def test_the_result_of_a_skipped_job_is_skipped(place: Place, execute: Any, context: Any) -> None:
    where = context()
    where["ti"].states = {"job": "skipped"}
    with pytest.raises(AirflowSkipException):
        execute(operator(), where)


def test_a_job_that_nobody_waits_for_is_waited_for(
    place: Place, execute: Any, context: Any
) -> None:
    where, patient = context(), operator(patience=timedelta(hours=1), wait=timedelta(minutes=2))
    where["ti"].states = {"job": "success"}
    with pytest.raises(AirflowRescheduleException) as waits:
        execute(patient, where)
    left = waits.value.reschedule_date - timezone.utcnow()
    assert timedelta(seconds=90) < left <= timedelta(minutes=2)
    where["ti"].since = timezone.utcnow() - timedelta(minutes=61)
    with pytest.raises(TaskRefusedError, match="CAP-RESULT: the job has left no result"):
        execute(patient, where)
    attempt(place).end("replay", 0, DONE, None)
    assert execute(patient, where) == DONE


def test_a_name_is_checked(place: Place, execute: Any, context: Any) -> None:
    with pytest.raises(TaskRefusedError, match="^CAP-NAME: '../a' cannot name an attempt"):
        execute(operator(attempt="../a"), context())
    with pytest.raises(TaskRefusedError, match="^CAP-NAME: "):
        execute(PlanOperator(task_id="p", stream="little", target="t", attempt="/"), context())


def test_a_plan_puts_its_request_into_the_lake(taped: Place, execute: Any, context: Any) -> None:
    text = taped.streams.read_text("utf-8")
    taped.streams.write_text(text.replace("{lake}/source", "{here}/source"), encoding="utf-8")
    plan = PlanOperator(
        task_id="plan", stream="little", target="t", workers="a", until="2024-05-02", attempt="p"
    )
    attempt(taped, "p").end("replay", 0, DONE, None)
    try:
        result = execute(plan, context())
    finally:
        taped.streams.write_text(text, encoding="utf-8")
    assert result["attempt"] == "p"
    assert result["records"] == result["plan"]["records"] > 0
    prepared = attempt(taped, "p")
    request = json.loads(prepared.request() or "")
    # The task that will submit the job is not known.
    assert request == {**result["request"], "made_by": {"dag": "d", "dag_run": "r:1+0"}}
    assert (request["into"], request["workers"], request["as_of"]) == ("t", ["a"], 1)
    assert f'path: "{taped.root}/source"' in (prepared.declarations() or "")
    # What an earlier start has left does not pass for the result of this one.
    assert prepared.outcome() is None


_WITHOUT_SPARK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "delta", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from airflow.sdk.bases.operator import ExecutorSafeguard
from capstan.airflow import ResultOperator
from types import SimpleNamespace

def add(asset, extra):
    print(asset.uri, extra["records"])

class Events(dict):
    def __missing__(self, key):
        return SimpleNamespace(add=add)

task = ResultOperator(task_id="r", attempt="a")
ExecutorSafeguard.tracker.set(task)
print(task.execute({"ti": None, "outlet_events": Events()})["run"])
"""


def test_a_result_needs_no_pyspark(place: Place) -> None:
    attempt(place).end("replay", 0, DONE, None)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_SPARK],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": os.defpath},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["capstan://tables/t 32", "t-1"]
