"""The part of a pipeline's rows and records that audits look at closely, where Spark computes it.

An audit compares all rows with a second computation. One by Spark shows that the rows are what the
plan gives; one by the engine, which shares no code with it, shows that the plan is right. The
engine computes all of a small input, and of a larger one a stretch of its times; where rows depend
on records of any time, all times of some keys. The identity of the run decides which, so that
nobody can choose it, and every audit of a run takes the same.

The same share of each stream's records, at a stretch of times, is compared with the index of its
tape. Spark reads the other ones only in the columns of the pipeline, so they are counted.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from typing import Final

from pyspark.sql import DataFrame

from capstan.audit.result import EngineSample, InputSample
from capstan.core.config import Mode
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.replay.planning.pipeline_computation import PipelineComputation, as_pipeline
from capstan.replay.planning.plan import Plan
from capstan.storage.ledger.region_json import render_bounds
from capstan.storage.tape import index

FEW_RECORDS: Final = 100_000
"""Of at most this many records, the engine computes all rows again."""


@dataclass(frozen=True, slots=True)
class EnginePart:
    """Rows of an output, of which the engine computes those again that are in a plan's range."""

    plan: Plan
    rows: DataFrame
    records: Mapping[str, Region]  # Where those of long streams are compared with the index.
    share: float  # of the records, and of the keys
    keys: tuple[str, ...] = ()  # The columns whose values were drawn.

    def sample(self, cells: int) -> EngineSample:
        """What a certificate says of it, once so many cells were compared."""
        times = render_bounds(self.plan.time_type, self.plan.region)
        return EngineSample(cells, times, self.share, self.keys)

    @property
    def inputs(self) -> tuple[InputSample, ...]:
        """What a certificate says of the records."""
        time_type = self.plan.inputs.tape.time_type
        return tuple(
            InputSample(stream, render_bounds(time_type, region), self.share)
            for stream, region in self.records.items()
        )


def engine_part(plan: Plan, rows: DataFrame) -> EnginePart | None:
    """The part of some rows that the engine computes again; None when it is all of them."""
    pipe = as_pipeline(plan.computation)
    # The row of a key that a merge leaves depends on later times.
    if pipe is None or plan.request.mode is Mode.MERGE or plan.request.follow is not None:
        return None
    share = pipe.engine_share
    by_stream = () if share == 1 else _records_by_time(plan)
    records = sum((counts for _, counts in by_stream), Counter[int]())
    if records.total() <= FEW_RECORDS:
        return None
    compared = {
        stream: _between(plan, *stretch(counts, share, plan.identity))
        for stream, counts in by_stream
        if counts.total() > FEW_RECORDS
    }
    if pipe.depends_on_near and plan.layout.time is not None:
        return _stretch_of(plan, pipe, rows, records, compared)
    return _keys_of(plan, pipe, rows, compared)


def _stretch_of(
    plan: Plan,
    pipe: PipelineComputation,
    rows: DataFrame,
    records: Mapping[int, int],
    compared: Mapping[str, Region],
) -> EnginePart | None:
    # What is read around the range has no rows of its own.
    inside = {time: n for time, n in records.items() if plan.region.box.contains((time,))}
    if not inside:
        return None
    first, last = stretch(inside, pipe.engine_share, plan.identity)
    grain = pipe.grain
    bounds = Box((first - first % grain,), (last - last % grain + grain,))
    region = replace(plan.region, box=plan.region.box.intersect(bounds))
    part = replace(plan, region=region, computation=pipe.part(region))
    return EnginePart(part, rows, compared, pipe.engine_share)


def _keys_of(
    plan: Plan, pipe: PipelineComputation, rows: DataFrame, compared: Mapping[str, Region]
) -> EnginePart | None:
    keys = pipe.keys_of(plan.identity)
    drawn = None if keys is None else keys.drawing(pipe.engine_share, rows)
    if drawn is None:
        return None
    part = replace(plan, computation=replace(pipe, drawn=drawn))
    return EnginePart(part, drawn.rows(rows), compared, pipe.engine_share, tuple(drawn.types))


def _between(plan: Plan, first: int, last: int) -> Region:
    """What is read at some times of the coordinate that the pipeline works on."""
    at = plan.computation.coordinate(plan.inputs.tape.time_type)
    everywhere = (None,) * len(plan.reads.box.since)
    since, until = list[int | None](everywhere), list[int | None](everywhere)
    since[at], until[at] = first, last + 1
    return replace(plan.reads, box=plan.reads.box.intersect(Box(tuple(since), tuple(until))))


def stretch(records: Mapping[int, int], share: float, identity: str) -> tuple[int, int]:
    """The first and the last time of a stretch that has at least a share of some records."""
    times = sorted(records)
    counts = [*accumulate(records[time] for time in times)]
    wanted = max(1, ceil(counts[-1] * share))
    number = int.from_bytes(hashlib.sha256(identity.encode()).digest())
    start = number % (counts[-1] - wanted + 1)
    return times[bisect_right(counts, start)], times[bisect_left(counts, start + wanted)]


def _records_by_time(plan: Plan) -> list[tuple[str, Counter[int]]]:
    """By stream the number of records at each time of the coordinate that the pipeline works on."""
    by_stream = []
    for stream in plan.inputs:
        at, records = plan.computation.coordinate(stream.tape.time_type), Counter[int]()
        for event in index.messages(stream.tape, stream.cut, stream.workers, plan.reads):
            records[event.time[at]] += event.records
        by_stream.append((stream.tape.name, records))
    return by_stream
