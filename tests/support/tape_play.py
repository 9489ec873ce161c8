"""A pipeline played over chosen workers and times of a tape, without a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from capstan.audit import played_records
from capstan.core.times import Antichain
from capstan.core.times.region import Region
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark.plans.spark_nodes import Keep
from capstan.pipeline.spark.runner import persisted, play
from capstan.pipeline.spark.stage_frames import CarriedState, PipelineRun
from capstan.storage.tape.tape import Cut, Tape


def play_tape(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    workers: Mapping[int, str],
    pipeline: Pipeline,
    reach: Reach,
    frontier: Antichain,
    *,
    sinks: Iterable[str] | None = None,
    peers: int | None = None,
    keep: Keep = persisted,
    after: Antichain | None = None,
    carried: CarriedState | None = None,
    engine: bool = False,
) -> PipelineRun:
    """Run a pipeline over chosen workers and times of a tape at a cut; otherwise as `play`.

    Args:
        spark: The session.
        tape: The tape.
        cut: The cut of the tape.
        workers: Labels of the chosen workers by number.
        pipeline: The pipeline.
        reach: Result of `reach_of` for the requested range and `frontier`.
        frontier: Common frontier of the chosen workers at the cut; only complete times are read.
        sinks: As `play`.
        peers: Number of replay workers; by default that of the chosen workers.
        keep: As `play`.
        after: Frontier up to which an earlier run has read; None reads from the beginning.
        carried: State of that run, and whether to return the final state of this one.
        engine: As `play`.
    """
    region = Region(reach.reads, below=frontier, above=after)
    records = played_records(spark, tape, cut, workers, region, place=True)
    chosen = len(workers) if peers is None else peers
    return play(
        spark,
        records,
        pipeline,
        reach,
        sinks=sinks,
        peers=max(1, chosen),
        keep=keep,
        carried=carried,
        engine=engine,
    )
