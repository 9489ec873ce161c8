"""Clean-up of leftovers beside the tables: staged output, and snapshots that no run needs."""

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
