"""The session: what it is set to, what it leaves behind, and what it prints."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from capstan.cli.doctor import diagnose
from capstan.errors import InvalidRequestError
from capstan.spark.log_lines import marked
from capstan.spark.session import build_session, is_local
from capstan.spark.setup.jars import delta_jars, spark_jars
from capstan.telemetry.instrumentation import emit

PROGRAM = """
from capstan.spark.session import build_session
spark = build_session({arguments})
spark.range(3).write.format("delta").save("table")
spark.sql("create table without_a_place (a int) using delta")
context = spark.sparkContext
print(context.master, context.appName, spark.conf.get("spark.sql.session.timeZone"))
"""


def run(folder: Path, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "CAPSTAN_DRIVER_MEMORY": "1g", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_session_reads_and_writes_delta_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark.sql("select timestamp'2013-03-01 05:00:00Z' at").write.format("delta").save(path)
    rows = spark.read.format("delta").load(path).collect()
    assert rows[0]["at"].astimezone(dt.UTC) == dt.datetime(2013, 3, 1, 5, tzinfo=dt.UTC)
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_python_workers_run_this_interpreter_in_utc(spark: SparkSession) -> None:
    def where(_split: int, _rows: object) -> list[tuple[str, str]]:
        return [(sys.executable, os.environ["TZ"])]

    actual = spark.sparkContext.parallelize([1], 1).mapPartitionsWithIndex(where).collect()
    assert actual == [(sys.executable, "UTC")]


def test_the_settings_are_those_that_were_measured(spark: SparkSession) -> None:
    expected = {
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.databricks.delta.autoCompact.enabled": "false",
        "spark.databricks.delta.optimizeWrite.enabled": "false",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.catalogImplementation": "in-memory",
    }
    assert {key: spark.conf.get(key) for key in expected} == expected
    jars = spark.conf.get("spark.driver.extraClassPath")
    assert jars is not None
    assert jars.split(":") == [str(jar) for jar in spark_jars()]


def test_sql_means_the_same_on_any_machine(spark: SparkSession) -> None:
    text = "${env:PATH} ${spark.app.name}"
    assert spark.sql(f"SELECT '{text}' AS said").collect() == [(text,)]
    assert spark.range(1).selectExpr(f"'{text}' AS said").collect() == [(text,)]


def test_a_second_session_is_the_first(spark: SparkSession) -> None:
    again = build_session("other", master="local[7]")
    assert again.sparkContext is spark.sparkContext
    assert again.sparkContext.appName == "capstan-tests"


def test_the_doctor_tries_spark_and_leaves_the_session_running(spark: SparkSession) -> None:
    actual = [check for check in diagnose(None, deep=True) if check.subject == "Spark session"]
    assert [check.ok for check in actual] == [True]
    assert spark.range(2).count() == 2


def test_spark_s_own_lines_are_of_the_run_that_is_told(spark: SparkSession) -> None:
    context = spark.sparkContext

    def marks() -> tuple[object, ...]:
        properties = context._jvm.java.lang.System
        return (
            properties.getProperty("capstan.run"),
            properties.getProperty("capstan.about"),
            *(context.getLocalProperty(f"mdc.{name}") for name in ("run", "attempt", "stream")),
        )

    with marked(spark):
        emit("replay.verify", stream="s")
        emit("replay.claim", run="t-0a0a0a0a-1", attempt=2)
        about = '"run": "t-0a0a0a0a-1", "attempt": 2, "stream": "s"'
        assert marks() == ("[t-0a0a0a0a-1 2] ", about, "t-0a0a0a0a-1", "2", "s")
    nothing = '"run": null, "attempt": null, "stream": null'
    assert marks() == ("", nothing, None, None, None)


@pytest.mark.slow
def test_a_program_prints_only_its_result(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    working = tmp_path / "working"
    temporary.mkdir()
    working.mkdir()
    program = PROGRAM.format(arguments="'mine'")
    done = run(working, [sys.executable, "-c", program], TMPDIR=str(temporary))
    assert (done.returncode, done.stdout, done.stderr) == (0, "local[*] mine UTC\n", "")
    assert [path.name for path in working.iterdir()] == ["table"]
    assert list(temporary.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.slow
def test_what_spark_submit_was_given_stands(tmp_path: Path) -> None:
    import pyspark

    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(arguments="'mine', master='local[3]'"), encoding="utf-8")
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    given = ["--master", "local[1]", "--name", "given", "--conf", "spark.sql.session.timeZone=GMT"]
    jars = ",".join(str(jar) for jar in delta_jars())
    done = run(tmp_path, [submit, *given, "--jars", jars, str(program)])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "local[1] given GMT\n"
    bare = run(tmp_path, [submit, *given, str(program)])
    assert bare.returncode != 0
    # spark-submit sends all that Python prints to standard output.
    assert "CAP-JARS: Spark was submitted without Delta's jars" in bare.stdout


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CAPSTAN_LOG_LEVEL", "LOUD"),
        ("CAPSTAN_DRIVER_MEMORY", "much"),
        ("CAPSTAN_DRIVER_MEMORY", "4"),
        ("CAPSTAN_DRIVER_MEMORY", "0g"),
    ],
)
def test_unknown_settings_are_refused_before_a_jvm(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capstan.spark.session.SparkContext._active_spark_context", None)
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequestError, match="CAP-SETTING") as caught:
        build_session()
    assert caught.value.fields == {"field": name}
    assert value in caught.value.message


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[4]", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("k8s://https://host", False),
    ],
)
def test_which_masters_are_local(master: str, local: bool) -> None:
    assert is_local(master) is local
