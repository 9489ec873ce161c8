"""The part of a pipeline's output that the engine computes again, where Spark has computed it.

An audit compares all rows with a second computation. One by Spark shows that the rows are what the
plan gives; one by the engine, which shares no code with it, shows that the plan is right. The
engine computes all of a small input, and of a larger one a stretch of its times: the identity of
the run decides which, so that nobody can choose it, and every audit of a run takes the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import accumulate
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
    total = records.total()
    if total <= FEW_RECORDS:
        return None
    times = sorted(records)
    counts = [*accumulate(records[time] for time in times)]
    chosen = int.from_bytes(hashlib.sha256(plan.identity.encode()).digest()) % total
    first = next(n for n, count in enumerate(counts) if count > chosen)
    wanted = chosen + int(total * share)
    last = next((n for n, count in enumerate(counts) if count > wanted), len(times) - 1)
    grain = plan.computation.grain
    since = times[first] - times[first] % grain
    until = times[last] - times[last] % grain + grain
    box = plan.region.box.intersect(Box((since,), (until,)))
    region = replace(plan.region, box=box)
    if box.is_empty:
        return None
    return replace(plan, region=region, computation=plan.computation.part(region))


def _records_by_time(plan: Plan) -> Counter[int]:
    """The number of records at each time of the coordinate that the pipeline works on."""
    records: Counter[int] = Counter()
    for stream in plan.inputs:
        at = plan.computation.coordinate(stream.tape.time_type)
        for event in index.messages(stream.tape, stream.cut, stream.workers, plan.reads):
            records[event.time[at]] += event.records
    return records
