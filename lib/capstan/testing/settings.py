"""Settings that make a Spark driver small: what all tests, and the drivers they kill, run with."""

from __future__ import annotations

from capstan.runtime import jvm

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
    # To interpret a projection of a few rows costs a quarter less than to generate and compile it.
    # Whole stages still are, as everywhere.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Spark settings of a session over two cores that does little work."""

LASTING = {**SHRUNK, jvm.OPTIONS: _SMALL}
"""The same of one that many tests share: after three minutes better code takes a fifth less."""

MASTER = "local[2]"
"""The Spark master of all tests."""
