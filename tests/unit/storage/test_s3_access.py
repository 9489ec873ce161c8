"""Values that take precedence over the environment on the way to S3."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from capstan.spark.aws_chain import needs_chain
from capstan.storage import s3_access
from capstan.storage.lake import _open

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GIVEN = {
    "AWS_ACCESS_KEY_ID": "one",
    "AWS_SECRET_ACCESS_KEY": "two",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_REGION": "eu-north-1",
    "AWS_ALLOW_HTTP": "true",
}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    s3_access.take_from(lambda: GIVEN)
    yield
    s3_access.take_from(None)


def test_arrow_and_delta_rs_are_told(given: None) -> None:
    filesystem, inside = _open("s3a://bucket/lake/file")
    assert isinstance(filesystem, fs.S3FileSystem)
    assert (inside, filesystem.region) == ("bucket/lake/file", "eu-north-1")
    # Pickling tells what it was made of.
    assert {"one", "two", "127.0.0.1:9", "http"} <= set(
        map(str, filesystem.__reduce__()[1][0].values())
    )
    assert s3_access.storage_options("s3a://bucket/table") == {**s3_access._RETRIES, **GIVEN}
    assert s3_access.storage_options("/data/table") is None
    assert s3_access.storage_options("abfss://container@account/table") is None


def test_another_endpoint_is_another_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    actual = []
    for port in (9, 10, 9):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        actual.append(_open("s3a://bucket/file")[0])
    assert actual[0] is actual[2]
    assert actual[0] is not actual[1]


def test_child_processes_get_only_these_credentials(given: None) -> None:
    variables = s3_access.child_variables()
    assert {name: value for name, value in variables.items() if value is not None} == GIVEN
    assert {name for name, value in variables.items() if value is None} == {
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
    }


def test_without_a_source_the_environment_decides() -> None:
    assert s3_access.child_variables() == {}
    chain = {"AWS_FORCE_CREDENTIAL_LOAD": "true"}
    options = s3_access.storage_options("s3a://bucket/table")
    assert options in (s3_access._RETRIES, {**s3_access._RETRIES, **chain})


def test_where_there_is_a_profile(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert not needs_chain({})
    assert not needs_chain(home)
    assert needs_chain({"AWS_PROFILE": "shop"})
    assert needs_chain({"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"})
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").touch()
    assert needs_chain(home)
    assert not needs_chain({**home, "AWS_ACCESS_KEY_ID": "one"})
