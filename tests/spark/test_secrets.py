"""A marked secret in a source's options, with Spark's whole log: it is in no file and no line."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capstan.capture.run import capture
from capstan.core.config import load_config
from capstan.errors import InvalidRequestError, redaction
from capstan.spark.log_lines import masked_logs
from capstan.storage.lake import Lake
from tests.support.sample_streams import lay, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = 'm4rk$of"a%secret'
PIECE = "m4rk"
STREAMS = """
streams:
  sound:
    source:
      format: parquet
      path: "{here}/source"
      options: {maxFilesPerTrigger: 1, fs.s3a.secret.key: "{env:MARKED}"}
    workers: {by: column, column: place}
    time: {domain: event, column: at, every: 1 hour, lateness: 2 hours}
  failing:
    source:
      format: parquet
      path: "{here}/source"
      options: {maxFilesPerTrigger: "{env:MARKED}"}
    workers: {by: column, column: place}
    time: {domain: event, column: at, every: 1 hour, lateness: 2 hours}
"""
_PROGRAM = """
import sys
from capstan.cli import main
shared = ["--lake", "lake", "--config", "streams.yaml", "--json", "--debug"]
sys.exit(sum(main([*shared, "capture", stream]) for stream in ("sound", "failing")))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lay(tmp_path / "source", "part", rows(range(6)))
    (tmp_path / "streams.yaml").write_text(STREAMS, encoding="utf-8")
    return tmp_path


def files_with_mark(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if PIECE.encode() in path.read_bytes()]


def test_a_secret_is_in_no_file_and_no_line(folder: Path) -> None:
    own = {"MARKED": MARK, "CAPSTAN_LOG": "json", "CAPSTAN_LOG_LEVEL": "DEBUG"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=folder,
        env={**os.environ, **own, "CAPSTAN_DRIVER_MEMORY": "1g", "CAPSTAN_MASTER": "local[1]"},
        capture_output=True,
        check=False,
    )
    (folder / "out").write_bytes(done.stdout)
    (folder / "err").write_bytes(done.stderr)
    assert done.returncode == 2, done.stderr[-2000:]
    captured, refused = map(json.loads, done.stdout.decode().splitlines())
    assert captured["records"] == 6
    assert refused["error"] == "CAP-SOURCE"
    assert "Invalid value '***' for option 'maxFilesPerTrigger'" in refused["message"]
    # Spark shows the options of a source in its log, and those that it rejects in an exception.
    assert b"fs.s3a.secret.key -> ***" in done.stderr
    assert b"IllegalArgumentException: Invalid value '***'" in done.stderr
    assert files_with_mark(folder) == []
    assert list((folder / "lake").rglob("*.parquet"))


def test_errors_with_secrets_drop_their_causes(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARKED", MARK)
    declared = load_config(folder / "streams.yaml", lake=str(folder / "lake"))
    try:
        with pytest.raises(InvalidRequestError, match="CAP-SOURCE") as caught:
            capture(spark, Lake.at(folder / "lake"), declared.stream("failing"))
        assert not redaction.reveals(caught.value)
    finally:
        redaction._hidden.clear()


def test_calls_to_the_jvm_are_logged_without_secrets(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    redaction.conceal(MARK)
    try:
        with masked_logs(spark, {"a.key"}), caplog.at_level(logging.DEBUG, logger="py4j"):
            rows = spark.read.option("a.key", MARK).format("text")
            assert "***" in caplog.text
            assert PIECE not in caplog.text
            assert rows is not None
            assert "a\\.key" in str(spark.conf.get("spark.sql.redaction.options.regex"))
        assert spark.conf.get("spark.sql.redaction.options.regex") == "(?i)url"
    finally:
        redaction._hidden.clear()
