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


@dataclass(frozen=True, slots=True)
class WrittenRegion:
    """A region of a target written by a run, or changed by somebody else.

    Attributes:
        run: The run.
        workers: The workers of the rows; None for all.
        region: The times of the rows.
        current: Whether the present code has written it.
        changed: The name of a commit by somebody else, which may have changed earlier rows.
    """

    run: str
    workers: frozenset[int] | None
    region: Region
    current: bool = True
    changed: str = ""

    def holds(self, worker: int) -> bool:
        """Whether it can include rows of this worker."""
        return self.workers is None or worker in self.workers


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
    """Determine the owners of a region; where writers overlap, the later one counts.

    Args:
        region: The times in question.
        minimum: The least possible time.
        written: WrittenRegion regions and changes by others, in the order of their commits.
    """
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
    """The index of the last run to write a time, and the indexes of later changes by others."""
    changes: set[int] = set()
    for i in range(len(written) - 1, -1, -1):
        if not written[i].region.contains(time):
            continue
        if not written[i].changed:
            return i, changes
        changes.add(i)
    return None, changes


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
