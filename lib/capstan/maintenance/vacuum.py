"""Checkpoints of tables' logs, and the deletion of files that no version to be read needs."""

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
    """Delete files that are in no version of a table which its retention keeps; how many went.

    Also what killed writers have left. Nothing is deleted while the retention is shorter than a
    run may take: what it reads has to stay until its end.
    """
    if retention_of(path, FILES) < LEASE:
        return 0
    table = delta.open_table(path)
    over = table.vacuum(dry_run=True, full=True)
    if not over:
        return 0
    spark.sql(f"VACUUM delta.`{path}`")
    emit("maintain.vacuumed", table=name, files=len(over))
    return len(over)


def checkpoint(spark: SparkSession, name: str, path: str) -> bool:
    """Write a checkpoint of a table's log unless its newest version has one; whether it did.

    With it goes what of the log is older than the table's retention of it.
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
    place = f"{path}/_delta_log/_last_checkpoint"
    return int(json.loads(read_text(place))["version"]) if exists(place) else -1
