"""Owners of the parts of a region, exact even for partially ordered times.

A region is defined by comparing single coordinates with the numbers in its bounds and frontiers.
Between two such numbers the result is constant, so a region is evaluated cell by cell, at the least
time of each cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from capstan.core.times import Time
from capstan.core.times.region import Region
from capstan.replay.target.standing import Effect, WrittenRegion


@dataclass(frozen=True, slots=True)
class RegionOwner:
    """The owners of a region.

    Attributes:
        covered: Whether all of it was written, and nobody else has changed it since.
        touched: Whether some of it was written.
        stale: Whether other code than the present was last to write some of it.
        runs: The runs that were last to write some of it, in input order.
        changes: Later changes to it by others, in input order.
    """

    covered: bool
    touched: bool
    stale: bool
    runs: tuple[str, ...]
    changes: tuple[str, ...] = ()


def region_owner(region: Region, minimum: Time, written: Sequence[WrittenRegion]) -> RegionOwner:
    """The owners of a region; of overlapping writers, in the order of commits, the last counts."""
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
    """The index of the last run to write a time, and the indexes of what others changed there.

    A run that merged or appended leaves rows of other outputs that were there before, and an
    appending one all that others had changed. Without a run of this output, one that has mixed its
    rows with others counts as the last one.
    """
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
