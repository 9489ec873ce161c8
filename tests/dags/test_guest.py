"""Capstan as a guest: its operators, task group and DAGs in DAG files of somebody else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capstan.airflow import AuditOperator, BackfillOperator, CaptureOperator
from capstan.scaffold import write_project

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import FakeSubmit, Place

FILE = """
from airflow.sdk import DAG

from capstan.airflow import (
    AuditOperator, BackfillOperator, CaptureOperator, CapstanTaskGroup, FrontierSensor,
    ReplayOperator,
)

with DAG("theirs", schedule=None, default_args={"owner": "ada", "pool": "big", "queue": "q"}):
    captured = CaptureOperator(task_id="captured", stream="little")
    ready = FrontierSensor(task_id="ready", stream="little", until="{{ data_interval_end }}")
    one = ReplayOperator(task_id="one", stream="little", target="one", workers=["a"])
    two = ReplayOperator(task_id="two", stream="little", target="{{ params.into }}",
                         since="{{ ds }}", pool="small")
    first = CapstanTaskGroup("first", target="three", fields={"stream": "little"})
    second = CapstanTaskGroup("second", target="four", fields={"stream": "little"})
    filled = BackfillOperator(task_id="filled", replay="by_day")
    audited = AuditOperator(task_id="audited", runs="{{ ti.xcom_pull('one')['run'] }}")
    captured >> ready >> [one, two] >> first >> second >> filled >> audited
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "dags" / "theirs.py"
    path.parent.mkdir()
    path.write_text(FILE, encoding="utf-8")
    return path


def test_operators_sensors_and_groups_stand_in_one_dag(place: Place, file: Path) -> None:
    bag = place.bag(file)
    assert bag.import_errors == {}
    dag = bag.dags["theirs"]
    parts = ("plan", "replay", "approve", "publish", "certificate")
    groups = {f"{group}.{part}" for group in ("first", "second") for part in parts}
    flat = {"captured", "ready", "one", "two", "filled", "audited"}
    assert set(dag.task_ids) == groups | flat
    assert {dag.get_task(name).owner for name in dag.task_ids} == {"ada"}
    assert {dag.get_task(name).queue for name in flat} == {"q"}
    pools = {name: dag.get_task(name).pool for name in ("captured", "one", "two", "filled")}
    assert pools == {"captured": "big", "one": "big", "two": "small", "filled": "big"}
    for name in ("one", "two"):
        assert {"stream", "target", "workers", "since", "until", "lake", "streams"} <= set(
            dag.get_task(name).template_fields
        )


def test_all_dags_take_what_dags_take(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    write_project(tmp_path / "project", airflow=folder)
    monkeypatch.delenv("CAPSTAN_STREAMS")
    bag = place.bag(folder)
    assert bag.import_errors == {}
    assert "capstan_capture__orders" in bag.dags and "capstan_backfill__revenue_by_day" in bag.dags
    (folder / "capstan_dags.py").write_text(
        "from capstan.airflow import capstan_dags\n"
        "globals().update(capstan_dags(__file__, prefix='sales_', tags=['sales'], pool='big',\n"
        "    default_args={'owner': 'ada', 'executor_config': {'a': 1}}, kinds=['capture']))\n",
        encoding="utf-8",
    )
    [(name, dag)] = place.bag(folder).dags.items()
    task = dag.get_task("capture")
    assert (name, dag.tags) == ("sales_capture__orders", {"capstan", "capture", "sales"})
    assert (task.owner, task.pool, task.executor_config) == ("ada", "big", {"a": 1})


def test_a_mistake_is_the_import_error_of_one_file(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    write_project(tmp_path / "project", airflow=folder)
    monkeypatch.delenv("CAPSTAN_STREAMS")
    streams = folder / "streams.yaml"
    streams.write_text(
        streams.read_text(encoding="utf-8").replace("late: dead-letter", "late: never"),
        encoding="utf-8",
    )
    bag = place.bag(folder)
    [(path, error)] = bag.import_errors.items()
    assert path.endswith("capstan_declarations.py") and "streams.orders.late" in error
    assert "capstan_maintain" in bag.dags


@pytest.mark.parametrize(
    ("make", "request_"),
    [
        (
            lambda: CaptureOperator(task_id="t", stream="little", reseat=True),
            {"stream": "little", "reseat": True},
        ),
        (
            lambda: BackfillOperator(
                task_id="t", replay="by_day", since="2024-05-01", fields={"chunk": 2}
            ),
            {"replay": "by_day", "since": "2024-05-01", "until": None, "chunk": 2},
        ),
        (lambda: AuditOperator(task_id="t", runs="one-1"), {"audits": [{"run": "one-1"}]}),
        (
            lambda: AuditOperator(task_id="t", stream="little", table="one"),
            {"stream": "little", "table": "one"},
        ),
    ],
)
def test_what_an_operator_is_given_is_the_request(
    place: Place,
    submit: FakeSubmit,
    execute: Any,
    context: Any,
    make: Callable[[], Any],
    request_: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("capstan.airflow.lake_queries.require_moving", lambda *_: None)
    monkeypatch.setattr("capstan.airflow.lake_queries.worker_labels", lambda *_: ["a"])
    submit.answers({"exit": 0, "result": {"stream": "little", "runs": []}})
    execute(make(), context())
    assert submit.calls[0]["request"] == request_


def test_a_task_may_name_a_lake_of_its_own(
    place: Place, submit: FakeSubmit, execute: Any, context: Any, tmp_path: Path
) -> None:
    other, streams = tmp_path / "other", tmp_path / "other.yaml"
    streams.write_text("streams: {}\n", encoding="utf-8")
    submit.answers({"exit": 0, "result": {"runs": []}})
    operator = BackfillOperator(task_id="t", replay="by_day", lake=str(other), streams=str(streams))
    execute(operator, context())
    arguments: Any = submit.calls[0]["arguments"]
    assert arguments[arguments.index("--lake") + 1] == str(other)
    assert arguments[arguments.index("--streams") + 1] == str(streams)
