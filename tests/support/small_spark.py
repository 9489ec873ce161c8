"""Settings that make a Spark driver small: what all tests, and the drivers they kill, run with."""

from __future__ import annotations

from capstan.spark import jvm

# The simplest collector; and a heap that begins small is collected every half second.
_SMALL = "-XX:+UseSerialGC -Xshare:auto -Xms1g -Xmn600m"

SHRUNK = {
    # The first compiler alone: who is about to be killed ends before better code pays.
    jvm.OPTIONS: f"-XX:TieredStopAtLevel=1 {_SMALL}",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Delta keeps 10,000 tables, each with a plan of a megabyte. Tests make some thousand, look at
    # each for a moment, and would spend the last of their half hour on collecting garbage.
    "spark.databricks.delta.delta.log.cacheSize": "64",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # To interpret a plan of a few rows costs a third less than to generate Java and compile it, and
    # to plan it again as it runs. The main job of the README runs as users have it.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}
"""Spark settings of a session over two cores that does little work."""

_LEAN = "-XX:TieredStopAtLevel=1 -Xshare:auto"

SUBMITTED = {
    # Of the driver's JVM: what `spark-submit` is given besides wins over the settings among them.
    "SPARK_SUBMIT_OPTS": " ".join(
        [
            f"{_LEAN} -Xms1g -Xmn600m",
            *(f"-D{key}={value}" for key, value in SHRUNK.items() if "driver" not in key),
        ]
    ),
    # Of the one that puts the command line of the driver's together.
    "SPARK_LAUNCHER_OPTS": f"{_LEAN} -XX:+UseSerialGC",
}
"""Environment of an Airflow whose tasks submit apps that do little work, with 1 GB each."""

LASTING = {**SHRUNK, jvm.OPTIONS: _SMALL}
"""The same of one that many tests share: after three minutes better code takes a fifth less."""

MASTER = "local[2]"
"""The Spark master of all tests."""
