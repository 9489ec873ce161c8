"""Jobs that operators of others submit: a shell, and the provider's `SparkSubmitOperator`.

And jobs in cluster mode, on a real YARN.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from airflow.models.asset import AssetEvent
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from capstan.airflow import ReplayOperator
from capstan.airflow.tasks.attempt_name import attempt_name
from capstan.cli.scaffold import write_project
from capstan.spark.setup.jars import spark_jars
from capstan.spark.setup.spark_series import installed_series
from capstan.storage.job_attempts import JobAttempt
from capstan.storage.lake import Lake
from capstan.storage.ledger.runs import Step, read_histories
from tests.dags.conftest import Place, Task, use
from tests.support.docs import blocks, page
from tests.support.driver_under_test import PATIENCE
from tests.support.yarn_cluster import HADOOP, Yarn, yarn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.models.dagrun import DagRun

LAKE = "/data/lake"
PARTS = """
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from capstan.airflow import ResultOperator, attempt_template

LAKE = "/data/lake"
ATTEMPT = attempt_template("job")

with DAG("broken", schedule=None, default_args={"retries": 0}):
    job = BashOperator(task_id="job", bash_command=COMMAND)
    job >> ResultOperator(task_id="result", lake=LAKE, attempt=ATTEMPT, retries=3)
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The project of `capstan init`; its DAG folder has the DAGs of the documentation."""
    place = Place(tmp_path_factory.mktemp("shop"))
    place.lake.mkdir()
    write_project(place.root / "project", airflow=place.root / "dags")
    for number, block in enumerate(blocks(page("on-your-cluster"), "python")):
        text = block.replace(LAKE, str(place.lake))
        (place.root / "dags" / f"docs_{number}.py").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        use(place, patch)
        patch.delenv("CAPSTAN_LAKE")
        patch.delenv("CAPSTAN_CONFIG")
        programs = Path(sys.executable).parent
        patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        yield place


@pytest.fixture(scope="module")
def captured(shop: Place) -> Place:
    """The same, with the orders on tape."""
    command = [sys.executable, "-m", "capstan.jobs", "capture", "--request", '{"stream": "orders"}']
    streams = shop.root / "dags" / "streams.yaml"
    where = ["--lake", str(shop.lake), "--config", str(streams)]
    subprocess.run([*command, *where], check=True, capture_output=True)
    return shop


def run(place: Place, dag_id: str, monkeypatch: pytest.MonkeyPatch) -> DagRun:
    from airflow.dag_processing import dagbag

    [file] = [
        path for path in (place.root / "dags").glob("*.py") if f'DAG("{dag_id}"' in path.read_text()
    ]
    bag = place.bag(file)
    assert bag.import_errors == {}
    monkeypatch.setattr(dagbag, "BundleDagBag", lambda **_: place.bag(file))
    return bag.dags[dag_id].test()


def states(run: DagRun) -> dict[str, str]:
    return {task.task_id: str(task.state) for task in run.get_task_instances()}


def xcom(run: DagRun, task: str) -> Any:
    with create_session() as session:
        actual = session.scalars(
            select(XComModel).where(
                XComModel.run_id == run.run_id,
                XComModel.dag_id == run.dag_id,
                XComModel.task_id == task,
                XComModel.key == "return_value",
            )
        ).one()
        return XComModel.deserialize_value(actual)


def broken(place: Place, command: str, monkeypatch: pytest.MonkeyPatch) -> DagRun:
    text = PARTS.replace("COMMAND", command).replace(LAKE, str(place.lake))
    (place.root / "dags" / "broken.py").write_text(text, encoding="utf-8")
    return run(place, "broken", monkeypatch)


def test_a_refused_job_is_not_retried(
    shop: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request = json.dumps({"stream": "nowhere"})
    program = f"python -m capstan.jobs verify --request '{request}'"
    command = f"{program!r} f' --lake {{LAKE}} --attempt {{ATTEMPT}}'"
    ended = broken(shop, command, monkeypatch)
    assert states(ended) == {"job": "failed", "result": "failed"}
    answer = xcom(ended, "result")
    assert answer["error"] == "CAP-STREAM"
    [task] = [task for task in ended.get_task_instances() if task.task_id == "result"]
    assert task.try_number == 1
    assert f"CAP-STREAM: {answer['message']}" in caplog.text


def test_a_killed_job_leaves_no_result_for_its_run(
    shop: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = broken(shop, "'kill -KILL $$'", monkeypatch)
    assert states(ended) == {"job": "failed", "result": "failed"}
    assert "CAP-RESULT: job failed, and the job has left no result at" in caplog.text


@pytest.mark.rest
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("dag_id", ["oslo_by_shell", "oslo_by_submit"])
def test_a_replay_is_submitted_by_others(
    captured: Place, dag_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = ",".join(str(jar) for jar in spark_jars())
    (tmp_path / "spark-defaults.conf").write_text(f"spark.jars {jars}\n", encoding="utf-8")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    ended = run(captured, dag_id, monkeypatch)
    assert states(ended) == dict.fromkeys(("plan", "job", "result"), "success")
    certificate = xcom(ended, "result")
    assert certificate["audit"]["passed"] and certificate["published"]
    assert certificate["workers"] == ["oslo"]
    table = deltalake.DeltaTable(captured.lake / "tables" / "oslo").to_pyarrow_table()
    assert table.num_rows == certificate["records"] > 0
    with create_session() as session:
        last = session.scalars(select(AssetEvent).order_by(AssetEvent.id.desc()).limit(1)).one()
        assert (last.uri, last.source_task_id) == ("capstan://tables/oslo", "result")
        assert last.extra["fingerprint"] == certificate["fingerprint"]


@pytest.mark.rest
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_replay_that_outlives_its_task_is_taken_by_a_trigger(
    captured: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run(captured, "oslo_deferred", monkeypatch)
    tasks = ("complete", "plan", "job", "result")
    assert states(ended) == dict.fromkeys(tasks, "success")
    certificate = xcom(ended, "result")
    table = deltalake.DeltaTable(captured.lake / "tables" / "oslo_later").to_pyarrow_table()
    assert table.num_rows == certificate["records"] > 0


@pytest.mark.rest
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_any_job_has_a_result(captured: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(captured, "verify_by_shell", monkeypatch)
    assert states(ended) == {"job": "success", "result": "success"}
    assert xcom(ended, "result")["valid"] is True


# A task of the DAG run of the tests' context, as a worker runs it.
_TRY = """
import sys
from tests.dags.conftest import Events, Task
from airflow.sdk.bases.operator import ExecutorSafeguard
from tests.dags.test_other_operators import far

task = far(sys.argv[1])
ExecutorSafeguard.tracker.set(task)
task.execute({"ti": Task(), "outlet_events": Events(), "task_state_store": None})
"""


def far(lake: str) -> ReplayOperator:
    """A task that waits in its slot for a driver elsewhere."""
    return ReplayOperator(
        task_id="t", lake=lake, stream="orders", target="oslo_killed", until="2026-01-12",
        deploy_mode="cluster",
    )  # fmt: skip


@pytest.fixture
def on_yarn(captured: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yarn]:
    """A cluster, which the connection names."""
    with yarn(tmp_path / "yarn") as cluster:
        for name, value in cluster.environment().items():
            monkeypatch.setenv(name, value)
        spark = {"conn_type": "spark", "host": "yarn"}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
        yield cluster


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(installed_series().hadoop != HADOOP, reason="the jars are of another Hadoop")
def test_a_driver_on_yarn_outlives_its_task(
    captured: Place,
    on_yarn: Yarn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    execute: Any,
    context: Any,
) -> None:
    """The next try waits for the same driver, whose run is published once; a trigger, too."""
    lake = Lake.at(captured.lake)
    attempt = JobAttempt(lake, attempt_name(Task(), "t replay"))
    monkeypatch.setenv("CAPSTAN_CONFIG", str(captured.root / "dags" / "streams.yaml"))
    with (tmp_path / "try.log").open("wb") as log:
        first = subprocess.Popen(
            [sys.executable, "-c", _TRY, str(captured.lake)],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    end = time.monotonic() + PATIENCE
    while not on_yarn.applications() and first.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert len(on_yarn.applications()) == 1, (tmp_path / "try.log").read_text()
    assert attempt.outcome() is None

    certificate = execute(far(str(captured.lake)), context())
    assert certificate["published"] and certificate["audit"]["passed"]
    [application] = on_yarn.applications()
    assert application["name"] == "capstan replay"
    [history] = [h for name, h in read_histories(lake).items() if name.startswith("oslo_killed")]
    assert [row.step for row in history.rows].count(Step.DONE) == 1
    table = deltalake.DeltaTable(captured.lake / "tables" / "oslo_killed").to_pyarrow_table()
    assert table.num_rows == certificate["records"] > 0

    ended = run(captured, "oslo_on_cluster", monkeypatch)
    assert states(ended) == {"oslo": "success"}
    assert xcom(ended, "oslo")["published"]
    assert len(on_yarn.applications()) == 2
