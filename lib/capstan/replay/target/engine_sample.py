"""The part of a pipeline's output that the engine computes again, where Spark has computed it.

An audit compares all rows with a second computation. One by Spark shows that the rows are what the
plan gives; one by the engine, which shares no code with it, shows that the plan is right. The
engine computes all of a small input, and of a larger one a stretch of its times: the identity of
the run decides which, so that nobody can choose it, and every audit of a run takes the same.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from math import ceil
from typing import Final

from capstan.core.config import Mode
from capstan.core.times import Box
from capstan.replay.planning.plan import Plan
from capstan.storage.tape import index

FEW_RECORDS: Final = 100_000
"""Of at most this many records, the engine computes all rows again."""


def engine_sample(plan: Plan) -> Plan | None:
    """The plan for a part of the times; None when the engine computes all of them again."""
    share = plan.computation.engine_share
    # The row of a key that a merge leaves depends on later times.
    whole = share == 1 or plan.layout.time is None or plan.request.mode is Mode.MERGE
    if whole or plan.request.follow is not None:
        return None
    records = _records_by_time(plan)
    if records.total() <= FEW_RECORDS:
        return None
    # What is read around the range has no rows of its own.
    inside = {time: n for time, n in records.items() if plan.region.box.contains((time,))}
    if not inside:
        return None
    first, last = stretch(inside, share, plan.identity)
    grain = plan.computation.grain
    bounds = Box((first - first % grain,), (last - last % grain + grain,))
    region = replace(plan.region, box=plan.region.box.intersect(bounds))
    return replace(plan, region=region, computation=plan.computation.part(region))


def stretch(records: Mapping[int, int], share: float, identity: str) -> tuple[int, int]:
    """The first and the last time of a stretch that has at least a share of some records."""
    times = sorted(records)
    counts = [*accumulate(records[time] for time in times)]
    wanted = max(1, ceil(counts[-1] * share))
    number = int.from_bytes(hashlib.sha256(identity.encode()).digest())
    start = number % (counts[-1] - wanted + 1)
    return times[bisect_right(counts, start)], times[bisect_left(counts, start + wanted)]


def _records_by_time(plan: Plan) -> Counter[int]:
    """The number of records at each time of the coordinate that the pipeline works on."""
    records: Counter[int] = Counter()
    for stream in plan.inputs:
        at = plan.computation.coordinate(stream.tape.time_type)
        for event in index.messages(stream.tape, stream.cut, stream.workers, plan.reads):
            records[event.time[at]] += event.records
    return records
