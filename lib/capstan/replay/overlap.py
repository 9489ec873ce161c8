"""What a planned replay would meet: what of it stands already, who holds it back, who is silent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.core.config import ByColumn, ByKey, ProjectConfig
from capstan.core.times import Time
from capstan.replay.planning.plan import Plan
from capstan.storage.arrow_scan import rows_of
from capstan.storage.ledger.coverage import Covered
from capstan.storage.tape.index import WorkerState
from capstan.storage.tape.region_mask import Mask, Numbers, in_box, inside, numbers_of


@dataclass(frozen=True, slots=True)
class PublishedOverlap:
    """Of the records that a replay would play, how many stand in its target already.

    Attributes:
        current: Records of cells that were written last by this transform or pipeline, in its
            present code.
        stale: Records of cells that were written last by another, or by other code.
        missing: Records of cells that no standing run has written.
        by_run: Records by the run that wrote their cell last.
    """

    current: int
    stale: int
    missing: int
    by_run: Mapping[str, int]

    def to_json(self) -> dict[str, object]:
        """The figures as JSON."""
        return {"current": self.current, "stale": self.stale, "missing": self.missing}


@dataclass(frozen=True, slots=True)
class WorkerGaps:
    """Workers that a plan's reader should know of, by label.

    Attributes:
        left_out: Workers on tape that were not chosen.
        behind: Chosen workers whose own frontier does not complete the range, with that frontier.
        silent: Chosen workers that have no record in what is played.
        not_on_tape: Declared workers of which nothing was ever captured.
    """

    left_out: tuple[str, ...]
    behind: Mapping[str, tuple[Time, ...]]
    silent: tuple[str, ...]
    not_on_tape: tuple[str, ...]


def is_stale(plan: Plan, covered: Covered) -> bool:
    """Whether a run wrote by another transform or pipeline than the plan's, or by other code."""
    return (covered.transform, covered.code) != (plan.name, plan.code)


def standing_in(plan: Plan, covered: Sequence[Covered]) -> PublishedOverlap:
    """Count what stands already, from the tape's index and the coverage ledger.

    Args:
        plan: The replay.
        covered: What stands in the part of the target that it would change, the newest last.
    """
    workers, times, records = _cells(plan)
    played = inside(plan.reads, times)
    if plan.piped is not None:
        # Of what it reads, what lies around the range is there for the rows inside alone.
        times = times[:, plan.axes]
        played &= inside(plan.region, times)
    workers, times, records = workers[played], times[played], records[played]
    open_: Mask = np.ones(len(records), dtype=np.bool_)
    by_run: dict[str, int] = {}
    stale = 0
    for each in reversed(covered):
        if each.stream != plan.tape.name or not plan.tells(each.scope.region):
            continue  # Its times are those of another stream, or in other coordinates.
        mine = open_ & inside(each.scope.region, times)
        if each.scope.workers is not None:
            mine &= np.isin(workers, each.scope.workers)
        count = int(records[mine].sum())
        by_run[each.run] = count
        stale += count if is_stale(plan, each) else 0
        open_ &= ~mine
    missing = int(records[open_].sum())
    return PublishedOverlap(int(records.sum()) - stale - missing, stale, missing, by_run)


def _cells(plan: Plan) -> tuple[Numbers, Numbers, Numbers]:
    """Workers, times and numbers of records of the messages in the box of what a plan reads."""
    events = rows_of(plan.tape.paths.events)
    time_type, box = plan.tape.time_type, plan.reads.simplified().box
    wanted = (
        (dataset.field("commit") <= plan.cut.commit)
        & (dataset.field("kind") == "messages")
        & dataset.field("worker").isin(sorted(plan.workers))
        & in_box(time_type, box)
    )
    found = events.to_table(columns=["worker", "time", "records"], filter=wanted)
    found = found.combine_chunks()
    times = [numbers_of(chunk, time_type) for chunk in found["time"].chunks]
    return (
        np.asarray(pc.cast(found["worker"], "int64").to_numpy(), dtype=np.int64),
        np.concatenate([np.empty((0, len(time_type.coordinates)), dtype=np.int64), *times]),
        np.asarray(pc.fill_null(found["records"], 0).to_numpy(), dtype=np.int64),
    )


def absent_from(
    plan: Plan,
    declarations: ProjectConfig,
    states: Collection[WorkerState],
    by_worker: Mapping[int, int],
) -> WorkerGaps:
    """Tell which workers are missing, and in which way.

    Args:
        plan: The replay.
        declarations: What is declared; the stream may not be.
        states: All workers at the cut.
        by_worker: How many records of each are played.
    """
    behind = {
        state.label: tuple(state.frontier.elements)
        for state in states
        if state.worker in plan.workers and not _completes(plan, state)
    }
    labels = {state.label for state in states}
    return WorkerGaps(
        tuple(state.label for state in states if state.worker not in plan.workers),
        behind,
        tuple(label for worker, label in plan.workers.items() if not by_worker.get(worker)),
        tuple(label for label in _declared(plan, declarations) if label not in labels),
    )


def _completes(plan: Plan, state: WorkerState) -> bool:
    return plan.is_complete(state.frontier)


def _declared(plan: Plan, declarations: ProjectConfig) -> tuple[str, ...]:
    stream = declarations.streams.get(plan.tape.name)
    by = None if stream is None else stream.workers
    if isinstance(by, ByKey):
        return tuple(str(number) for number in range(by.count))
    return by.labels or () if isinstance(by, ByColumn) else ()
