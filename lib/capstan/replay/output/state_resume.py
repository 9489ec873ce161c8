"""The state that a followed pipeline goes on from: read, rescaled, kept for the next run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.core.config import ProjectConfig
from capstan.core.times import Antichain
from capstan.errors import InvalidRequestError
from capstan.instrumentation import emit
from capstan.pipeline import Pipeline, pipelines
from capstan.pipeline.graph.signature import Signatures, require_unchanged
from capstan.pipeline.spark.rescale import rescale
from capstan.pipeline.spark.stage_frames import CarriedState
from capstan.pipeline.spark.state_rows import KeptKind
from capstan.replay.planning.computation import PipelineComputation
from capstan.replay.planning.snapshot_catalog import Taken
from capstan.replay.planning.snapshot_ledger import (
    Became,
    Event,
    Snapshot,
    delete_parts,
    parts_of,
    read_parts,
    write_became,
    write_parts,
)
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def carried(
    spark: SparkSession, lake: Lake, piped: PipelineComputation, peers: int, *, keeps: bool
) -> Iterator[CarriedState]:
    """What a run goes on from, on as many replay workers as it has.

    Args:
        spark: The session.
        lake: The lake.
        piped: The pipeline as it is played.
        peers: The replay workers.
        keeps: Whether the run hands its state on.

    Raises:
        StateError: Not all of it is there, or it cannot be dealt to so many workers.
    """
    snapshot = piped.resumed
    rows = None if snapshot is None else read_parts(spark, lake, snapshot)
    if snapshot is None or rows is None or snapshot.peers == peers:
        yield CarriedState(rows, keeps)
        return
    plan = piped.pipeline.plan([piped.sink.node])
    dealt = rescale(rows, plan, snapshot.peers, peers)
    try:
        yield CarriedState(dealt, keeps)
    finally:
        dealt.unpersist()


def snapshot_of_run(name: str, piped: PipelineComputation, peers: int, rows: DataFrame) -> Snapshot:
    """What is known of the state that a run hands on.

    Args:
        name: The snapshot's name.
        piped: The pipeline as it was played.
        peers: The replay workers.
        rows: The state.
    """
    return _described(
        rows,
        name,
        piped.pipeline.name,
        peers,
        frontier=piped.frontier,
        last=piped.reach.last,
        signatures=piped.pipeline.signatures(piped.sink.node),
    )


def _described(
    rows: DataFrame,
    name: str,
    pipeline: str,
    peers: int,
    *,
    frontier: Antichain,
    last: int,
    signatures: Signatures | None,
    before: int | None = None,
) -> Snapshot:
    counted = rows.groupBy("kind", "worker", "head").agg(
        F.count("*").alias("parts"),
        F.sum("rows").alias("rows"),
        F.coalesce(F.sum(F.length("data")), F.lit(0)).alias("bytes"),
    )
    found = counted.collect()
    total = {kind: sum(row["rows"] for row in found if row["kind"] == kind) for kind in KeptKind}
    held: dict[str, dict[str, int]] = {}
    for row in found:
        if row["kind"] == KeptKind.HEAD:
            mine = held.setdefault(str(row["worker"]), {})
            mine |= json.loads(row["head"])["keys"]
    return Snapshot(
        name,
        pipeline,
        peers,
        frontier,
        last,
        parts=sum(row["parts"] for row in found),
        rows=total[KeptKind.CHUNK],
        waiting=total[KeptKind.AHEAD],
        bytes=sum(row["bytes"] for row in found),
        held=held,
        before=before,
        signatures=signatures,
    )


def keep_state(spark: SparkSession, lake: Lake, snapshot: Snapshot, rows: DataFrame) -> None:
    """Write the state that a run hands on; it counts once the run has published."""
    if snapshot.parts:
        write_parts(spark, lake, snapshot, rows)
    emit("replay.state", snapshot=snapshot.name, rows=snapshot.rows)


def rescale_state(
    spark: SparkSession,
    lake: Lake,
    declarations: ProjectConfig,
    taken: Taken,
    peers: int,
) -> Snapshot:
    """Deal the newest snapshot of a followed pipeline to other replay workers, for its next run.

    The rows are written first, then the row of the ledger that lets them count.

    Raises:
        InvalidRequestError: `CAP-STATE` when there is nothing to go on from.
        StateError: Not all of it is there, or it cannot be dealt.
        StateChanged: The pipeline is another one than that which kept it.
    """
    now = taken.on(None)
    if not taken.standing or not now.parts:
        raise InvalidRequestError(
            "CAP-STATE",
            f"no run goes on from snapshot {taken.name}",
            "see `capstan state` for those that there are",
            snapshot=taken.name,
        )
    if peers in (now.peers, taken.snapshot.peers) or peers in taken.rescaled:
        return _chosen(spark, lake, taken, peers)
    rows = read_parts(spark, lake, now)
    assert rows is not None
    pipeline, sink = _played(declarations, taken)
    plan = pipeline.plan([sink])
    if now.signatures is not None:
        require_unchanged(now.signatures, pipeline.signatures(sink), whole=True)
    dealt = rescale(rows, plan, now.peers, peers)
    try:
        made = _described(
            dealt,
            f"{taken.name}@{peers}",
            now.pipeline,
            peers,
            frontier=now.frontier,
            last=now.last,
            signatures=now.signatures,
            before=now.peers,
        )
        if made.name in parts_of(lake, now.pipeline):
            # Of an attempt that was killed before they counted.
            delete_parts(spark, lake, now.pipeline, [made.name])
        write_parts(spark, lake, made, dealt)
        emit("state.parts", snapshot=made.name)
    finally:
        dealt.unpersist()
    write_became(lake, now.pipeline, [Became(taken.name, Event.RESCALED, made)])
    emit("state.rescaled", snapshot=made.name, peers=peers)
    return made


def _chosen(spark: SparkSession, lake: Lake, taken: Taken, peers: int) -> Snapshot:
    """A snapshot that is there on so many workers already, as the one to go on from."""
    found = taken.on(peers)
    if taken.newest != peers:
        became = Became(taken.name, Event.RESCALED, found)
        write_became(lake, found.pipeline, [became])
    return found


def _played(declarations: ProjectConfig, taken: Taken) -> tuple[Pipeline, str]:
    certificate = taken.history.certificate or {}
    said = certificate["pipeline"]
    assert isinstance(said, Mapping)
    pipeline = pipelines(references=declarations.pipelines).get(str(said["name"]))
    return pipeline, str(said["sink"])
