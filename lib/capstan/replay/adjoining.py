"""Replays of adjoining ranges that are carried out together, as far as they are surely alike.

A run has a fixed cost, most of it Spark's. Where a backfill makes a run of each interval, that is
most of its cost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise, takewhile

from pyspark.sql import SparkSession

from capstan.audit.cells import MAX_CELLS
from capstan.core.config import Mode, ProjectConfig
from capstan.core.times import AdjoiningRanges
from capstan.errors import CapstanError, translation
from capstan.replay.execution import recovery
from capstan.replay.execution.attempt import require_publishable
from capstan.replay.execution.job import Job
from capstan.replay.execution.job_set import JobSet, carry_out_together
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan, over_range
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import verify_inputs
from capstan.replay.target.ownership import Ownership
from capstan.spark.safe_commits import require_safe_commits
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs
from capstan.storage.stored_log import remembering
from capstan.storage.tape import index
from capstan.storage.tape.index import MessageCounts
from capstan.telemetry.instrumentation import emit

MOST_RUNS = 32
"""The most runs that are carried out together; a kill loses what they have not published yet."""
_MOST_RECORDS = 10_000_000


@remembering()
def replay_together(
    spark: SparkSession, lake: Lake, config: ProjectConfig, requests: Sequence[Request]
) -> list[ReplayResult | CapstanError]:
    """Carry out the first of some replays together: copies into ranges that no run has written.

    Returns:
        The results of those that were published, in order; then an error, if a publish has failed.
        The others, which may be all, are to be carried out one by one: each tells what is wrong
        with it.
    """
    started = time.monotonic()
    chosen = _alike(requests[:MOST_RUNS])
    if len(chosen) < 2 or not _copies(chosen[0]):
        return []
    try:
        jobs = _prepared(spark, lake, config, chosen, started)
        if jobs is None:
            return []
        expected = require_publishable(spark, Ownership(jobs.whole), jobs.names)
        return carry_out_together(jobs, expected)
    except Exception as error:
        why = translation.to_capstan_error(error, runs.AGAIN)
        emit("replay.apart", runs=len(chosen), error=str(why))
        return []


def _alike(requests: Sequence[Request]) -> list[Request]:
    """The first of some requests that differ in their ranges alone, of which each adjoins the next.

    They are in the order of their times, or in the opposite one.
    """
    turned = len(requests) > 1 and _is_newest_first(requests)
    pairs = ((b, a) if turned else (a, b) for a, b in pairwise(requests))
    count = 1 + sum(1 for _ in takewhile(lambda pair: _adjoin(*pair), pairs))
    return list(requests[:count])


def _is_newest_first(requests: Sequence[Request]) -> bool:
    return requests[0].until != requests[1].since


def _adjoin(one: Request, other: Request) -> bool:
    same = replace(other, since=one.since, until=one.until) == one
    return same and one.until is not None and one.until == other.since


def _prepared(
    spark: SparkSession,
    lake: Lake,
    config: ProjectConfig,
    requests: Sequence[Request],
    started: float,
) -> JobSet | None:
    """The first of some replays that can be carried out together; None if there are no two."""
    whole = make_plan(lake, config, requests[0], session=spark)
    tape = whole.inputs.tape
    # Of messages under times of several coordinates, each range decides by itself which it has.
    apart = tape.stamped and len(tape.columns) > 1
    if apart or None in (whole.layout.worker, whole.layout.time):
        return None
    require_safe_commits(spark, whole.target)
    verify_inputs(spark, whole)
    recovery.complete_others(spark, lake, config, whole)
    plans = [over_range(whole, request.since, request.until) for request in requests]
    begun = runs.begun(lake, [plan.identity for plan in plans], whole.target)
    plans = list(takewhile(lambda plan: plan.identity not in begun, plans))
    newest_first = _is_newest_first(requests)
    while len(plans) > 1:
        jobs = _bounded(spark, plans[::-1] if newest_first else plans, started)
        if jobs is not None:
            jobs = replace(jobs, newest_first=newest_first)
            return jobs if _are_free(jobs) else None
        plans = plans[: len(plans) // 2]
    return None


def _copies(request: Request) -> bool:
    """Whether the rows of several ranges at once are those of each."""
    return (
        (request.transform, request.pipeline, request.follow) == (None, None, None)
        and request.mode in (Mode.REPLACE, Mode.APPEND)
        and not request.held
    )


def _bounded(spark: SparkSession, plans: Sequence[Plan], started: float) -> JobSet | None:
    """The runs of plans in the order of their times; None if they are too much for one set."""
    ranges = AdjoiningRanges.of([plan.box for plan in plans])
    if ranges is None:
        return None
    for plan in plans:
        plan.require_complete()
    first, last = plans[0], plans[-1]
    whole = over_range(first, first.request.since, last.request.until)
    stream = whole.inputs.streams[0]
    messages = index.messages(stream.tape, stream.cut, tuple(stream.workers), whole.reads)
    events = list(islice(messages, MAX_CELLS + 1))
    if len(events) > MAX_CELLS or sum(event.records for event in events) > _MOST_RECORDS:
        return None
    parts: list[list[MessageCounts]] = [[] for _ in plans]
    for event in events:
        parts[ranges.number(event.time)].append(event)
    identities = [plan.identity for plan in plans]
    named = runs.name_runs(whole.lake, identities, 1, whole.target)
    jobs = [
        Job(spark, whole.lake, plan, run, started) for plan, run in zip(plans, named, strict=True)
    ]
    return JobSet(whole, ranges, tuple(jobs), parts)


def _are_free(jobs: JobSet) -> bool:
    """Whether nobody has claimed or written anything where the runs of a set write."""
    lake, names = jobs.lake, jobs.names
    return (
        len(set(names)) == len(names)
        and not any(claims.last_attempts(lake, names).values())
        and not claims.conflicts(lake, jobs.scopes)
        and not Ownership(jobs.whole).within(jobs.whole.scope)
    )
