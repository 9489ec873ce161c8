"""The connection with the credentials of S3: for tasks, their jobs and the pages."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capstan.airflow import connections
from capstan.errors import InvalidRequestError
from capstan.storage import s3_access

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import FakeSubmit, Place

CAPTURE = "capstan_capture__little"
MARK = "m4rk-of-a-key"
DONE = {"stream": "little", "cut": 3, "frontier": ["2024-05-01"], "records": 7, "batches": 1}
KEYS = {"login": f"login-{MARK}", "password": f"password-{MARK}"}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv(connections.VARIABLE, "store")
    monkeypatch.setattr(connections, "_read", None)
    connections.use()
    yield
    s3_access.take_from(None)


def connect(patch: pytest.MonkeyPatch, **fields: object) -> None:
    patch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "aws", **fields}))


def test_the_job_has_the_keys_and_nothing_else_has(
    place: Place, submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    extra = {"region_name": "eu-north-1", "endpoint_url": "http://store:9000",
             "aws_session_token": f"token-{MARK}"}  # fmt: skip
    connect(monkeypatch, **KEYS, extra=extra)
    monkeypatch.setattr("capstan.airflow.lake_queries.worker_labels", lambda *_: [])
    submit.answers({"exit": 0, "result": DONE})
    assert place.run(CAPTURE).state == "success"
    [call] = submit.calls
    environment = call.pop("environment")
    assert isinstance(environment, dict)
    assert {name: value for name, value in environment.items() if name.startswith("AWS_")} == {
        "AWS_ACCESS_KEY_ID": f"login-{MARK}",
        "AWS_SECRET_ACCESS_KEY": f"password-{MARK}",
        "AWS_SESSION_TOKEN": f"token-{MARK}",
        "AWS_REGION": "eu-north-1",
        "AWS_ENDPOINT_URL": "http://store:9000",
        "AWS_ALLOW_HTTP": "true",
    }
    assert MARK not in json.dumps(call)
    assert not [name for name in os.environ if name.startswith("AWS_")]
    assert MARK not in caplog.text
    home = Path(os.environ["AIRFLOW_HOME"])
    (submit.folder / "seen").unlink()
    files = [path for folder in (place.root, home) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if MARK.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (None, "does not exist"),
        ({"conn_type": "http"}, "is of type http, not aws"),
        ({"login": "only"}, "has one of the two keys"),
        ({**KEYS, "extra": {"role_arn": "arn:x"}}, "has role_arn, which Capstan does not use"),
    ],
)
def test_a_connection_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, object] | None, problem: str
) -> None:
    if fields is not None:
        connect(monkeypatch, **fields)
    with pytest.raises(InvalidRequestError, match="CAP-CONNECTION") as refused:
        s3_access.variables()
    assert problem in str(refused.value)
    assert MARK not in str(refused.value)


def test_a_profile_or_a_region_alone_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"profile_name": "shop", "service_config": {"s3": {"endpoint_url": "https://store"}}}
    connect(monkeypatch, extra=extra)
    expected = {"AWS_PROFILE": "shop", "AWS_ENDPOINT_URL": "https://store"}
    assert s3_access.variables() == expected
    monkeypatch.delenv(connections.VARIABLE)
    assert s3_access.variables() == {}
