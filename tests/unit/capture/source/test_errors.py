"""Errors of a capture's query that come from its source: damaged files, missing brokers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from capstan.capture.source.errors import broker_gone, file_damaged, source_moved
from capstan.capture.source.source import read_source
from capstan.core.config import Source
from capstan.errors import InvalidRequestError, SystemFailureError
from tests.support.sample_streams import little_stream

TAPE = "/lake/streams/little"
FILE = "/data/little/part-2.parquet"
QUERY = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {} SQLSTATE: KD001\n"
    "\tat java.base/java.lang.Thread.run(Thread.java:840)"
)
READING = "[FAILED_READ_FILE.{}] Encountered error while reading file file:{}. {}"


@pytest.mark.parametrize("kind", ["CANNOT_READ_FILE_FOOTER", "FILE_NOT_EXIST", "NO_HINT"])
def test_a_damaged_file_of_the_source_is_named_with_a_remedy(kind: str) -> None:
    actual = file_damaged(
        "little", TAPE, RuntimeError(QUERY.format(READING.format(kind, FILE, "")))
    )
    assert isinstance(actual, SystemFailureError)
    assert (actual.code, actual.fields) == ("CAP-DAMAGED", {"stream": "little", "path": FILE})
    assert actual.message == f"stream little: a file of the source cannot be read: {FILE}"
    assert "under the same name" in actual.hint


@pytest.mark.parametrize(
    "text",
    [
        # Of the tape itself, of which a copy is another matter.
        READING.format("NO_HINT", f"{TAPE}/records/part-0.parquet", ""),
        "Permission denied: '/data/little/part-2.parquet'",
        "a file that is not a Parquet file",
        "[DIVIDE_BY_ZERO] Division by zero.",
    ],
)
def test_other_errors_are_not_damage(text: str) -> None:
    assert file_damaged("little", TAPE, RuntimeError(QUERY.format(text))) is None


def test_files_that_are_elsewhere_are_told_with_both_places() -> None:
    moved = "Wrong basePath file:/copy/source for the root path: file:/data/source/a.parquet"
    actual = source_moved("little", RuntimeError(QUERY.format(moved)))
    assert actual is not None
    assert (actual.code, actual.exit_code) == ("CAP-SOURCE-MOVED", 2)
    places = {"path": "/copy/source", "former": "/data/source/a.parquet"}
    assert actual.fields == {"stream": "little", **places}
    assert "source.path" in actual.hint
    assert source_moved("little", RuntimeError(QUERY.format("anything else"))) is None


def test_a_missing_broker_is_recognized() -> None:
    gone = "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node"
    actual = broker_gone("little", RuntimeError(QUERY.format(gone)))
    assert actual is not None
    assert actual.code == "CAP-BROKER"
    assert broker_gone("little", RuntimeError(QUERY.format("anything else"))) is None


@pytest.mark.parametrize(
    ("source", "jars"),
    [
        (Source(format="kafka"), "kafka"),
        (Source(format="parquet", path="s3a://bucket/orders"), "s3"),
    ],
)
def test_a_source_without_its_connector_has_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Source, jars: str
) -> None:
    monkeypatch.setenv("CAPSTAN_HOME", str(tmp_path))
    # A session that cannot read anything.
    session, stream = SimpleNamespace(), little_stream(tmp_path, source=source)
    with pytest.raises(
        InvalidRequestError, match="CAP-SOURCE: stream little: the source"
    ) as refused:
        read_source(session, stream)  # type: ignore[arg-type]
    assert refused.value.hint == f"run `make {jars}` first"
    # With a connector that is there, the fault is another one.
    other = Source(format="parquet", path="abfss://container@account/orders")
    with pytest.raises(InvalidRequestError) as refused:
        read_source(session, little_stream(tmp_path, source=other))  # type: ignore[arg-type]
    assert refused.value.hint == "check source in streams.yaml"
