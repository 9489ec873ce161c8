"""Deletion of snapshots from which no run of a followed pipeline will resume."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from capstan.replay.snapshots import (
    SnapshotAction,
    SnapshotEvent,
    delete_parts,
    list_taken,
    parts_of,
    write_events,
)
from capstan.replay.target import target_table
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.run_identity import stem_of
from capstan.storage.ledger.runs import TERMINAL, Step
from capstan.storage.ledger.tables import read_rows
from capstan.telemetry.instrumentation import emit

KEEP: Final = 3
"""The number of snapshots kept per followed replay, so that its newest runs can be rolled back."""

_SLACK: Final = 3
"""The surplus before snapshots are deleted, which costs two commits."""


def clear_old(
    spark: SparkSession, lake: Lake, pipeline: str, identity: str, *, slack: int = _SLACK
) -> list[str]:
    """Delete snapshots of a followed replay from which no run will resume; returns their names.

    Its newest snapshots are kept, those of attempts that are active or may have published, and
    any that are not known to belong to it.
    """
    parts = parts_of(lake, pipeline)
    if len(parts) <= slack:
        return []
    named = read_rows(lake, "runs", ("run",), identity=identity)
    stems = {stem_of(str(row["run"])) for row in named}
    candidates = [
        name for name in parts if stem_of(name.partition("@")[0].rpartition("-")[0]) in stems
    ]
    if len(candidates) <= slack:
        return []
    # Claims are read after the rows: an attempt that wrote rows is still active, or has published.
    busy = {f"{claim.run}-{claim.attempt}" for claim in claims.active(lake)}
    taken = list_taken(lake, pipeline, identity=identity)
    published = [snapshot for snapshot in taken if snapshot.history.published]
    kept = {snapshot.name for snapshot in published[-KEEP:]}
    kept |= busy | _undecided(lake, identity)
    obsolete = sorted(name for name in candidates if name.partition("@")[0] not in kept)
    if not obsolete or len(obsolete) <= slack:
        return []
    counted = {snapshot.name for snapshot in taken if not snapshot.cleared}
    cleared = [SnapshotEvent(name, SnapshotAction.CLEARED) for name in obsolete if name in counted]
    # Recorded first, so that no run mistakes a half-deleted snapshot for a damaged one.
    if cleared:
        write_events(lake, pipeline, cleared)
    delete_parts(spark, lake, pipeline, obsolete)
    emit("replay.cleared", snapshots=len(obsolete))
    return obsolete


def _undecided(lake: Lake, identity: str) -> set[str]:
    """Attempts that have published, or still may, without a row in the ledger."""
    # An attempt that was killed after its commit is no longer active once its claim ends. The next
    # attempt finds the commit; then the run counts, and so does the snapshot that it took.
    undecided = set()
    for name, history in runs.read_histories(lake, identity=identity).items():
        intents = [row for row in history.rows if row.step is Step.INTENT]
        if not intents or history.done is not None:
            continue
        # It had fenced the attempts before it, and found that none of them had published.
        last = max(intents, key=lambda row: row.attempt)
        run = history.run_id
        ended = any(row.attempt == last.attempt and row.step in TERMINAL for row in history.rows)
        table = delta.open_if_table(last.target)
        landed = target_table.txn_version(table, run) >= run.change(last.attempt).version
        if landed or not ended:
            undecided.add(f"{name}-{last.attempt}")
    return undecided
