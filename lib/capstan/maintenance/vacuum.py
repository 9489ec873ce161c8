"""Vacuum and log checkpoints of tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from capstan.instrumentation import emit
from capstan.storage import delta
from capstan.storage.lake import exists, read_text
from capstan.storage.ledger.claims import LEASE
from capstan.storage.retention import FILES, retention_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def vacuum(spark: SparkSession, name: str, path: str) -> int:
    """Delete files that no retained version of a table uses; returns their number.

    Includes leftovers of killed writers. Nothing is deleted if the retention is shorter than a run
    may take, because a run's input must stay until its end.
    """
    if retention_of(path, FILES) < LEASE:
        return 0
    table = delta.open_table(path)
    unused = table.vacuum(dry_run=True, full=True)
    if not unused:
        return 0
    spark.sql(f"VACUUM delta.`{path}`")
    emit("maintain.vacuumed", table=name, files=len(unused))
    return len(unused)


def checkpoint(spark: SparkSession, name: str, path: str) -> bool:
    """Write a checkpoint of a table's log unless its newest version has one; True if written.

    Delta then deletes log entries older than the table's log retention.
    """
    if _last_checkpoint(path) >= delta.open_table(path).version():
        return False
    jvm, session = spark._jvm, spark._jsparkSession
    assert jvm is not None
    none = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, path)
    log.checkpoint(log.update(False, none, none), none)
    emit("maintain.checkpoint", table=name)
    return True


def _last_checkpoint(path: str) -> int:
    file = f"{path}/_delta_log/_last_checkpoint"
    return int(json.loads(read_text(file))["version"]) if exists(file) else -1
