"""Classification of intervals: compares written regions with possible records."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from capstan.backfill.evidence import Evidence, recorded_extent
from capstan.backfill.interval import Interval, IntervalState
from capstan.core.times import Antichain, Box, Time
from capstan.core.times.region import Region
from capstan.replay.planning.plan import Plan
from capstan.replay.target.standing import Effect, WrittenRegion
from capstan.storage.ledger.claims import Scope


@dataclass(frozen=True, slots=True)
class IntervalClassifier:
    """Determines the state of intervals."""

    plan: Plan
    evidence: Evidence
    worker_starts: Mapping[int, Antichain]

    def classify(self, since: int, until: int, near: Sequence[WrittenRegion]) -> Interval:
        """The interval from `since` to before `until`, given the written regions near it."""
        plan, computation = self.plan, self.plan.computation
        box = self._box(since, until)
        complete = bool(plan.inputs.workers) and computation.is_complete(box, plan.frontier)
        region = Region(computation.project(box))
        return self.classify_region((since, until), region, near, complete=complete)

    def classify_region(
        self,
        bounds: tuple[int, int],
        region: Region,
        near: Sequence[WrittenRegion],
        *,
        complete: bool,
    ) -> Interval:
        """The interval of a region, with these bounds as its text."""
        target, evidence = self.plan.target, self.evidence
        owners = self._owners(region, near)
        missing = {worker: owner for worker, owner in owners.items() if not owner.covered}
        stale = [worker for worker, owner in owners.items() if owner.stale]
        writers = {run for owner in owners.values() for run in owner.runs}
        runs = [written.run for written in near if written.run in writers]
        state = IntervalState.STALE if stale else IntervalState.COVERED
        open_scopes = [Scope(target, (worker,), region) for worker in {*missing, *stale}]
        if not complete:
            state = IntervalState.INCOMPLETE
        elif (missing or stale) and any(map(self._box(*bounds).overlaps, evidence.retired)):
            state = IntervalState.RETIRED
        elif waits := evidence.waiting(open_scopes):
            state = IntervalState.WAITING
            runs += waits
        elif missing:
            failed = evidence.failed(Scope(target, tuple(missing), region))
            changed = any(owner.changes for owner in missing.values())
            state = IntervalState.CHANGED if changed else IntervalState.GAP
            state = state if failed is None else IntervalState.FAILED
            runs += [] if failed is None else [failed]
        render = self.plan.inputs.tape.time_type.coordinates[-1].render
        return Interval(
            str(render(bounds[0])),
            str(render(bounds[1])),
            state,
            tuple(dict.fromkeys(runs)),
            self._labels(missing),
            self._labels(stale),
            self._labels(worker for worker, owner in missing.items() if owner.touched),
            self._labels(owners),
            tuple(dict.fromkeys(text for owner in missing.values() for text in owner.changes)),
            evidence.unfinished(open_scopes),
        )

    def _owners(self, region: Region, near: Sequence[WrittenRegion]) -> dict[int, RegionOwner]:
        """The owner of the region for each worker that can have records in it."""
        minimum = self.plan.time_type.minimum
        reach = self.plan.computation.sources(region.box, self.plan.inputs.tape.time_type)
        owners: dict[int, RegionOwner] = {}
        # Usually the same runs have written all workers.
        cache: dict[tuple[int, ...], RegionOwner] = {}
        for worker in self.plan.inputs.workers:
            if reach.is_complete(self.worker_starts[worker]):
                continue
            key = tuple(i for i, written in enumerate(near) if written.holds(worker))
            if key not in cache:
                cache[key] = region_owner(region, minimum, [near[i] for i in key])
            owners[worker] = cache[key]
        return owners

    def _box(self, since: int, until: int) -> Box:
        outer = self.plan.box
        return Box((*outer.since[:-1], since), (*outer.until[:-1], until))

    def _labels(self, workers: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.plan.inputs.workers[worker] for worker in workers)


def classify_intervals(
    classifier: IntervalClassifier, bounds: Sequence[tuple[int, int]]
) -> tuple[Interval, ...]:
    """The intervals with these bounds, which are adjacent and in order."""
    starts, ends = [since for since, _ in bounds], [until for _, until in bounds]
    near: list[list[WrittenRegion]] = [[] for _ in bounds]
    for written in classifier.evidence.written:
        box = written.region.simplified().box
        since, until = box.since[-1], box.until[-1]
        first = 0 if since is None else bisect_right(ends, since)
        after = len(bounds) if until is None else bisect_left(starts, until)
        for index in range(first, after):
            near[index].append(written)
    return tuple(
        classifier.classify(since, until, regions)
        for (since, until), regions in zip(bounds, near, strict=True)
    )


def whole_target(classifier: IntervalClassifier) -> tuple[Interval, ...]:
    """The single interval of a target without a time column: all complete times."""
    plan = classifier.plan
    extent = recorded_extent(plan)
    if extent is None:
        return ()
    since, last = extent
    if not plan.frontier.is_empty:
        last = max(since, min(time[-1] for time in plan.frontier) - 1)
    complete = not plan.frontier.less_equal(plan.inputs.tape.time_type.minimum)
    # Each run replaces the whole table, so only the last one counts.
    written = classifier.evidence.written
    runs = [position for position, region in enumerate(written) if region.writes]
    newest = written[runs[-1] :] if runs else ()
    bounds = (since, last + 1)
    return (classifier.classify_region(bounds, plan.region, newest, complete=complete),)


@dataclass(frozen=True, slots=True)
class RegionOwner:
    """The owners of a region."""

    covered: bool  # all of it was written, and nobody else has changed it since
    touched: bool  # some of it was written
    stale: bool  # other code than the present was last to write some of it
    runs: tuple[str, ...]  # that were last to write some of it, in input order
    changes: tuple[str, ...] = ()  # later ones by others, in input order


def region_owner(region: Region, minimum: Time, written: Sequence[WrittenRegion]) -> RegionOwner:
    """The owners of a region; of overlapping writers, in the order of commits, the last counts."""
    # A region is defined by comparing single coordinates with the numbers in its bounds and
    # frontiers. Between two such numbers the result is constant, so it is evaluated cell by cell,
    # at the least time of each cell: exact even for partially ordered times.
    last_writers: set[int] = set()
    changed: set[int] = set()
    covered = True
    for corner in _corners(region, minimum, written):
        if not region.contains(corner):
            continue
        last, later_changes = _last_writer(corner, written)
        if last is None:
            covered = False
        else:
            last_writers.add(last)
            changed |= later_changes
    owners = [written[i] for i in sorted(last_writers)]
    runs = tuple(dict.fromkeys(owner.run for owner in owners))
    changes = tuple(dict.fromkeys(written[i].changed for i in sorted(changed)))
    stale = any(not owner.current for owner in owners)
    return RegionOwner(covered and not changed, bool(owners), stale, runs, changes)


def _last_writer(time: Time, written: Sequence[WrittenRegion]) -> tuple[int | None, set[int]]:
    """The index of the last run to write a time, and the indexes of what others changed there."""
    # A run that merged or appended leaves rows of other outputs that were there before, and an
    # appending one all that others had changed. Without a run of this output, one that has mixed
    # its rows with others counts as the last one.
    last: int | None = None
    mixed: int | None = None
    changes: set[int] = set()
    for i in range(len(written) - 1, -1, -1):
        entry = written[i]
        if not entry.region.contains(time):
            continue
        if last is None and entry.writes:
            last = i
        elif last is None or entry.remains_under(written[last].effect):
            changes.add(i)
            mixed = i if mixed is None and entry.run else mixed
        if last is not None and entry.effect is Effect.REPLACES:
            break
    if last is None and mixed is not None:
        return mixed, {i for i in changes if i > mixed}
    return last, changes


def _corners(region: Region, minimum: Time, written: Sequence[WrittenRegion]) -> Iterator[Time]:
    """The least time of each cell within which the result is constant."""
    axes = []
    for axis, least in enumerate(minimum):
        since, until = region.box.since[axis], region.box.until[axis]
        low = least if since is None else max(since, least)
        numbers = {
            number
            for compared in (region, *(item.region for item in written))
            for number in _numbers(compared, axis)
            if number > low and (until is None or number < until)
        }
        axes.append([low, *sorted(numbers)])
    return map(Time, product(*axes))


def _numbers(region: Region, axis: int) -> Iterable[int]:
    """The numbers with which a region compares one coordinate."""
    for bound in (region.box.since[axis], region.box.until[axis]):
        if bound is not None:
            yield bound
    for frontier in (region.below, region.above):
        for time in frontier or ():
            yield time[axis]
