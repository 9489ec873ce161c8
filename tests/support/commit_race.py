"""A writer that races others for the entries of one Delta log on S3.

As a program, it writes the next version for each line on standard input, and prints whether it won:

    python -m tests.support.commit_race CLASS TABLE NAME

CLASS is the log store. The endpoint is that of the `AWS_*` variables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError

from capstan.spark.s3_settings import s3_settings
from capstan.spark.setup.jars import spark_jars
from capstan.spark.setup.java import find_java
from capstan.spark.setup.local_submit import pyspark_home

_LOST = "FileAlreadyExistsException"


def entry(table: str, version: int) -> str:
    """The path of an entry in the log of a table."""
    return f"{table}/_delta_log/{version:020}.json"


def race(
    store: str, table: str, writers: int, versions: int, environment: Mapping[str, str]
) -> list[list[int]]:
    """Let writers race for each version, all at once.

    Returns:
        For each writer, the versions that it was told it has written.
    """
    started = [_start(store, table, str(number), environment) for number in range(writers)]
    won: list[list[int]] = [[] for _ in started]
    try:
        for process in started:
            assert _answer(process) == "ready"
        for version in range(versions):
            for process in started:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            for number, process in enumerate(started):
                if _answer(process) == "won":
                    won[number].append(version)
        return won
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _start(
    store: str, table: str, name: str, environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.commit_race", store, table, name],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A warning of the connector's for each lost race.
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line in ("ready", "won", "lost"), line or f"a writer ended with {process.wait()}"
    return line


def main(store_name: str, table: str, name: str) -> None:
    """Write the next entry for each line of standard input, until it ends."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    os.environ["SPARK_HOME"] = str(pyspark_home())
    os.environ["JAVA_HOME"] = str(find_java().home)
    conf = SparkConf(loadDefaults=False)
    conf.set("spark.driver.extraClassPath", os.pathsep.join(map(str, spark_jars())))
    conf.set("spark.driver.memory", "512m")
    gateway: Any = launch_gateway(conf)  # type: ignore[no-untyped-call]
    java = gateway.jvm
    hadoop = java.org.apache.hadoop.conf.Configuration()
    for key, value in s3_settings(os.environ).items():
        hadoop.set(key.removeprefix("spark.hadoop."), value)
    kind = java.java.lang.Class.forName(store_name)
    store = kind.getConstructors()[0].newInstance(_array(gateway, hadoop))
    print("ready", flush=True)
    for version, _ in enumerate(sys.stdin):
        actions = java.java.util.ArrayList()
        actions.add(json.dumps({"commitInfo": {"writer": name}}))
        path = java.org.apache.hadoop.fs.Path(entry(table, version))
        try:
            store.write(path, actions.iterator(), False, hadoop)
            print("won", flush=True)
        except Py4JJavaError as error:
            if _LOST not in str(error.java_exception.toString()):
                raise
            print("lost", flush=True)
    gateway.shutdown()


def _array(gateway: Any, item: object) -> object:
    array = gateway.new_array(gateway.jvm.java.lang.Object, 1)
    array[0] = item
    return array


if __name__ == "__main__":
    main(*sys.argv[1:])
