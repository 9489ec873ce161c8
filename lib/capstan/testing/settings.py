"""Settings that make a Spark driver small: what all tests, and the drivers they kill, run with."""

from __future__ import annotations

SHRUNK = {
    # The first compiler alone, and the simplest collector: tests end before better code pays. A
    # heap that begins small is collected every half second.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xms1g -Xmn600m"
    ),
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Delta keeps 10,000 tables, each with a plan of a megabyte. Tests make some thousand, look at
    # each for a moment, and would spend the last of their half hour on collecting garbage.
    "spark.databricks.delta.delta.log.cacheSize": "64",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # To interpret a projection of a few rows costs a quarter less than to generate and compile it.
    # Whole stages still are, as everywhere.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Spark settings of a session over two cores that does little work."""

MASTER = "local[2]"
"""The Spark master of all tests."""
