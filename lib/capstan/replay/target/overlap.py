"""Details of a plan: overlap with published data, lagging workers, workers without records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.core.config import ByColumn, ByKey, ProjectConfig
from capstan.core.times import Time
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.stream_input import StreamInput
from capstan.replay.target.standing import is_stale
from capstan.storage.delta.arrow_scan import rows_of
from capstan.storage.ledger.coverage import Covered
from capstan.storage.tape.index import ContentSummary
from capstan.storage.tape.region_mask import Mask, Numbers, in_box, inside, numbers_of

_ANY = -1
"""The worker of records on which rows of any worker may depend."""


@dataclass(frozen=True, slots=True)
class PublishedOverlap:
    """The records of a replay by whether they are already published in its target."""

    current: int  # Records of cells that were last written by the same computation and code.
    stale: int  # Records of cells that were last written by another computation or code.
    missing: int  # Records of cells that no published run has written.
    by_run: Mapping[str, int]  # Records by the run that last wrote their cell.


@dataclass(frozen=True, slots=True)
class WorkerGaps:
    """Labels of workers that are missing from a replay, or hold it back."""

    left_out: tuple[str, ...]  # Workers on tape that were not chosen.
    behind: Mapping[str, tuple[Time, ...]]  # With the frontier, which does not complete the range.
    silent: tuple[str, ...]  # Chosen workers without a record in the range.
    not_on_tape: tuple[str, ...]  # Declared workers that were never captured.


def published_overlap(plan: Plan, covered: Sequence[Covered]) -> PublishedOverlap:
    """Count published records; of the runs `covered`, the newest is the last."""
    workers, times, records = (
        np.concatenate(parts)
        for parts in zip(*map(partial(_cells, plan), plan.inputs), strict=True)
    )
    played = inside(plan.reads, times)
    # Records that a pipeline reads around the range only serve to compute the rows inside it.
    times = times[:, plan.computation.axes(plan.inputs.tape.time_type)]
    played &= inside(plan.region, times)
    workers, times, records = workers[played], times[played], records[played]
    uncovered: Mask = np.ones(len(records), dtype=np.bool_)
    by_run: dict[str, int] = {}
    stale = 0
    for entry in reversed(covered):
        if entry.stream != plan.request.stream or not entry.scope.region.is_in(plan.time_type):
            continue  # Its times are those of another stream, or in other coordinates.
        written = uncovered & inside(entry.scope.region, times)
        if entry.scope.workers is not None:
            written &= np.isin(workers, entry.scope.workers) | (workers == _ANY)
        count = int(records[written].sum())
        by_run[entry.run] = count
        stale += count if is_stale(plan, entry) else 0
        uncovered &= ~written
    missing = int(records[uncovered].sum())
    return PublishedOverlap(int(records.sum()) - stale - missing, stale, missing, by_run)


def _cells(plan: Plan, stream: StreamInput) -> tuple[Numbers, Numbers, Numbers]:
    """Workers, times and record counts of the messages of a stream in the box that a plan reads."""
    events = rows_of(stream.tape.paths.events)
    time_type, box = stream.tape.time_type, plan.reads.simplified().box
    wanted = (
        (dataset.field("commit") <= stream.cut.commit)
        & (dataset.field("kind") == "messages")
        & dataset.field("worker").isin(sorted(stream.workers))
        & in_box(time_type, box)
    )
    messages = events.to_table(columns=["worker", "time", "records"], filter=wanted)
    messages = messages.combine_chunks()
    times = [numbers_of(chunk, time_type) for chunk in messages["time"].chunks]
    workers = np.asarray(pc.cast(messages["worker"], "int64").to_numpy(), dtype=np.int64)
    return (
        workers if stream in plan.inputs.keepers else np.full_like(workers, _ANY),
        np.concatenate([np.empty((0, len(time_type.coordinates)), dtype=np.int64), *times]),
        np.asarray(pc.fill_null(messages["records"], 0).to_numpy(), dtype=np.int64),
    )


def worker_gaps(
    plan: Plan, config: ProjectConfig, contents: Sequence[ContentSummary]
) -> WorkerGaps:
    """Find workers that are missing, and how; those of several streams by source and label."""
    left_out, silent, not_on_tape = list[str](), list[str](), list[str]()
    behind: dict[str, tuple[Time, ...]] = {}
    for stream, content in zip(plan.inputs, contents, strict=True):
        left_out += [stream.label(n) for n in stream.labels if n not in stream.workers]
        silent += [stream.label(n) for n in stream.workers if not content.by_worker.get(n)]
        behind |= {
            stream.label(worker): tuple(frontier.elements)
            for worker, frontier in stream.frontiers.items()
            if not plan.is_complete(frontier)
        }
        known = set(stream.labels.values())
        declared = _declared(stream, config)
        not_on_tape += [stream.named(label) for label in declared if label not in known]
    return WorkerGaps(tuple(left_out), behind, tuple(silent), tuple(not_on_tape))


def _declared(stream: StreamInput, config: ProjectConfig) -> tuple[str, ...]:
    declared = config.streams.get(stream.tape.name)
    by = None if declared is None else declared.workers
    if isinstance(by, ByKey):
        return tuple(str(number) for number in range(by.count))
    return by.labels or () if isinstance(by, ByColumn) else ()
