"""A pipeline over a tape: what a replay calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from capstan.audit import played_records
from capstan.core.times import Antichain
from capstan.core.times.region import Region
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark.runner import persisted, play
from capstan.pipeline.spark.stage_frames import CarriedState, Keep, PipelineRun
from capstan.storage.tape.tape import Cut, Tape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
) -> PipelineRun:
    """Run a pipeline over chosen workers and times of a tape at a cut, to the end.

    Args:
        spark: The session.
        tape: The tape.
        cut: Its point of history.
        workers: Labels of the chosen workers by number.
        pipeline: What runs.
        reach: What `reach_of` gave for the range that is asked for, and `frontier`.
        frontier: Of the chosen workers together at the cut; only complete times are read.
        sinks: The sinks that are wanted; only what they depend on runs. None for all.
        peers: How many replay workers there are; as many as chosen workers when not given.
        keep: Stores what is read several times.
        after: The frontier that an earlier run has read up to; None reads from the beginning.
        carried: The state of that run, and whether to hand on this one's.

    Returns:
        Frames that can be read any number of times, until `Played.release`.

    Raises:
        OperatorFailed: An operator raised; node, time and worker are in its fields.
        LateOutput: A row came out at a time that an earlier run has written already.
        StateError: The state is not all there, or does not fit.
        InvalidRequestError: `CAP-PIPELINE` when the stream's columns are not those that it reads;
            `CAP-DAG-...` when the graph cannot be meant.
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
    )
