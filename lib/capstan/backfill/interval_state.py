"""The state of intervals: what was written of them, against whose records they can have."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from capstan.backfill.evidence import Evidence, extent
from capstan.backfill.interval import Interval, State
from capstan.backfill.region_owner import RegionOwner, Written, judge
from capstan.core.times import Antichain, Box
from capstan.core.times.region import Region
from capstan.replay.planning.computation import PipelineComputation
from capstan.replay.planning.plan import Plan
from capstan.storage.ledger.claims import Scope


@dataclass(frozen=True, slots=True)
class IntervalClassifier:
    """What it takes to tell the state of an interval.

    Attributes:
        plan: The range, resolved.
        evidence: What is known of the target.
        beginnings: By worker, from where on it can have records.
    """

    plan: Plan
    evidence: Evidence
    beginnings: Mapping[int, Antichain]

    @property
    def _of_pipeline(self) -> bool:
        return isinstance(self.plan.computation, PipelineComputation)

    def interval(self, since: int, until: int, near: Sequence[Written]) -> Interval:
        """The interval from `since` to before `until`, where `near` may have written."""
        box = Box((*self.plan.box.since[:-1], since), (*self.plan.box.until[:-1], until))
        complete = bool(self.plan.workers) and self.plan.completes(box)
        # Rows of a pipeline have one coordinate of the stream's times.
        own = Box((since,), (until,)) if self._of_pipeline else box
        return self.told((since, until), Region(own), near, complete=complete)

    def told(
        self,
        bounds: tuple[int, int],
        region: Region,
        near: Sequence[Written],
        *,
        complete: bool,
    ) -> Interval:
        """The interval of a region, shown with these bounds."""
        verdicts = self._verdicts(region, near)
        missing = {w: v for w, v in verdicts.items() if not v.covered}
        stale = [w for w, v in verdicts.items() if v.stale]
        wrote = {run for verdict in verdicts.values() for run in verdict.runs}
        runs = [each.run for each in near if each.run in wrote]
        state = State.STALE if stale else State.COVERED
        if not complete:
            state = State.INCOMPLETE
        elif (missing or stale) and self._is_retired(bounds):
            state = State.RETIRED
        elif waits := self._waits({*missing, *stale}, region):
            state = State.WAITING
            runs += waits
        elif missing:
            failed = self.evidence.failed(Scope(self.plan.target, tuple(missing), region))
            state = State.CHANGED if any(v.changes for v in missing.values()) else State.GAP
            state = state if failed is None else State.FAILED
            runs += [] if failed is None else [failed]
        render = self.plan.tape.time_type.coordinates[-1].render
        return Interval(
            str(render(bounds[0])),
            str(render(bounds[1])),
            state,
            tuple(dict.fromkeys(runs)),
            self._labels(missing),
            self._labels(stale),
            self._labels(w for w, v in missing.items() if v.touched),
            self._labels(verdicts),
            tuple(dict.fromkeys(said for v in missing.values() for said in v.changes)),
        )

    def _verdicts(self, region: Region, near: Sequence[Written]) -> dict[int, RegionOwner]:
        """By worker that can have records in the region, what stands there of it."""
        minimum, last = self.plan.time_type.minimum, region.box.until[-1]
        reach = Box.everything(self.plan.tape.time_type)
        reach = Box(reach.since, (*reach.until[:-1], last)) if self._of_pipeline else region.box
        found: dict[int, RegionOwner] = {}
        # Most often all workers were written by the same runs.
        known: dict[tuple[int, ...], RegionOwner] = {}
        for worker in self.plan.workers:
            if reach.is_complete(self.beginnings[worker]):
                continue
            key = tuple(i for i, each in enumerate(near) if each.holds(worker))
            if key not in known:
                known[key] = judge(region, minimum, [near[i] for i in key])
            found[worker] = known[key]
        return found

    def _waits(self, lacking: Iterable[int], region: Region) -> list[str]:
        """The runs that wait for a decision over all that is lacking."""
        target = self.plan.target
        return self.evidence.waiting([Scope(target, (worker,), region) for worker in lacking])

    def _is_retired(self, bounds: tuple[int, int]) -> bool:
        """Whether records of some of these times were deleted."""
        outer = self.plan.box
        box = Box((*outer.since[:-1], bounds[0]), (*outer.until[:-1], bounds[1]))
        return any(box.overlaps(retired) for retired in self.evidence.retired)

    def _labels(self, workers: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.plan.workers[worker] for worker in workers)


def judged(judging: IntervalClassifier, cuts: Sequence[tuple[int, int]]) -> tuple[Interval, ...]:
    """The intervals with these bounds, which are adjacent and in order."""
    starts, ends = [since for since, _ in cuts], [until for _, until in cuts]
    near: list[list[Written]] = [[] for _ in cuts]
    for each in judging.evidence.written:
        box = each.region.simplified().box
        since, until = box.since[-1], box.until[-1]
        first = 0 if since is None else bisect_right(ends, since)
        after = len(cuts) if until is None else bisect_left(starts, until)
        for index in range(first, after):
            near[index].append(each)
    return tuple(judging.interval(*one, wrote) for one, wrote in zip(cuts, near, strict=True))


def whole_target(judging: IntervalClassifier) -> tuple[Interval, ...]:
    """The one interval of a target that keeps no time: all that is complete."""
    plan = judging.plan
    recorded = extent(plan)
    if recorded is None:
        return ()
    since, last = recorded
    if not plan.frontier.is_empty:
        last = max(since, min(time[-1] for time in plan.frontier) - 1)
    complete = not plan.frontier.less_equal(plan.tape.time_type.minimum)
    # Each replacement is of all there was: only the last one stands.
    written = judging.evidence.written
    runs = [place for place, each in enumerate(written) if not each.changed]
    newest = written[runs[-1] :] if runs else ()
    return (judging.told((since, last + 1), plan.region, newest, complete=complete),)
