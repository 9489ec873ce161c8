"""Values of connections in source options: in the job's environment, and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capstan.airflow.operators.jobs import CaptureOperator
from capstan.airflow.settings import read_settings
from capstan.airflow.tasks.failures import TaskRefusedError
from capstan.core.config.loading.secret_references import VARIABLE

if TYPE_CHECKING:
    from conftest import FakeSubmit, Place

DAGS = Path(__file__).parents[2] / "dags"
CAPTURE = "capstan_capture__little"
MARK = "m4rk-of-a-secret"
OPTIONS = """{user: "{conn:shop:login}@{conn:shop:host}",
        key: "{conn:shop:password}/{conn:shop:extra_key}"}"""
DONE = {"stream": "little", "cut": 3, "frontier": ["2024-05-01"], "records": 7, "batches": 1}


@pytest.fixture
def shop(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A lake whose stream has a source with secrets."""
    text = place.streams.read_text(encoding="utf-8")
    declared = text.replace("{maxFilesPerTrigger: 1}", OPTIONS)
    assert declared != text
    place.streams.write_text(declared, encoding="utf-8")
    monkeypatch.setattr("capstan.airflow.lake_queries.worker_labels", lambda *_: [])
    return place


def connect(patch: pytest.MonkeyPatch, **fields: object) -> None:
    connection = {"conn_type": "generic", "host": "broker", "login": f"login-{MARK}"}
    patch.setenv("AIRFLOW_CONN_SHOP", json.dumps({**connection, **fields}))


def test_the_job_has_the_values_and_nothing_else_has(
    shop: Place, submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    connect(monkeypatch, password=f"password-{MARK}", extra={"extra_key": f"extra-{MARK}"})
    submit.answers({"exit": 0, "result": DONE})
    assert shop.run(CAPTURE).state == "success"
    [call] = submit.calls
    environment = call.pop("environment")
    assert isinstance(environment, dict)
    assert json.loads(environment[VARIABLE]) == {
        "conn:shop:login": f"login-{MARK}",
        "conn:shop:host": "broker",
        "conn:shop:password": f"password-{MARK}",
        "conn:shop:extra_key": f"extra-{MARK}",
    }
    assert MARK not in json.dumps(call)
    assert VARIABLE not in os.environ
    assert MARK not in caplog.text
    # XComs and rendered fields are in the database, logs in the home of this Airflow.
    home = Path(os.environ["AIRFLOW_HOME"])
    (submit.folder / "seen").unlink()
    files = [path for folder in (shop.root, home) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if MARK.encode() in path.read_bytes()] == []
    assert (home / "airflow.db") in files


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (None, "connection does not exist"),
        ({"extra": {"extra_key": "x"}}, "{conn:shop:password}, which is empty"),
        ({"password": "p"}, "{conn:shop:extra_key}, which is empty"),
    ],
)
def test_a_reference_without_a_value_is_refused_before_spark(
    shop: Place,
    submit: FakeSubmit,
    monkeypatch: pytest.MonkeyPatch,
    execute: Any,
    context: Any,
    fields: dict[str, object] | None,
    problem: str,
) -> None:
    if fields is not None:
        connect(monkeypatch, **fields)
    task = CaptureOperator(task_id="t", settings=read_settings(DAGS / "any.py"), stream="little")
    with pytest.raises(TaskRefusedError, match="CAP-SECRET") as refused:
        execute(task, context())
    assert problem in str(refused.value)
    assert submit.calls == []
