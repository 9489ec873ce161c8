"""Clean-up: unused files and log entries of tables, staged output, snapshots that no run needs."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from capstan.replay.execution.staging import KEEP, clear_staged, list_staged
from capstan.replay.publish.snapshot_gc import clear_old
from capstan.replay.snapshots import parts_of
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_writer import FILES, retention_of
from capstan.storage.lake import Lake, exists, read_text
from capstan.storage.ledger.claims import LEASE
from capstan.storage.ledger.tables import read_rows
from capstan.telemetry.instrumentation import emit


def clear_staging(lake: Lake, now: datetime, keep: timedelta = KEEP) -> list[str]:
    """Delete staged output rejected, failed or killed at least `keep` ago; returns its names.

    Output that awaits approval is never deleted.
    """
    cleared = clear_staged(lake, list_staged(lake, now), now, keep)
    if cleared:
        emit("maintain.staging", cleared=len(cleared))
    return cleared


def clear_snapshots(spark: SparkSession, lake: Lake, pipeline: str) -> list[str]:
    """Delete snapshots of a pipeline from which no run can resume; returns their names.

    Includes those of attempts that ended without publishing. The newest snapshots of each followed
    replay stay, so that its newest runs can be rolled back.
    """
    names = parts_of(lake, pipeline)
    runs = {name.partition("@")[0].rpartition("-")[0] for name in names}
    columns = ("run", "identity")
    rows = read_rows(lake, "runs", columns, run=tuple(runs)) if runs else []
    identities = {str(row["identity"]) for row in rows}
    return [
        name
        for identity in sorted(identities)
        for name in clear_old(spark, lake, pipeline, identity, slack=0)
    ]


def vacuum(spark: SparkSession, name: str, path: str) -> int:
    """Delete files that no retained version of a table uses; returns their number."""
    # Includes leftovers of killed writers. Nothing is deleted if the retention is shorter than a
    # run may take, because a run's input must stay until its end.
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
    """Write a checkpoint of a table's log unless its newest version has one; True if written."""
    # Delta then deletes log entries older than the table's log retention.
    pointer = f"{path}/_delta_log/_last_checkpoint"
    last = int(json.loads(read_text(pointer))["version"]) if exists(pointer) else -1
    if last >= delta.open_table(path).version():
        return False
    jvm, session = spark._jvm, spark._jsparkSession
    assert jvm is not None
    none = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, path)
    log.checkpoint(log.update(False, none, none), none)
    emit("maintain.checkpoint", table=name)
    return True
