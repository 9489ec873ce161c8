"""Snapshots that no run of a followed pipeline goes on from any more, and their deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capstan.instrumentation import emit
from capstan.replay.output import target_table
from capstan.replay.planning.snapshot_catalog import list_taken
from capstan.replay.planning.snapshot_ledger import (
    Became,
    Event,
    delete_parts,
    parts_of,
    write_became,
)
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.run_identity import RunId, stem_of
from capstan.storage.ledger.runs import TERMINAL, Step
from capstan.storage.ledger.tables import read_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEEP: Final = 3
"""How many snapshots of a followed replay are kept: its newest runs can be taken back."""

_SLACK: Final = 3
"""How many more there may be before some are deleted: that costs two commits."""


def clear_old(
    spark: SparkSession, lake: Lake, pipeline: str, identity: str, *, slack: int | None = None
) -> list[str]:
    """Delete snapshots of a followed replay that no run goes on from any more.

    Its newest ones are kept, those of attempts that are at work or may have published, and any that
    is not known to belong to it.

    Args:
        spark: The session.
        lake: The lake.
        pipeline: Whose state it is.
        identity: The followed replay.
        slack: How many there may be that are over; a few by default.

    Returns:
        The names of those that were deleted.
    """
    slack = _SLACK if slack is None else slack
    parts = parts_of(lake, pipeline)
    if len(parts) <= slack:
        return []
    named = read_rows(lake, "runs", ("run",), identity=identity)
    stems = {stem_of(str(row["run"])) for row in named}
    there = [name for name in parts if stem_of(name.partition("@")[0].rpartition("-")[0]) in stems]
    if len(there) <= slack:
        return []
    # In this order: whoever has claimed before its rows were seen is at work, or has published.
    busy = {f"{claim.run}-{claim.attempt}" for claim in claims.active(lake)}
    taken = list_taken(lake, pipeline, identity=identity)
    kept = {each.name for each in [each for each in taken if each.history.published][-KEEP:]}
    kept |= busy | _undecided(lake, identity)
    over = sorted(name for name in there if name.partition("@")[0] not in kept)
    if not over or len(over) <= slack:
        return []
    counted = {each.name for each in taken if not each.cleared}
    told = [Became(name, Event.CLEARED) for name in over if name in counted]
    # Said before it is done: a run must not take what is half deleted for what was lost.
    if told:
        write_became(lake, pipeline, told)
    delete_parts(spark, lake, pipeline, over)
    emit("replay.cleared", snapshots=len(over))
    return over


def _undecided(lake: Lake, identity: str) -> set[str]:
    """Attempts that have published, or still may, though the ledger does not say so.

    Whoever was killed after its commit is at work no longer once its claim is given up or expires.
    Who goes on with the run finds the commit, and the run counts, with the snapshot it had taken.
    """
    found = set()
    for name, history in runs.read_histories(lake, identity=identity).items():
        intents = [row for row in history.rows if row.step is Step.INTENT]
        if not intents or history.certificate is not None:
            continue
        # It had shut out the attempts before it, and found that none of them had published.
        last = max(intents, key=lambda row: row.attempt)
        run = RunId.named(name, identity, last.generation, last.target)
        ended = any(row.attempt == last.attempt and row.step in TERMINAL for row in history.rows)
        landed = (
            target_table.latest_txn_version(last.target, run) >= run.change(last.attempt).version
        )
        if landed or not ended:
            found.add(f"{name}-{last.attempt}")
    return found
