"""Settings of a small Spark driver, for all tests and the drivers they kill."""

from __future__ import annotations

from capstan.spark.setup import jvm

# The simplest collector; a heap that starts small would be collected every half second.
_SMALL = "-XX:+UseSerialGC -Xshare:auto -Xms1g -Xmn600m"

SHRUNK = {
    # Only the first compiler: short-lived drivers end before better code pays.
    jvm.OPTIONS: f"-XX:TieredStopAtLevel=1 {_SMALL}",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Delta caches 10,000 tables, each with a plan of a megabyte. Tests create some thousand tables,
    # use each for a moment, and would spend their last half hour on garbage collection.
    "spark.databricks.delta.delta.log.cacheSize": "64",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # Interpreting a plan of a few rows costs a third less than generating and compiling Java, or
    # replanning it at run time. The README's main job runs with the users' settings.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}
"""Spark settings of a session on two cores that does little work."""

_LEAN = "-XX:TieredStopAtLevel=1 -Xshare:auto"

SUBMITTED = {
    # For the driver's JVM: these override the settings passed to `spark-submit`.
    "SPARK_SUBMIT_OPTS": " ".join(
        [
            f"{_LEAN} -Xms1g -Xmn600m",
            *(f"-D{key}={value}" for key, value in SHRUNK.items() if "driver" not in key),
        ]
    ),
    # For the JVM that assembles the driver's command line.
    "SPARK_LAUNCHER_OPTS": f"{_LEAN} -XX:+UseSerialGC",
}
"""Environment of an Airflow whose tasks submit small jobs, with 1 GB each."""

LASTING = {**SHRUNK, jvm.OPTIONS: _SMALL}
"""The same for a shared Airflow: after three minutes, better code saves a fifth of the time."""

MASTER = "local[2]"
"""Spark master of all tests."""
