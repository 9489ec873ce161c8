"""Approval by a person, and who is told of failures; over a `spark-submit` that starts nothing."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from airflow.models.asset import AssetEvent
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.providers.standard.operators import hitl
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped, TaskAwaitingInput
from airflow.triggers.base import TriggerEvent
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from capstan.airflow.assets import table_asset
from capstan.airflow.dags.notifications import on_failure
from capstan.airflow.operators.approve import ApproveOperator
from capstan.airflow.operators.jobs import CaptureOperator
from capstan.airflow.operators.plan import PlanReplayOperator
from capstan.airflow.operators.replay import (
    CertificateOperator,
    PublishOperator,
    SubmitReplayOperator,
)
from capstan.airflow.settings import read_settings
from capstan.airflow.tasks.failures import TaskRefusedError, failure, log_error_last
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake
from capstan.storage.ledger.runs import Step, read_history
from tests.support.jvmless_lake import FIRST, Books, lay_tape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from conftest import FakeSubmit, Place

DAGS = Path(__file__).parents[2] / "dags"
HOUR = 3_600_000_000
WAITS: dict[str, object] = {
    "run": "t-1234-1",
    "stream": "little",
    "cut": 0,
    "target": "t",
    "published": False,
    "unchanged": False,
    "staging": "/lake/staging/t-1234-1-1",
    "audit": {
        "kind": "copy", "passed": True, "cells": 7, "differing": 0,
        "checks": [{"name": "paid", "rule": "amount >= 0", "failing": 0}],
    },
    "diff": {
        "added": 3, "removed": 2, "changed": 1, "cells": 7, "differing": 2, "new_columns": [],
        "sample": [
            {"kind": "changed", "worker": 0, "time": "2024-05-01", "before": {"note": "a|b"},
             "after": {"note": "c"}},
        ],
    },
}  # fmt: skip
DONE = {**WAITS, "published": True, "target_version": 3, "target_path": "/lake/tables/t"}
REJECTED = {"error": "CAP-REJECTED", "message": "run t-1234-1 was rejected by ann", "hint": ""}


@pytest.fixture
def tape(place: Place) -> Place:
    """A place with a tape of `little`: two days of it are complete."""
    lake = Lake.at(place.lake)
    lay_tape(
        lake, "little", ["a", "b"], [(FIRST + n * HOUR,) for n in range(50)], (FIRST + 48 * HOUR,)
    )
    place_ = pa.struct([("event", pa.timestamp("us", "UTC"))])
    payload = [("worker", pa.int32()), ("batch", pa.int64()), ("time", place_)]
    deltalake.DeltaTable.create(lake.stream("little").records, pa.schema(payload))
    late = pa.schema([*payload, ("reason", pa.string())])
    deltalake.DeltaTable.create(lake.stream("little").late, late)
    return place


def approver(result: object) -> ApproveOperator:
    return ApproveOperator(task_id="approve", result=result)


def answer(choice: str, reason: str = "", user: object = None) -> dict[str, Any]:
    """What Airflow hands on of a person's decision."""
    return {
        "chosen_options": [choice],
        "params_input": {"reason": reason},
        "responded_at": datetime(2024, 5, 9, 8, 7, 6, tzinfo=UTC),
        "responded_by_user": user,
    }


@pytest.mark.parametrize("result", [{**WAITS, "published": True}, {**WAITS, "unchanged": True}, {}])
def test_nobody_is_asked_when_no_run_waits(result: object, execute: Any, context: Any) -> None:
    with pytest.raises(AirflowSkipException):
        execute(approver(result), context())


def test_without_a_result_nobody_is_asked(execute: Any, context: Any) -> None:
    with pytest.raises(TaskRefusedError, match="CAP-RESULT"):
        execute(approver(None), context())


def test_a_person_is_shown_certificate_checks_and_differences(
    monkeypatch: pytest.MonkeyPatch, execute: Any, context: Any
) -> None:
    requested: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **told: requested.update(told))
    where = context()
    where["task_instance"] = type("Instance", (), {"id": "7"})()
    with pytest.raises(TaskAwaitingInput) as caught:
        execute(approver(WAITS), where)
    assert caught.value.timeout is None
    assert requested["options"] == ["Approve", "Reject"]
    assert requested["subject"] == "Publish t-1234-1 into t?"
    assert requested["params"]["reason"]["schema"]["type"] == ["string", "null"]
    lines = requested["body"].splitlines()
    assert lines[0] == "## Certificate of t-1234-1"
    for line in (
        "| audit | passed (copy, 7 cells) |",
        "| checks | paid (amount >= 0): met by all rows |",
        "| rows added | 3 |",
        "| rows removed | 2 |",
        "| rows changed | 1 |",
        "| cells | 2 of 7 change |",
        r"| changed | 0 | 2024-05-01 | note=a\|b | note=c |",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("choice", "user", "by"),
    [
        ("Approve", {"id": "3", "name": "ann"}, "ann"),
        ("Reject", {"id": "3", "name": ""}, "3"),
        ("Reject", None, "nobody, in time"),
    ],
)
def test_a_decision_is_the_request_of_the_publish(
    choice: str, user: object, by: str, context: Any
) -> None:
    actual = approver(WAITS).execute_complete(context(), answer(choice, "so it is", user))
    assert actual == {
        "run": "t-1234-1", "approved": choice == "Approve", "by": by,
        "at": "2024-05-09T08:07:06+00:00", "reason": "so it is",
    }  # fmt: skip


@pytest.mark.parametrize("user", [{"id": "ann", "name": ""}, {"id": "3", "name": "ann"}])
def test_who_triggered_a_run_may_not_approve_it_where_others_have_to(
    user: Mapping[str, str], execute: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **_: None)
    run = SimpleNamespace(triggering_user_name="ann")
    where = {**context(), "dag_run": run, "task_instance": SimpleNamespace(id="7")}
    task = ApproveOperator(task_id="approve", result=WAITS, others=True)
    with pytest.raises(TaskAwaitingInput):
        execute(task, where)
    assert task.body.endswith("\n\nSomebody other than ann has to approve.")
    with pytest.raises(TaskRefusedError, match="^CAP-APPROVER: ann triggered this run, "):
        task.execute_complete(where, answer("Approve", "", user))
    assert task.execute_complete(where, answer("Reject", "", user))["approved"] is False
    other = answer("Approve", "", {"id": "4", "name": "bea"})
    assert task.execute_complete(where, other)["by"] == "bea"
    # One that the scheduler has started is nobody's.
    run.triggering_user_name = None
    assert task.execute_complete(where, answer("Approve", "", user))["approved"] is True


@pytest.mark.parametrize(("declared", "others"), [("true", False), ("others", True)])
def test_the_plan_says_whether_others_have_to_approve(
    declared: str, others: bool, tape: Place, execute: Any, context: Any
) -> None:
    with tape.streams.open("a", encoding="utf-8") as file:
        for name, approve in (("one", "true"), ("two", declared)):
            file.write(f"  {name}: {{stream: little, target: t, approve: {approve}}}\n")
    asked = {"stream": "little", "into": "t", "until": "2024-05-02", "workers": ["a"]}
    result = execute(planned(asked), context())
    assert (result["request"]["approve"], result["others"]) == (True, others)


def publisher(kind: type[SubmitReplayOperator], **more: Any) -> SubmitReplayOperator:
    setting = read_settings(DAGS / "any.py")
    return kind(task_id="t", settings=setting, request={}, outlets=[table_asset("t")], **more)


def test_a_waiting_run_emits_no_asset_event(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    submit.answers({"exit": 0, "result": WAITS}, {"exit": 0, "result": DONE})
    held, where = publisher(SubmitReplayOperator), context()
    assert execute(held, where)["published"] is False
    assert held.outlets == []
    assert where["outlet_events"] == {}
    done, where = publisher(SubmitReplayOperator), context()
    execute(done, where)
    assert done.outlets == [table_asset("t")]
    assert where["outlet_events"][table_asset("t")].extra["run"] == "t-1234-1"


@pytest.mark.parametrize(("since", "told"), [(1, True), (-3600, False), (None, False)])
def test_a_replay_that_stood_emits_an_event_only_for_a_try_that_did_not(
    place: Place, submit: FakeSubmit, since: int | None, told: bool, execute: Any, context: Any
) -> None:
    run = "t-1a1a1a1a-1"
    lake = Lake.at(place.lake)
    books = Books(lake, "little", lake.table("t"))
    books.published(run, [0], Region(Box((0,), (1,))))
    submit.answers({"exit": 0, "result": {**DONE, "run": run, "unchanged": True}})
    task, where = publisher(SubmitReplayOperator), context()
    if since is not None:
        begun = read_history(lake, run).last.at - timedelta(seconds=since)
        where["dag_run"] = SimpleNamespace(start_date=begun)
    execute(task, where)
    assert task.outlets == ([table_asset("t")] if told else [])
    assert (table_asset("t") in where["outlet_events"]) is told
    # Its links lead to the run and to the table nevertheless.
    assert (task.run_name, task.asset_name) == (run, "capstan/tables/t")


def test_a_publish_says_who_approved_and_a_rejection_is_final(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    approval = {"by": "ann", "at": "2024", "reason": ""}
    submit.answers(
        {"exit": 0, "result": {**DONE, "approval": approval}}, {"exit": 1, "result": REJECTED}
    )
    where = context()
    execute(publisher(PublishOperator), where)
    assert where["outlet_events"][table_asset("t")].extra["approval"] == approval
    where = context()
    with pytest.raises(TaskRefusedError, match="^CAP-REJECTED: run t-1234-1 was rejected by ann"):
        execute(publisher(PublishOperator), where)
    assert where["outlet_events"] == {}
    jobs = [Path(word).name for call in submit.calls for word in call["arguments"]  # type: ignore[attr-defined]
            if word.endswith("publish.py")]  # fmt: skip
    assert jobs == ["publish.py"] * 2


def waits_for_a_person(lake: Lake, run: str, identity: str) -> None:
    """The steps of a run that is staged and audited."""
    books = Books(lake, "little", lake.table("t"))
    books.claimed(run, [0], Region(Box((0,), (1,))))
    books.stepped(run, "intent", {}, identity=identity)
    staged = {"staging": f"{lake.root}/staging/{run}-1"}
    books.stepped(run, "audited", staged, identity=identity)


def test_a_rejection_starts_no_spark(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    lake = Lake.at(place.lake)
    run = "t-1a1a1a1a-1"
    waits_for_a_person(lake, run, "1a1a1a1a")
    decision = {"run": run, "approved": False, "by": "ann", "at": "2024", "reason": "too many"}
    for _ in range(2):
        where, task = context(), publisher(PublishOperator)
        task.request = decision
        with pytest.raises(TaskRefusedError, match=f"^CAP-REJECTED: run {run} was .*: too many"):
            execute(task, where)
        left = where["ti"].pushed["return_value"]
        assert (left["error"], left["rejected"]["by"]) == ("CAP-REJECTED", "ann")
        assert where["outlet_events"] == {}
    last = read_history(lake, run).last
    assert (last.step, last.detail["reason"]) == (Step.REJECTED, "too many")
    assert submit.calls == []


def planned(asked: Mapping[str, object]) -> PlanReplayOperator:
    task = PlanReplayOperator(
        task_id="plan", settings=read_settings(DAGS / "any.py"), fields=lambda _: asked
    )
    task.without_approval = ("approve", "publish")
    return task


def test_the_plan_skips_an_approval_that_is_not_required(
    tape: Place, execute: Any, context: Any
) -> None:
    requested = {"stream": "little", "into": "t", "until": "2024-05-02", "workers": ["a"]}
    where = context()
    with pytest.raises(DownstreamTasksSkipped) as caught:
        execute(planned(requested), where)
    assert caught.value.tasks == ["approve", "publish"]
    left = where["ti"].pushed
    assert left["return_value"] == {
        key: left[key] for key in ("request", "records", "plan", "others")
    }
    assert left["records"] == 24
    assert left["plan"]["standing"] == {"current": 0, "stale": 0, "missing": 24}
    actual = execute(planned({**requested, "approve": True}), context())
    assert actual["request"]["approve"] is True
    assert actual["plan"]["approve"] is True


def test_the_certificate_comes_from_the_publish_if_there_was_one(
    execute: Any, context: Any
) -> None:
    first, last = {"run": "held"}, {"run": "done"}
    for given, printed in (([last, first], "done"), ([None, first], "held"), (first, "held")):
        task = CertificateOperator(task_id="certificate", result=given)
        assert execute(task, context()).startswith(f"Certificate of {printed}\n")


def states(run: Any) -> dict[str, str]:
    with create_session() as session:
        actual = session.scalars(select(TaskInstance).where(TaskInstance.run_id == run.run_id))
        return {item.task_id: str(item.state) for item in actual}


def events(uri: str) -> list[Any]:
    with create_session() as session:
        return [event.extra for event in session.scalars(select(AssetEvent)) if event.uri == uri]


def test_a_run_without_approval_submits_one_job(tape: Place, submit: FakeSubmit) -> None:
    submit.answers({"exit": 0, "result": {**DONE, "target": "plain"}})
    run = tape.run("capstan_replay", {"into": "plain", "until": "2024-05-02"})
    assert run.state == "success"
    assert states(run) == {
        "plan": "success", "replay": "success", "approve": "skipped", "publish": "skipped",
        "certificate": "success",
    }  # fmt: skip
    with create_session() as session:
        started = session.scalars(
            select(TaskInstance.start_date).where(
                TaskInstance.run_id == run.run_id, TaskInstance.state == "skipped"
            )
        ).all()
        pids = session.scalars(
            select(TaskInstance.pid).where(
                TaskInstance.run_id == run.run_id, TaskInstance.state == "skipped"
            )
        ).all()
        keys = session.scalars(
            select(XComModel.key).where(XComModel.run_id == run.run_id, XComModel.task_id == "plan")
        ).all()
    assert len(started) == 2
    assert pids == [None, None]
    assert len(submit.calls) == 1
    assert len(events("capstan://tables/plain")) == 1
    # The result of a task that skips others is there all the same.
    assert {"request", "records", "plan", "return_value"} <= set(keys)


def respond(
    choice: str, *, look: Callable[[], None] = lambda: None, seconds: float = 230
) -> threading.Thread:
    """A person who looks, then answers as soon as they are asked, as the UI and REST do."""

    def wait() -> None:
        # On a busy machine the first task alone takes minutes, and nobody else ends the wait.
        end = time.monotonic() + seconds
        requested = None
        while time.monotonic() < end:
            # SQLite lets one write at a time, and gives up on others after a while.
            with contextlib.suppress(OperationalError), create_session() as session:
                detail = session.scalars(
                    select(HITLDetail).join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
                    .where(TaskInstance.state == TaskInstanceState.AWAITING_INPUT)
                ).first()  # fmt: skip
                if detail is not None:
                    requested = detail.ti_id
                    look()
                    _answer(session, detail, choice)
                # `dag.test` may write down that the task waits after it was answered, and so
                # would wait for ever: who answers stays until it has gone on.
                elif requested and session.get(TaskInstance, requested).state in State.finished:
                    return
            time.sleep(0.2)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def _answer(session: Any, detail: HITLDetail, choice: str) -> None:
    from airflow.models.trigger import handle_event_submit

    detail.responded_by = {"id": "7", "name": "ann"}
    detail.responded_at = datetime.now(UTC)
    detail.chosen_options = [choice]
    detail.params_input = {"reason": "looked at it"}
    session.add(detail)
    waiting = session.get(TaskInstance, detail.ti_id)
    event = TriggerEvent(detail.as_resume_event_payload())
    handle_event_submit(event, task_instance=waiting, session=session)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("choice", ["Approve", pytest.param("Reject", marks=pytest.mark.rest)])
def test_a_run_waits_for_a_decision_and_follows_it(
    tape: Place, submit: FakeSubmit, choice: str
) -> None:
    into = choice.lower()
    waits_for_a_person(Lake.at(tape.lake), "t-1234-1", "1234")
    done = {"exit": 0, "result": {**DONE, "target": into}}
    submit.answers({"exit": 0, "result": {**WAITS, "target": into}}, done)
    person = respond(choice)
    run = tape.run("capstan_replay", {"into": into, "until": "2024-05-02", "approve": True})
    person.join(10)
    first, *rest = submit.calls
    assert first["request"]["approve"] is True  # type: ignore[index]
    ended = states(run)
    if choice == "Approve":
        requested: Any = rest[0]["request"]
        assert requested.pop("at").startswith(f"{datetime.now(UTC):%Y-}")
        assert requested == {
            "run": "t-1234-1", "approved": True, "by": "ann", "reason": "looked at it",
        }  # fmt: skip
        assert run.state == "success"
        assert set(ended.values()) == {"success"}
        assert len(events(f"capstan://tables/{into}")) == 1
        return
    # No Spark has started for it.
    assert rest == []
    last = read_history(Lake.at(tape.lake), "t-1234-1").last
    assert (last.step, last.detail["by"], last.detail["reason"]) == (
        Step.REJECTED, "ann", "looked at it",
    )  # fmt: skip
    assert run.state == "failed"
    assert (ended["approve"], ended["publish"]) == ("success", "failed")
    assert ended["certificate"] == "upstream_failed"
    assert events(f"capstan://tables/{into}") == []


ASKED = """
  asked:
    stream: little
    target: asked
    since: 2024-05-01
    until: 2024-05-06
    schedule: "@daily"
    approve: others
"""


@pytest.mark.rest
@pytest.mark.timeout(240)
def test_a_day_of_a_declared_replay_is_published_after_approval(
    tape: Place, submit: FakeSubmit
) -> None:
    with tape.streams.open("a", encoding="utf-8") as file:
        file.write(ASKED.lstrip("\n"))
    waits = {**WAITS, "target": "asked"}
    approval = {"by": "ann", "at": "2024", "reason": "looked at it"}
    done = {**DONE, "target": "asked", "approval": approval}
    submit.answers({"exit": 0, "result": waits}, {"exit": 0, "result": done})
    seen: list[list[Any]] = []
    person = respond("Approve", look=lambda: seen.append(events("capstan://tables/asked")))
    run = tape.run("capstan_backfill__asked", date=datetime(2024, 5, 2, tzinfo=UTC))
    person.join(10)
    assert run.state == "success"
    assert set(states(run).values()) == {"success"}
    # Nobody is told of it before.
    assert seen
    assert not any(seen)
    first, second = (call["request"] for call in submit.calls)
    assert (first["replay"], first["approve"]) == ("asked", True)  # type: ignore[index]
    assert (second["approved"], second["by"]) == (True, "ann")  # type: ignore[index]
    [certificate] = events("capstan://tables/asked")
    assert certificate["approval"] == approval


ALERTS = '''
from airflow.sdk.bases.notifier import BaseNotifier

told = []

class Keep(BaseNotifier):
    """A notifier that keeps what it was told."""

    def __init__(self, name="class"):
        super().__init__()
        self.name = name

    def notify(self, context):
        told.append((self.name, str(context["exception"])))

ON_CALL = Keep("on call")
NOTHING = 7

class Other:
    pass

def broken(context):
    told.append(("broken", ""))
    raise ValueError("the pager is gone")
'''


@pytest.fixture
def alerts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of notifiers, as it may lie in a DAG folder."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "alerts_of_test.py").write_text(ALERTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("alerts_of_test", None)
    import alerts_of_test

    return alerts_of_test


def declare(place: Place, notify: str, more: str = "") -> None:
    text = place.streams.read_text(encoding="utf-8").replace(
        '    schedule: "@hourly"\n', f'    schedule: "@hourly"\n    notify: {notify}\n{more}'
    )
    place.streams.write_text(text, encoding="utf-8")


def test_a_failure_notifies_and_ends_the_log_with_its_error(
    place: Place, submit: FakeSubmit, alerts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(place, "[alerts_of_test:broken, alerts_of_test:ON_CALL]")
    monkeypatch.setenv("CAPSTAN_NOTIFY", "alerts_of_test:Keep")
    error = {"error": "CAP-VIOLATION", "message": "worker a", "hint": "look"}
    submit.answers({"exit": 1, "result": error})
    run = place.run("capstan_capture__little")
    assert run.state == "failed"
    line = "CAP-VIOLATION: worker a (look)"
    assert alerts.told == [("class", line), ("broken", ""), ("on call", line)]
    task = place.bag().dags["capstan_capture__little"].get_task("capture")
    assert task.on_failure_callback[-1] is log_error_last
    # All tasks that can fail tell those of the variable.
    for dag in place.bag().dags.values():
        for item in dag.tasks if dag.dag_id.startswith("capstan_") else ():
            callbacks = item.on_failure_callback
            assert callbacks[-1] is log_error_last, item
            assert isinstance(callbacks[0], alerts.Keep), item
    replay = place.bag().dags["capstan_backfill__by_day"]
    assert all(len(task.on_failure_callback) == 2 for task in replay.tasks)


@pytest.mark.rest
def test_a_manual_run_calls_its_replay_s_notifiers(
    tape: Place, submit: FakeSubmit, alerts: Any
) -> None:
    with tape.streams.open("a", encoding="utf-8") as file:
        file.write("    notify: [alerts_of_test:ON_CALL]\n")
    error = {"error": "CAP-AUDIT", "message": "2 cells differ", "hint": "look"}
    submit.answers({"exit": 1, "result": error})
    requested = {"into": "by_day", "transform": "by_day", "until": "2024-05-02"}
    assert tape.run("capstan_replay", requested).state == "failed"
    assert alerts.told == []
    assert tape.run("capstan_replay", {**requested, "replay": "by_day"}).state == "failed"
    assert alerts.told == [("on call", "CAP-AUDIT: 2 cells differ (look)")]


@pytest.mark.parametrize(
    ("dag", "about", "who"),
    [
        ("maintain", {"violations": [{"stream": "little"}]}, ["on call"]),
        ("maintain", {"tables": [{"stream": "little", "damaged": [[0, 0]]}]}, ["on call"]),
        ("maintain", {"tables": [{"stream": "little", "damaged": []}]}, []),
        ("maintain", {"violations": [{"stream": "other"}]}, []),
        ("maintain", {"failed": [{"stream": "little"}]}, ["on call"]),
        ("audit", {"audits": [{"target": "{lake}/tables/by_day", "passed": False}]}, ["class"]),
        ("audit", {"audits": [{"target": "{lake}/tables/by_day", "error": "CAP-GONE"}]}, []),
        ("audit", {"audits": [{"target": "{lake}/tables/by_day", "passed": True}]}, []),
        ("gaps", {"backfills": [{"replay": "by_day", "error": "CAP-AUDIT"}]}, ["class"]),
        ("gaps", {"backfills": [{"replay": "by_day"}]}, []),
    ],
    ids=str,
)
def test_a_shared_task_notifies_only_the_concerned(
    place: Place, alerts: Any, dag: str, about: Mapping[str, object], who: list[str]
) -> None:
    declare(place, "[alerts_of_test:ON_CALL]")
    with place.streams.open("a", encoding="utf-8") as file:
        file.write("    notify: [alerts_of_test:Keep]\n")
    reported = json.loads(json.dumps(about).replace("{lake}", str(place.lake)))
    error = failure(1, {"error": "CAP-AUDIT", "message": "no", "hint": "", **reported})
    task = list(place.bag().dags[f"capstan_{dag}"].tasks)[-1]
    for callback in task.on_failure_callback:
        callback({"exception": error, "params": {}})
    assert alerts.told == [(name, "CAP-AUDIT: no") for name in who]


def test_the_plan_shows_which_rows_would_change_on_request(
    tape: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    submit.answers(
        {"exit": 0, "result": {"stream": "little", "target": "t", "diff": WAITS["diff"]}}
    )
    setting = read_settings(DAGS / "any.py")
    fields = {"stream": "little", "into": "t", "until": "2024-05-02"}

    def planned(**more: object) -> tuple[PlanReplayOperator, dict[str, Any]]:
        task = PlanReplayOperator(
            task_id="plan", settings=setting, fields=lambda _: {**fields, **more}
        )
        return task, execute(task, context())

    task, actual = planned()
    assert submit.calls == []
    task, actual = planned(diff=True)
    [call] = submit.calls
    assert any(item.endswith("spark_apps/plan.py") for item in call["arguments"])  # type: ignore[attr-defined]
    assert call["request"] == actual["request"]
    assert actual["plan"]["diff"] == WAITS["diff"]
    assert re.search(r"^rows added +3$", task.plan, re.MULTILINE)
    assert re.search(r"^changed +0 +2024-05-01 +note=a\|b +note=c$", task.plan, re.MULTILINE)
    # What the job answers is the task's, and its failures are Airflow's.
    submit.answers({"exit": 2, "result": {"error": "CAP-MODE", "message": "no", "hint": ""}})
    with pytest.raises(TaskRefusedError, match="^CAP-MODE: no"):
        planned(diff=True)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("alerts_of_test:MISSING", "has no attribute 'MISSING'"),
        ("no_such_module:X", "No module named 'no_such_module'"),
        ("alerts_of_test:NOTHING", "it is neither a notifier nor a function"),
        ("alerts_of_test:Other", "it is neither a notifier nor a function"),
    ],
)
def test_an_invalid_notifier_is_refused_with_its_line(
    place: Place, alerts: Any, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    declare(place, f"[{name}]")
    errors = "".join(place.bag().import_errors.values())
    assert f"{place.streams}:13: streams.little.notify: {name} cannot be notified" in errors
    assert problem in errors
    monkeypatch.setenv("CAPSTAN_NOTIFY", name)
    with pytest.raises(InvalidRequestError, match="^CAP-NOTIFY: "):
        on_failure(read_settings(DAGS / "any.py"))


@pytest.mark.rest
def test_a_stream_that_stands_still_fails_after_its_capture(
    tape: Place, submit: FakeSubmit, alerts: Any, execute: Any, context: Any
) -> None:
    actual = {"stream": "little", "cut": 0, "frontier": [], "records": 0, "batches": 0}
    submit.answers({"exit": 0, "result": actual})

    def task() -> CaptureOperator:
        return CaptureOperator(
            task_id="t", settings=read_settings(DAGS / "any.py"), stream="little"
        )

    execute(task(), context())
    declare(tape, "alerts_of_test:ON_CALL", "    stalled_after: 1 microsecond\n")
    where = context()
    with pytest.raises(
        TaskRefusedError, match=r"^CAP-STALLED: stream little: the frontier has been"
    ):
        execute(task(), where)
    # What had arrived is on tape, and the form knows of it.
    assert where["ti"].pushed["return_value"] == actual
    run = tape.run("capstan_capture__little")
    assert run.state == "failed"
    assert [name for name, line in alerts.told if line.startswith("CAP-STALLED: ")] == ["on call"]
    text = tape.streams.read_text(encoding="utf-8").replace("1 microsecond", "9 days")
    tape.streams.write_text(text, encoding="utf-8")
    execute(task(), context())
