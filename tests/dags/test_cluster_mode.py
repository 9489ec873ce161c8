"""Jobs in cluster mode over a `spark-submit` that only submits: the test is the driver."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException, TaskDeferred

from capstan.airflow import ReplayOperator
from capstan.airflow.operators import submit as submit_module
from capstan.airflow.operators.jobs import SubmitBackfillOperator
from capstan.airflow.operators.replay import SubmitReplayOperator
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import read_settings
from capstan.airflow.tasks.attempt_name import attempt_name
from capstan.airflow.tasks.failures import TaskBrokenError, TaskRefusedError
from capstan.airflow.tasks.lake_triggers import ResultTrigger
from capstan.errors import CapstanError, IncompleteError
from capstan.storage import job_attempts
from capstan.storage.job_attempts import JobAttempt
from capstan.storage.lake import Lake, write_whole
from tests.dags.conftest import DAGS, Place, Task
from tests.dags.test_submit import conf, operator, option
from tests.support import recorded_tapes
from tests.support.jvmless_lake import go_on, lay_tape

if TYPE_CHECKING:
    from conftest import FakeSubmit

pytestmark = pytest.mark.dags

REQUEST = {"stream": "little"}
ERROR = {"error": "CAP-X", "message": "what is wrong", "hint": "what to do"}
KUBERNETES = {
    "conn_type": "spark",
    "host": "k8s://https://c:6443",
    "extra": {"namespace": "n", "deploy-mode": "cluster"},
}


@pytest.fixture(autouse=True)
def yarn(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to YARN in cluster mode."""
    spark = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(place.root))


@pytest.fixture
def attempt(place: Place) -> JobAttempt:
    """The attempt that the task `t` submits, of whatever try."""
    return JobAttempt(Lake.at(place.lake), attempt_name(Task(), "t verify"))


def deferred(execute: Any, task: CapstanSubmitOperator, where: Any) -> ResultTrigger:
    with pytest.raises(TaskDeferred) as caught:
        execute(task, where)
    assert caught.value.method_name == "resume"
    assert isinstance(caught.value.trigger, ResultTrigger)
    return caught.value.trigger


def test_a_driver_elsewhere_has_all_from_the_lake(
    place: Place,
    submit: FakeSubmit,
    attempt: JobAttempt,
    monkeypatch: pytest.MonkeyPatch,
    execute: Any,
    context: Any,
) -> None:
    monkeypatch.delenv("CAPSTAN_DRIVER_MEMORY", raising=False)
    trigger = deferred(execute, operator(deferrable=True, env_vars={"MINE": "1"}), context())
    assert (trigger.attempt, trigger.lake) == (attempt.name, str(place.lake))
    [call] = submit.calls
    assert call["request"] == REQUEST
    assert call["made_by"] == {"dag": "d", "dag_run": "r:1+0", "task": "t", "try_number": 1}
    arguments: Any = call["arguments"]
    job = arguments.index(str(DAGS.parent / "spark_apps" / "verify.py"))
    assert arguments[job + 1 :] == ["--lake", str(place.lake), "--attempt", attempt.name, "--join"]
    assert option(arguments, "--deploy-mode") == "cluster"
    settings = conf(arguments)
    assert settings["spark.yarn.submit.waitAppCompletion"] == "false"
    assert settings["spark.kubernetes.submission.waitAppCompletion"] == "false"
    # YARN starts a failed job again by default, which would replace its result.
    assert settings["spark.yarn.maxAppAttempts"] == "1"
    assert "log4j2" not in settings["spark.driver.extraJavaOptions"]
    assert "--driver-memory" not in arguments
    # What is of the task's own machine, or ends with it, is not for a driver elsewhere.
    given = {key: settings[key] for key in settings if "Env" in key}
    assert given == {"spark.yarn.appMasterEnv.MINE": "1"}
    assert attempt.declarations() == place.streams.read_text("utf-8")
    environment: Any = call["environment"]
    assert "JAVA_HOME" in environment and "CAPSTAN_OWNER" not in environment
    assert not place.work.exists()


def test_a_driver_is_not_submitted_again_while_it_may_begin_or_works(
    submit: FakeSubmit,
    attempt: JobAttempt,
    monkeypatch: pytest.MonkeyPatch,
    execute: Any,
    context: Any,
) -> None:
    monkeypatch.setattr(job_attempts, "SILENT", timedelta(0))
    deferred(execute, operator(deferrable=True), context())
    # A queue may be longer than a driver at work is silent.
    assert attempt.is_queued() and not attempt.is_over()
    deferred(execute, operator(deferrable=True), context())
    monkeypatch.setattr(job_attempts, "SILENT", timedelta(minutes=5))
    attempt.sign(REQUEST)
    where = context()
    where["ti"].try_number = 2
    trigger = deferred(execute, operator(deferrable=True), where)
    assert len(submit.calls) == 1

    attempt.end("verify", 0, {"valid": True}, None)
    assert trigger.is_there()
    assert operator(deferrable=True).resume(where, trigger.since) == {"valid": True}
    # A try that was killed before it took the result would take it; the next run is another.
    assert attempt.request() is None
    deferred(execute, operator(deferrable=True), context())
    assert len(submit.calls) == 2


def test_a_result_that_nobody_has_taken_is_taken(
    submit: FakeSubmit, attempt: JobAttempt, execute: Any, context: Any
) -> None:
    deferred(execute, operator(deferrable=True), context())
    attempt.end("verify", 0, {"valid": True}, None)
    assert execute(operator(), context()) == {"valid": True}
    assert len(submit.calls) == 1
    # Of another request, as the DAG was changed, it is not.
    deferred(execute, operator(deferrable=True), context())
    attempt.end("verify", 0, {"valid": True}, None)
    deferred(execute, operator(deferrable=True, request={"stream": "other"}), context())
    assert len(submit.calls) == 3
    assert attempt.outcome() is None


def test_a_task_takes_no_result_of_another_request(
    submit: FakeSubmit, attempt: JobAttempt, execute: Any, context: Any
) -> None:
    changed = {"stream": "other"}
    deferred(execute, operator(deferrable=True), context())
    attempt.sign(REQUEST)
    # Both drivers would leave their results under one name.
    with pytest.raises(TaskBrokenError, match="CAP-SUBMIT: .* is at work on another request"):
        execute(operator(deferrable=True, request=changed), context())
    assert (len(submit.calls), attempt.prepared()) == (1, REQUEST)
    # One that has read its request, and not signed yet, is found by its result.
    attempt.forget()
    trigger = deferred(execute, operator(deferrable=True, request=changed), context())
    attempt.end("verify", 0, {"valid": True}, None, REQUEST)
    task = operator(deferrable=True, request=changed)
    with pytest.raises(TaskBrokenError, match="CAP-SUBMIT: .* is of another request"):
        task.resume(context(), trigger.since)
    assert attempt.prepared() == changed
    deferred(execute, operator(deferrable=True, request=changed), context())
    attempt.end("verify", 0, {"valid": False}, None, changed)
    assert execute(operator(request=changed), context()) == {"valid": False}
    assert len(submit.calls) == 3


def test_what_is_no_result_does_not_stand_in_the_way(
    submit: FakeSubmit, attempt: JobAttempt, execute: Any, context: Any
) -> None:
    trigger = deferred(execute, operator(deferrable=True), context())
    write_whole(attempt.result_path, b"{}")
    with pytest.raises(TaskRefusedError, match="CAP-RESULT: .* is not the result of a job"):
        operator(deferrable=True).resume(context(), trigger.since)
    deferred(execute, operator(deferrable=True), context())
    assert len(submit.calls) == 2


@pytest.mark.parametrize("kind", [SubmitReplayOperator, SubmitBackfillOperator])
def test_a_pause_holds_up_what_begins_and_no_result(
    place: Place,
    submit: FakeSubmit,
    monkeypatch: pytest.MonkeyPatch,
    execute: Any,
    context: Any,
    kind: type[CapstanSubmitOperator],
) -> None:
    paused: list[CapstanError | None] = [IncompleteError("CAP-PAUSED", "paused", "resume it")]
    monkeypatch.setattr(kind, "why_held", lambda *_: paused[0])
    monkeypatch.setattr(SubmitReplayOperator, "backfills", "daily")
    request = {"replay": "daily"}

    def task() -> CapstanSubmitOperator:
        settings = read_settings(DAGS / "any.py")
        return kind(task_id="t", request=request, settings=settings, deferrable=True)

    with pytest.raises(AirflowRescheduleException):
        execute(task(), context())
    assert submit.calls == []
    paused.insert(0, None)
    deferred(execute, task(), context())
    done = JobAttempt(Lake.at(place.lake), attempt_name(Task(), f"t {kind.job}"))
    done.end(kind.job, 0, {"runs": []}, None, request)
    paused.pop(0)
    assert execute(task(), context()) == {"runs": []}
    assert len(submit.calls) == 1


def test_a_driver_that_died_is_submitted_again(
    submit: FakeSubmit,
    attempt: JobAttempt,
    monkeypatch: pytest.MonkeyPatch,
    execute: Any,
    context: Any,
) -> None:
    since = deferred(execute, operator(deferrable=True), context()).since
    attempt.sign(REQUEST)
    monkeypatch.setattr(job_attempts, "SILENT", timedelta(0))
    assert attempt.is_over()
    with pytest.raises(TaskBrokenError, match="CAP-SUBMIT: .* left no result .* been silent since"):
        operator(deferrable=True).resume(context(), since)
    deferred(execute, operator(deferrable=True), context())
    assert len(submit.calls) == 2
    # And a try that comes back finds it dead.
    attempt.sign(REQUEST)
    deferred(execute, operator(deferrable=True), context())
    assert len(submit.calls) == 3
    # Or that it has not begun for too long.
    attempt.sign(REQUEST, begins=timedelta(0))
    monkeypatch.setattr(job_attempts, "QUEUED", timedelta(0))
    for calls in (4, 5):
        with pytest.raises(TaskBrokenError, match="CAP-SUBMIT: .* and has not begun since"):
            execute(operator(), context())
        assert len(submit.calls) == calls


def test_a_slot_is_held_without_a_trigger(
    submit: FakeSubmit,
    attempt: JobAttempt,
    monkeypatch: pytest.MonkeyPatch,
    execute: Any,
    context: Any,
) -> None:
    slept, real = list[float](), time.sleep

    def sleep(seconds: float) -> None:
        if seconds != submit_module._LOOKS_HERE:
            real(seconds)  # The provider waits for the end of spark-submit.
            return
        slept.append(seconds)
        if attempt.is_queued():
            attempt.sign(REQUEST)
        elif attempt.is_at_work(REQUEST):
            attempt.end("verify", 0, {"valid": True}, None)

    monkeypatch.setattr(submit_module.time, "sleep", sleep)
    assert execute(operator(), context()) == {"valid": True}
    assert slept == [5.0, 5.0]


@pytest.mark.parametrize(
    ("code", "kind"), [(1, TaskRefusedError), (3, AirflowRescheduleException), (5, TaskBrokenError)]
)
def test_failures_are_those_of_the_job(
    submit: FakeSubmit,
    attempt: JobAttempt,
    execute: Any,
    context: Any,
    code: int,
    kind: type[Exception],
) -> None:
    where = context()
    deferred(execute, operator(deferrable=True), where)
    attempt.end("verify", code, None, ERROR)
    with pytest.raises(kind):
        execute(operator(deferrable=True), where)
    assert where["ti"].pushed == {"return_value": ERROR}
    # The next try does not take it for its own.
    deferred(execute, operator(deferrable=True), where)
    assert len(submit.calls) == 2


def test_patience_ends_and_the_driver_goes_on(
    submit: FakeSubmit, attempt: JobAttempt, execute: Any, context: Any
) -> None:
    task, where = operator(deferrable=True, patience=timedelta(hours=1)), context()
    deferred(execute, task, where)
    long_ago = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    with pytest.raises(TaskRefusedError, match="CAP-RESULT: .* is still at work after 1:00:00"):
        task.resume(where, long_ago)
    deferred(execute, operator(deferrable=True), where)
    assert len(submit.calls) == 1


@pytest.mark.parametrize(("answer", "calls"), [({"exit": 1}, 2), ({"signal": 9}, 1)])
def test_a_submission_that_failed_is_repeated_unless_it_was_killed(
    submit: FakeSubmit,
    attempt: JobAttempt,
    execute: Any,
    context: Any,
    answer: dict[str, object],
    calls: int,
) -> None:
    submit.answers({**answer, "lines": ["no cluster"]}, {"exit": 0})
    with pytest.raises(TaskBrokenError, match="^CAP-SUBMIT: spark-submit ended with .*no cluster"):
        execute(operator(deferrable=True), context())
    # Who was killed may have submitted it: the driver has some time to begin.
    deferred(execute, operator(deferrable=True), context())
    assert len(submit.calls) == calls


def test_a_killed_task_leaves_its_driver(
    submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, execute: Any, context: Any
) -> None:
    task, killed = operator(deferrable=True), []
    deferred(execute, task, context())
    assert task._hook is not None
    monkeypatch.setattr(task._hook, "on_kill", lambda: killed.append("by the hook"))
    monkeypatch.setattr(task._hook, "_kill_yarn_application", killed.append)
    task.on_kill()
    assert killed == []


def test_kubernetes_is_not_asked_for_the_exit_code_of_the_driver(
    submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, execute: Any, context: Any
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(KUBERNETES))
    monkeypatch.setattr("capstan.airflow.tasks.spark_program._has_kubernetes", lambda: True)
    hooks = "airflow.providers.apache.spark.hooks.spark_submit.kube_client"
    monkeypatch.setattr(hooks, object(), raising=False)
    deferred(execute, operator(deferrable=True), context())
    arguments: Any = submit.calls[0]["arguments"]
    assert option(arguments, "--master") == "k8s://https://c:6443"


def test_airflow_s_default_does_not_concern_client_mode(
    place: Place, submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, execute: Any, context: Any
) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    deferred(execute, operator(), context())
    submit.answers({"exit": 0, "result": {"valid": True}})
    task = operator(deploy_mode="client")
    task.pre_execute(context())
    assert execute(task, context()) == {"valid": True}
    operator(deferrable=True).pre_execute(context())


def test_a_replay_comes_back_at_its_cut(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    """Whatever was captured since, and although its run has ended and holds nothing."""
    hour, begin = 3_600_000_000, int(datetime(2024, 5, 1, tzinfo=UTC).timestamp()) * 10**6
    lake = Lake.at(place.lake)
    lay_tape(lake, "little", ["a", "b"], [(begin,)], (begin + 12 * hour,))
    for path, schema in (
        (lake.stream("little").records, recorded_tapes._RECORDS),
        (lake.stream("little").late, recorded_tapes._LATE),
    ):
        recorded_tapes.write(path, schema.empty_table())

    def task() -> ReplayOperator:
        settings = read_settings(DAGS / "any.py")
        until = "2024-05-01T06:00"
        return ReplayOperator(
            task_id="t", settings=settings, stream="little", target="t", until=until,
            deferrable=True,
        )  # fmt: skip

    deferred(execute, task(), context())
    [call] = submit.calls
    request: Any = call["request"]
    go_on(lake, "little", [(begin + 13 * hour,)], (begin + 20 * hour,))
    replay = JobAttempt(lake, attempt_name(Task(), "t replay"))
    for _ in range(2):
        deferred(execute, task(), context())
        replay.sign(request)
    replay.end("replay", 4, None, ERROR)
    with pytest.raises(TaskRefusedError, match="CAP-X"):
        execute(task(), context())
    assert len(submit.calls) == 1
    deferred(execute, task(), context())
    later: Any = submit.calls[1]["request"]
    assert later["as_of"] > request["as_of"]
