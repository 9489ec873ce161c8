"""A session of Spark Connect is refused before anything is written; what needs no JVM works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import capstan
from capstan.cli.scaffold import write_project
from capstan.spark.setup.java import find_java, spark_home

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PROGRAM = """
import json, sys
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession

theirs = SparkSession.builder.remote("local[1]").getOrCreate()
assert theirs.range(3).count() == 3
import capstan

run = sys.argv[1]
into = capstan.capture_into(
    "clicks", lake="lake", workers={"by": "column", "column": "value"}, time={"domain": "epoch"}
)
calls = {
    "capture": lambda ctx: ctx.capture("orders"),
    "plan": lambda ctx: ctx.plan("orders", into="t", compare=True),
    "replay": lambda ctx: ctx.replay("orders", into="t"),
    "audit": lambda ctx: ctx.audit(run),
    "audit_table": lambda ctx: ctx.audit_table("orders", "t"),
    "backfill": lambda ctx: ctx.backfill("revenue_by_day"),
    "publish": lambda ctx: ctx.publish(run),
    "rollback": lambda ctx: ctx.rollback(run),
    "maintain": lambda ctx: ctx.maintain(),
    "table": lambda ctx: ctx.table("t"),
    "runs": lambda ctx: ctx.runs(),
    "gaps": lambda ctx: ctx.gaps("revenue_by_day"),
    # Spark Connect sends the function to its server, and calls it there.
    "capture_into": lambda ctx: cloudpickle.loads(cloudpickle.dumps(into))(theirs.range(1), 0),
}

def files():
    return sorted(str(path) for path in Path("lake").rglob("*"))

before, ended = files(), {}
for given in (theirs, None):
    ctx = capstan.Context("lake", config="dags/streams.yaml", spark=given)
    for name, call in calls.items():
        try:
            call(ctx)
            code = "done"
        except capstan.CapstanError as error:
            code = error.code
        ended.setdefault(name, []).append(code)
assert files() == before
print(json.dumps(ended))
"""


@pytest.mark.nightly
def test_every_verb_that_needs_spark_refuses_a_connect_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    for package in ("grpc", "grpc_status", "pandas"):
        pytest.importorskip(package)
    write_project(tmp_path)
    where = tmp_path / "lake"
    with capstan.Context(where, config=tmp_path / "dags" / "streams.yaml", spark=spark) as ctx:
        ctx.capture("orders")
        run = ctx.replay("orders", into="t", until="2026-01-12").name
    own = {"JAVA_HOME": str(spark_home(find_java())), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, run],
        cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    jvmless = {name: codes for name, codes in ended.items() if codes == ["done", "done"]}
    assert set(jvmless) == {"runs", "gaps"}
    refused = [codes for name, codes in ended.items() if name not in jvmless]
    assert refused == [["CAP-CONNECT", "CAP-CONNECT"]] * 11
