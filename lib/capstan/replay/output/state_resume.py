"""State of followed pipelines: read for a run, rescaled, and kept for the next run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from capstan.core.config import ProjectConfig
from capstan.errors import InvalidRequestError
from capstan.pipeline import Pipeline, pipelines
from capstan.pipeline.graph.signature import require_unchanged
from capstan.pipeline.spark.rescale import rescale
from capstan.pipeline.spark.stage_frames import CarriedState
from capstan.pipeline.spark.state_rows import StateKind
from capstan.replay.planning.pipeline_computation import PipelineComputation
from capstan.replay.snapshots import (
    Snapshot,
    SnapshotAction,
    SnapshotEvent,
    Taken,
    delete_parts,
    parts_of,
    read_parts,
    write_events,
    write_parts,
)
from capstan.storage.lake import Lake
from capstan.telemetry.instrumentation import emit


@contextmanager
def carried(
    spark: SparkSession, lake: Lake, computation: PipelineComputation, peers: int, *, keeps: bool
) -> Iterator[CarriedState]:
    """The state from which a run resumes, rescaled; with `keeps`, the run keeps its own."""
    snapshot = computation.resumed
    rows = None if snapshot is None else read_parts(spark, lake, snapshot)
    if snapshot is None or rows is None or snapshot.peers == peers:
        yield CarriedState(rows, keeps)
        return
    plan = computation.pipeline.plan([computation.sink.node])
    rescaled = rescale(rows, plan, snapshot.peers, peers)
    try:
        yield CarriedState(rescaled, keeps)
    finally:
        rescaled.unpersist()


def snapshot_of_run(
    name: str, computation: PipelineComputation, peers: int, rows: DataFrame
) -> Snapshot:
    """The snapshot of the state that a run keeps."""
    pipeline = computation.pipeline
    signatures = pipeline.signatures(computation.sink.node)
    frontier, last = computation.frontier, computation.reach.last
    snapshot = Snapshot(name, pipeline.name, peers, frontier, last, signatures=signatures)
    return _with_counts(snapshot, rows)


def _with_counts(snapshot: Snapshot, rows: DataFrame) -> Snapshot:
    """A snapshot with the counts and sizes of its rows."""
    counted = rows.groupBy("kind", "worker", "head").agg(
        F.count("*").alias("parts"),
        F.sum("rows").alias("rows"),
        F.coalesce(F.sum(F.length("data")), F.lit(0)).alias("bytes"),
    )
    counts = counted.collect()
    total = {kind: sum(row["rows"] for row in counts if row["kind"] == kind) for kind in StateKind}
    held: dict[str, dict[str, int]] = {}
    for row in counts:
        if row["kind"] == StateKind.HEAD:
            keys = held.setdefault(str(row["worker"]), {})
            keys |= json.loads(row["head"])["keys"]
    return replace(
        snapshot,
        parts=sum(row["parts"] for row in counts),
        rows=total[StateKind.CHUNK],
        waiting=total[StateKind.AHEAD],
        bytes=sum(row["bytes"] for row in counts),
        held=held,
    )


def keep_state(spark: SparkSession, lake: Lake, snapshot: Snapshot, rows: DataFrame) -> None:
    """Write the state that a run keeps; it counts once the run has published."""
    if snapshot.parts:
        write_parts(spark, lake, snapshot, rows)
    emit("replay.state", snapshot=snapshot.name, rows=snapshot.rows)


def rescale_state(
    spark: SparkSession, lake: Lake, config: ProjectConfig, taken: Taken, peers: int
) -> Snapshot:
    """Rescale the newest snapshot of a followed pipeline to other replay workers, for its next run.

    The rows are written first, then the ledger row that makes them count.
    """
    now = taken.on(None)
    if not taken.standing or not now.parts:
        raise InvalidRequestError(
            "CAP-STATE",
            f"no run resumes from snapshot {taken.name}",
            "list the snapshots with `capstan state`",
            snapshot=taken.name,
        )
    if peers in (now.peers, taken.snapshot.peers) or peers in taken.rescaled:
        return _choose(lake, taken, peers)
    rows = read_parts(spark, lake, now)
    assert rows is not None
    pipeline, sink = _pipeline_of(config, taken)
    plan = pipeline.plan([sink])
    if now.signatures is not None:
        require_unchanged(now.signatures, pipeline.signatures(sink), whole=True)
    rescaled = rescale(rows, plan, now.peers, peers)
    try:
        named = replace(now, name=f"{taken.name}@{peers}", peers=peers, before=now.peers)
        made = _with_counts(named, rescaled)
        if made.name in parts_of(lake, now.pipeline):
            # Left by an attempt that was killed before the rows counted.
            delete_parts(spark, lake, now.pipeline, [made.name])
        write_parts(spark, lake, made, rescaled)
        emit("state.parts", snapshot=made.name)
    finally:
        rescaled.unpersist()
    write_events(lake, now.pipeline, [SnapshotEvent(taken.name, SnapshotAction.RESCALED, made)])
    emit("state.rescaled", snapshot=made.name, peers=peers)
    return made


def _choose(lake: Lake, taken: Taken, peers: int) -> Snapshot:
    """An existing snapshot for this number of workers, made the one to resume from."""
    snapshot = taken.on(peers)
    if taken.newest != peers:
        event = SnapshotEvent(taken.name, SnapshotAction.RESCALED, snapshot)
        write_events(lake, snapshot.pipeline, [event])
    return snapshot


def _pipeline_of(config: ProjectConfig, taken: Taken) -> tuple[Pipeline, str]:
    """The pipeline and the sink whose run took a snapshot."""
    certificate = taken.history.certificate
    assert certificate is not None
    assert certificate.pipeline is not None
    pipeline = pipelines(references=config.pipelines).get(certificate.pipeline["name"])
    return pipeline, str(certificate.pipeline["sink"])
