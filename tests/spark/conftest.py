"""One small Spark session for all tests of this folder: a JVM start costs several seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.session import build_session
from capstan.tape.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

_SHRUNK = {
    # The first compiler alone, and the simplest collector: tests end before better code pays.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of all Spark tests, shrunk to two cores; stopped after the last."""
    session = build_session("capstan-tests", master="local[2]", extra=_SHRUNK)
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake of the test's own, with nothing in it."""
    return Lake.at(tmp_path / "lake")
