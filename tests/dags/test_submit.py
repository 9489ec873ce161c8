"""The submitting operator over a `spark-submit` that starts nothing: exit codes, kills, answers."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import structlog
from airflow.models.asset import AssetEvent
from airflow.models.connection import Connection
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import timezone
from airflow.sdk.exceptions import AirflowRescheduleException
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import delete, select

from capstan.airflow.operators.jobs import CaptureOperator
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import read_settings
from capstan.airflow.tasks.failures import (
    TaskBrokenError,
    TaskRefusedError,
    as_task,
    failure,
    log_error_last,
)
from capstan.airflow.tasks.spark_program import spark_master, try_folder
from capstan.errors import RangeLockedError
from capstan.spark.setup.jars import delta_jars, spark_jars

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conftest import FakeSubmit, Place

DAGS = Path(__file__).parents[2] / "dags"
CAPTURE = "capstan_capture__little"
DONE = {"stream": "little", "cut": 3, "frontier": ["2024-05-01"], "records": 7, "batches": 1}


def operator(**more: Any) -> CapstanSubmitOperator:
    given = {"task_id": "t", "app": "verify", "request": {"stream": "little"}, **more}
    return CapstanSubmitOperator(settings=read_settings(DAGS / "any.py"), **given)


def error(code: str = "CAP-X") -> dict[str, object]:
    return {"error": code, "message": "what is wrong", "hint": "what to do"}


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def conf(arguments: list[str]) -> dict[str, str]:
    pairs = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def test_the_result_is_the_answer_and_nothing_is_left(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    submit.answers({"exit": 0, "result": {"valid": True}})
    assert execute(operator(), context()) == {"valid": True}
    assert list(place.work.rglob("*.json")) == []
    assert not (place.work / "tries" / "d").exists()
    [call] = submit.calls
    assert call["request"] == {"stream": "little"}
    assert call["made_by"] == {"dag": "d", "dag_run": "r:1+0", "task": "t", "try_number": 1}
    arguments: Any = call["arguments"]
    assert option(arguments, "--master") == "local[2]"
    assert option(arguments, "--lake") == str(place.lake)
    assert option(arguments, "--config") == str(place.streams)
    assert option(arguments, "--driver-memory") == "1g"
    job = arguments[arguments.index("--lake") - 2]
    assert job == str(DAGS.parent / "spark_apps" / "verify.py")


def test_a_job_is_told_who_has_triggered_its_dag_run(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    where = {**context(), "dag_run": SimpleNamespace(triggering_user_name="ada")}
    where["ti"].map_index = 3
    task = operator()
    execute(task, where)
    [call] = submit.calls
    about = {"dag": "d", "dag_run": "r:1+0", "task": "t", "try_number": 1, "map_index": 3}
    assert call["made_by"] == {**about, "user": "ada"}
    # The task's page shows what was asked for.
    assert task.request == {"stream": "little"}


def test_the_driver_starts_lean_and_on_loopback(
    place: Place, submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, execute: Any, context: Any
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    submit.answers({"exit": 0, "result": {}})
    for records in (None, 10, 1_000_000_000):
        execute(operator(records=records), context())
    plain, short, large = (call["arguments"] for call in submit.calls)
    settings = conf(plain)  # type: ignore[arg-type]
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    actual = settings["spark.driver.extraClassPath"].split(os.pathsep)
    assert actual == [str(jar) for jar in spark_jars()]
    assert {*map(str, delta_jars())} <= {*actual}
    assert "--packages" not in plain  # type: ignore[operator]
    options = [conf(item)["spark.driver.extraJavaOptions"] for item in (plain, short, large)]  # type: ignore[arg-type]
    assert ["TieredStopAtLevel=1" in item for item in options] == [False, True, False]
    assert all("-Dcapstan.log.level=WARN" in item for item in options)
    generated = [conf(item).get("spark.sql.codegen.factoryMode") for item in (plain, short, large)]  # type: ignore[arg-type]
    assert generated == [None, "NO_CODEGEN", None]
    environment: Any = submit.calls[0]["environment"]
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert Path(environment["JAVA_HOME"], "bin", "java").is_file()
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"]
    assert environment["CAPSTAN_OWNER"].startswith(f"{os.getpid()}:")


def test_what_is_given_wins_over_what_is_usual(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    mine = {"spark.driver.extraJavaOptions": "-Dmine=1", "spark.sql.shuffle.partitions": "7"}
    execute(operator(conf=mine, driver_memory="3g", env_vars={"SPARK_LOCAL_IP": "::1"}), context())
    [call] = submit.calls
    arguments: Any = call["arguments"]
    assert conf(arguments).items() >= mine.items()
    assert option(arguments, "--driver-memory") == "3g"
    environment: Any = call["environment"]
    assert environment["SPARK_LOCAL_IP"] == "::1"


def test_a_cluster_gets_the_jars_and_no_loopback(
    place: Place, submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, execute: Any, context: Any
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://127.0.0.1:7077")
    execute(operator(), context())
    arguments: Any = submit.calls[0]["arguments"]
    assert option(arguments, "--master") == "spark://127.0.0.1:7077"
    assert option(arguments, "--jars").count(".jar") == len(spark_jars())
    assert not any("driver.host" in word or "SharedArchiveFile" in word for word in arguments)


@pytest.mark.parametrize("code", [1, 2, 4])
def test_answers_that_stay_the_same_are_not_retried(
    place: Place, submit: FakeSubmit, code: int, execute: Any, context: Any
) -> None:
    submit.answers({"exit": code, "result": error(), "lines": ["what to do", "CAP-X: what"]})
    where = context()
    with pytest.raises(TaskRefusedError) as caught:
        execute(operator(), where)
    assert str(caught.value) == "CAP-X: what is wrong (what to do)"
    assert where["ti"].pushed == {"return_value": error()}
    assert try_folder(place.work, where).read_result() == error()


@pytest.mark.parametrize(
    ("held", "kind"), [("CAP-CONFLICT", TaskBrokenError), ("CAP-HELD", TaskRefusedError)]
)
def test_conflicting_commits_are_retried_and_held_ranges_are_not(
    place: Place, submit: FakeSubmit, held: str, kind: type[Exception], execute: Any, context: Any
) -> None:
    submit.answers({"exit": 4, "result": error(held)})
    with pytest.raises(kind, match=f"^{held}: what is wrong"):
        execute(operator(), context())
    with pytest.raises(kind, match=f"^{held}: others"), as_task():
        raise RangeLockedError(held, "others are at it", "run the same command again")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"exit": 5, "result": error()}, "CAP-X: what is wrong (what to do)"),
        ({"exit": 1}, "CAP-SUBMIT: spark-submit ended with 1 and left no result: "),
        ({"exit": 1, "result": "{"}, "CAP-SUBMIT: spark-submit ended with 1 and left no result: "),
        (
            {"exit": 2, "result": {"a": 1}},
            "CAP-SUBMIT: spark-submit ended with 2 and left no result: ",
        ),
        (
            {"exit": 137, "result": error()},
            "CAP-SUBMIT: spark-submit ended with 137 and left no result",
        ),
        ({"signal": 9}, "CAP-SUBMIT: spark-submit ended with -9 and left no result: "),
        ({"exit": 7, "lines": ["no memory"]}, "ended with 7 and left no result: no memory"),
        ({"exit": 0}, "CAP-SUBMIT: spark-submit succeeded, but left no result"),
        ({"exit": 0, "result": "[1]"}, "CAP-SUBMIT: spark-submit succeeded, but left no result"),
    ],
)
def test_what_broke_is_retried(
    place: Place,
    submit: FakeSubmit,
    answer: Mapping[str, object],
    said: str,
    execute: Any,
    context: Any,
) -> None:
    submit.answers(answer)
    with pytest.raises(TaskBrokenError) as caught:
        execute(operator(), context())
    assert said in str(caught.value)


def test_an_answer_of_an_earlier_start_is_not_taken(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    where = context()
    folder = try_folder(place.work, where)
    folder.prepare({})
    folder.result.write_text("{}", encoding="utf-8")
    submit.answers({"exit": 0})
    with pytest.raises(TaskBrokenError, match="left no result"):
        execute(operator(), where)


def test_not_complete_yet_waits_and_gives_its_slot_back(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    submit.answers({"exit": 3, "result": error("CAP-INCOMPLETE")})
    where = context()
    with pytest.raises(AirflowRescheduleException) as caught:
        execute(operator(wait=timedelta(minutes=9)), where)
    ahead = caught.value.reschedule_date - timezone.utcnow()
    assert timedelta(minutes=8) < ahead <= timedelta(minutes=9)
    where["ti"].since = caught.value.reschedule_date - timedelta(days=8)
    with pytest.raises(TaskRefusedError, match="CAP-INCOMPLETE"):
        execute(operator(), where)


@pytest.mark.parametrize("request_", ["{", "[]", "7"])
def test_a_request_that_is_no_object_is_refused(
    place: Place, submit: FakeSubmit, request_: str, execute: Any, context: Any
) -> None:
    with pytest.raises(TaskRefusedError, match="CAP-REQUEST"):
        execute(operator(request=request_), context())
    assert submit.calls == []


@pytest.mark.parametrize(
    ("connection", "problem"),
    [
        (None, "does not exist"),
        ("", "does not exist"),
        ("spark://local[*]", "cannot be read"),
        ("{", "cannot be read"),
        ('{"conn_type": "spark"}', "names no Spark master: 'spark://'"),
        ('{"conn_type": "spark", "host": "yarn"}', "names yarn, but neither HADOOP_CONF_DIR"),
        ('{"conn_type": "http", "host": "x"}', "names no Spark master: 'http://x'"),
        ('{"conn_type": "spark", "host": "local[x]"}', "names no Spark master"),
        ("spark://master:7077?deploy-mode=cluster", "has the deploy mode cluster, which Python"),
        (
            '{"conn_type": "spark", "host": "local", "extra": {"deploy-mode": "cluster"}}',
            "has the deploy mode cluster, which Python programs have on YARN and Kubernetes",
        ),
        ("spark://master:7077?deploy-mode=far", "has the deploy mode 'far', which is neither"),
        (
            '{"conn_type": "spark", "host": "k8s://https://c:6443"}',
            "names Kubernetes, but the package",
        ),
    ],
)
def test_a_connection_that_is_wrong_is_an_error_and_never_yarn(
    place: Place,
    submit: FakeSubmit,
    monkeypatch: pytest.MonkeyPatch,
    connection: str | None,
    problem: str,
    execute: Any,
    context: Any,
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    with pytest.raises(TaskRefusedError) as caught:
        execute(operator(), context())
    printed = str(caught.value)
    assert printed.startswith(f"CAP-CONNECTION: connection spark_default {problem}")
    assert """AIRFLOW_CONN_SPARK_DEFAULT='{"conn_type": "spark", "host": "local[*]"}'""" in printed
    assert submit.calls == []


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        ('{"conn_type": "spark", "host": "local"}', "local"),
        ('{"conn_type": "spark", "host": "local[*]"}', "local[*]"),
        (
            '{"conn_type": "spark", "host": "spark://127.0.0.1", "port": 7077}',
            "spark://127.0.0.1:7077",
        ),
        ("spark://127.0.0.1:7077?deploy-mode=client", "spark://127.0.0.1:7077"),
        ('{"conn_type": "spark", "host": "spark://a:7077,b:7077"}', "spark://a:7077,b:7077"),
    ],
)
def test_the_master_is_the_one_that_the_provider_submits_to(
    place: Place, monkeypatch: pytest.MonkeyPatch, connection: str, master: str
) -> None:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    assert spark_master("spark_default") == (master, False)
    assert SparkSubmitHook()._connection["master"] == master


def test_stored_connections_work_like_environment_ones(
    place: Place, submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSTAN_CONNECTION", "kept")
    submit.answers({"exit": 0, "result": {}})
    with create_session() as session:
        session.add(Connection("kept", "spark", host="spark://127.0.0.1", port=7077))
    try:
        assert place.run("capstan_maintain").state == "success"
    finally:
        with create_session() as session:
            session.execute(delete(Connection).where(Connection.conn_id == "kept"))
    [call] = submit.calls
    arguments: Any = call["arguments"]
    assert option(arguments, "--master") == "spark://127.0.0.1:7077"


def test_a_kill_ends_all_that_was_started(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    submit.answers({"child": True})
    task, ended = operator(), []

    def run() -> None:
        try:
            execute(task, context())
        except TaskBrokenError as found:
            ended.append(str(found))

    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + 60
    while not submit.started.exists() and time.monotonic() < end:
        time.sleep(0.05)
    process = psutil.Process(int(submit.started.read_text(encoding="utf-8")))
    family = [process, *process.children(recursive=True)]
    assert len(family) == 2
    task.on_kill()
    # First the task: whoever waits for a child of this process takes its exit code away.
    thread.join(60)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [item for item in alive if item.status() != psutil.STATUS_ZOMBIE] == []
    assert len(ended) == 1
    assert "spark-submit ended with -9" in ended[0]


def test_a_kill_before_the_start_ends_nothing(place: Place) -> None:
    operator().on_kill()


def test_the_error_is_the_last_line(
    caplog: pytest.LogCaptureFixture, place: Place, submit: FakeSubmit
) -> None:
    assert log_error_last in operator().on_failure_callback
    unknown = "What to do: run it again; if it fails again, report the message and the log"
    for raised, lines in (
        (failure(2, error()), ["CAP-X: what is wrong", "What to do: what to do"]),
        (failure(5, {**error(), "hint": ""}), ["CAP-X: what is wrong"]),
        (TaskRefusedError("CAP-X: what (do)"), ["CAP-X: what (do)"]),
        (ValueError("first\nsecond"), ["CAP-BROKEN: ValueError: first", unknown]),
        (ValueError(), ["CAP-BROKEN: ValueError", unknown]),
    ):
        caplog.clear()
        log_error_last({"exception": raised})
        assert caplog.messages == ["::endgroup::", *lines]
        assert {record.levelname for record in caplog.records[1:]} == {"ERROR"}


def test_a_line_of_spark_has_the_level_that_it_states(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    lines = [
        "12:00:01 WARN TaskSetManager: lost", "12:00:02 ERROR Executor: Exception in task 0",
        "org.apache.spark.SparkException: [FAILED_READ_FILE] x", "\tat org.apache.X.y(X.scala:1)",
        "\t... 12 more", "Caused by: java.io.IOException: gone", "12:00:03 INFO replay.claim run=r",
        '{"at": "2024-05-01T00:00:00Z", "level": "error", "event": "CAP-X"}', "done",
        "24/05/01 12:00:04 ERROR Utils: y", "2024/05/01 12:00:04 INFO Utils: z", "at rest",
    ]  # fmt: skip
    submit.answers({"exit": 0, "result": {}, "lines": lines})
    with structlog.testing.capture_logs() as logged:
        execute(operator(), context())
    stripped = [line.strip() for line in lines]
    levels = {entry["event"]: entry["log_level"] for entry in logged if entry["event"] in stripped}
    assert list(levels.values()) == [
        "warning", "error", "error", "error", "error", "error", "info", "error", "info", "error",
        "info", "info",
    ]  # fmt: skip


@pytest.mark.parametrize("code", ["CAP-DAMAGED", "CAP-JAVA", "CAP-PACKAGE"])
def test_what_no_retry_mends_is_told_at_once(
    place: Place, submit: FakeSubmit, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr("tests.support.sample_streams.told", told.append, raising=False)
    monkeypatch.setenv("CAPSTAN_NOTIFY", "tests.support.sample_streams:told")
    submit.answers({"exit": 5, "result": error(code)})
    assert place.run(CAPTURE).state == "failed"
    assert len(submit.calls) == 1
    [context] = told
    assert context["exception"].about["hint"] == "what to do"  # type: ignore[index]


@pytest.mark.parametrize(("code", "traced"), [(2, False), (5, True)])
def test_a_refusal_is_logged_without_its_stack_trace(
    place: Place,
    submit: FakeSubmit,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    traced: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("capstan.airflow.dags.defaults.RETRIES", 0)
    submit.answers({"exit": code, "result": error()})
    assert place.run(CAPTURE).state == "failed"
    printed = capsys.readouterr().out
    assert ("Traceback" in printed) is traced
    assert ("Failed, and not tried again: CAP-X: what is wrong" in printed) is not traced


def instance(dag_id: str, task_id: str) -> TaskInstance:
    with create_session() as session:
        actual = session.scalars(
            select(TaskInstance)
            .where(TaskInstance.dag_id == dag_id, TaskInstance.task_id == task_id)
            .order_by(TaskInstance.start_date.desc())
        ).first()
        assert actual is not None
        return actual


@pytest.mark.parametrize(
    ("answers", "state", "tries"),
    [
        ([{"exit": 1, "result": error()}], "failed", 1),
        pytest.param([{"exit": 2, "result": error()}], "failed", 1, marks=pytest.mark.rest),
        pytest.param([{"exit": 4, "result": error()}], "failed", 1, marks=pytest.mark.rest),
        ([{"exit": 5, "result": error()}], "failed", 3),
    ],
)
def test_a_dag_run_retries_what_can_change(
    place: Place,
    submit: FakeSubmit,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[Mapping[str, object]],
    state: str,
    tries: int,
) -> None:
    monkeypatch.setattr("capstan.airflow.dags.defaults.RETRY_DELAY", timedelta(0))
    submit.answers(*answers)
    assert place.run(CAPTURE).state == state
    assert len(submit.calls) == tries
    assert instance(CAPTURE, "capture").state == TaskInstanceState.FAILED


def test_a_capture_tells_its_asset_and_the_form(
    place: Place, submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.airflow.lake_queries.worker_labels", lambda *_: ["a", "b"])
    submit.answers({"exit": 0, "result": DONE})
    assert place.run(CAPTURE).state == "success"
    with create_session() as session:
        event = session.scalars(select(AssetEvent).order_by(AssetEvent.id.desc())).first()
        assert event is not None
        assert event.uri == "capstan://streams/little"
        assert event.extra["cut"] == 3
        assert event.extra["frontier"] == ["2024-05-01"]
    assert json.loads((place.lake / "labels.json").read_text()) == {"little": ["a", "b"]}


def test_capturing_tells_what_the_result_has(
    place: Place, submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, execute: Any, context: Any
) -> None:
    monkeypatch.setattr("capstan.airflow.lake_queries.worker_labels", lambda *_: [])
    submit.answers({"exit": 0, "result": DONE})
    where = context()
    task = CaptureOperator(task_id="t", settings=read_settings(DAGS / "any.py"), stream="little")
    assert execute(task, where) == DONE
    [event] = where["outlet_events"].values()
    assert event.extra["records"] == 7
    assert submit.calls[0]["request"] == {"stream": "little"}
