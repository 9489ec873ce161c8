"""What is left over beside the tables: staged output, and snapshots that no run goes on from."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from capstan.instrumentation import emit
from capstan.replay.execution.staging import KEEP, clear_staged, list_staged
from capstan.replay.output.snapshot_gc import clear_old
from capstan.replay.planning.snapshot_ledger import parts_of
from capstan.storage.lake import Lake
from capstan.storage.ledger.tables import read_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def clear_staging(lake: Lake, now: datetime, keep: timedelta = KEEP) -> list[str]:
    """Clear away what was rejected, has failed or was killed `keep` ago or before; the names of it.

    What waits to be published is never touched.
    """
    over = clear_staged(lake, list_staged(lake, now), now, keep)
    if over:
        emit("maintain.staging", cleared=len(over))
    return over


def clear_snapshots(spark: SparkSession, lake: Lake, pipeline: str) -> list[str]:
    """Delete snapshots of a pipeline that no run goes on from any more; their names.

    Also those of attempts that have ended without publishing. The newest of each followed replay
    stay, so that its newest runs can be taken back.
    """
    there = parts_of(lake, pipeline)
    runs = {name.partition("@")[0].rpartition("-")[0] for name in there}
    named = ("run", "identity")
    rows = read_rows(lake, "runs", named, run=tuple(runs)) if runs else []
    identities = {str(row["identity"]) for row in rows}
    return [
        name
        for identity in sorted(identities)
        for name in clear_old(spark, lake, pipeline, identity, slack=0)
    ]
