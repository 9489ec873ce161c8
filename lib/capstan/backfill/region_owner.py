"""Who wrote which part of a region: exact, also where times are partially ordered.

A region is told by comparisons of single coordinates with the numbers in its bounds and frontiers.
Between two such numbers no answer changes; so a region is judged cell by cell, at the least time of
each cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from capstan.core.times import Time
from capstan.core.times.region import Region


@dataclass(frozen=True, slots=True)
class Written:
    """What a run has put into a target.

    Attributes:
        run: The run.
        workers: Whose rows; None for the rows of all workers.
        region: Of which times.
        current: Whether by the code that would write it today.
        changed: Of a commit of somebody else, its name: what stood there may not any more.
    """

    run: str
    workers: frozenset[int] | None
    region: Region
    current: bool = True
    changed: str = ""

    def holds(self, worker: int) -> bool:
        """Whether rows of this worker are among it."""
        return self.workers is None or worker in self.workers


@dataclass(frozen=True, slots=True)
class RegionOwner:
    """What stands in a region.

    Attributes:
        covered: Whether all of it was written, and nobody else has changed it since.
        touched: Whether some of it was written.
        stale: Whether some of it was written last by other code than today's.
        runs: The runs that wrote something of it last, in the order of what was given.
        changes: What others have changed of it since, in that order.
    """

    covered: bool
    touched: bool
    stale: bool
    runs: tuple[str, ...]
    changes: tuple[str, ...] = ()


def judge(region: Region, minimum: Time, written: Sequence[Written]) -> RegionOwner:
    """Tell what of a region was written; where writers overlap, the later one counts.

    Args:
        region: The times that are asked about.
        minimum: The least time there is.
        written: What was written, and what others have changed, in the order of their commits.
    """
    found: set[int] = set()
    changed: set[int] = set()
    covered = True
    for corner in _corners(region, minimum, written):
        if not region.contains(corner):
            continue
        last, since = _last(corner, written)
        if last is None:
            covered = False
        else:
            found.add(last)
            changed |= since
    winners = [written[i] for i in sorted(found)]
    runs = tuple(dict.fromkeys(each.run for each in winners))
    changes = tuple(dict.fromkeys(written[i].changed for i in sorted(changed)))
    stale = any(not each.current for each in winners)
    return RegionOwner(covered and not changed, bool(winners), stale, runs, changes)


def _last(time: Time, written: Sequence[Written]) -> tuple[int | None, set[int]]:
    """Which run has written a time last, and what others have changed since; by their places."""
    since: set[int] = set()
    for place in range(len(written) - 1, -1, -1):
        if not written[place].region.contains(time):
            continue
        if not written[place].changed:
            return place, since
        since.add(place)
    return None, since


def _corners(region: Region, minimum: Time, written: Sequence[Written]) -> Iterator[Time]:
    """The least time of each cell in which every answer is the same."""
    axes = []
    for axis, least in enumerate(minimum):
        since, until = region.box.since[axis], region.box.until[axis]
        low = least if since is None else max(since, least)
        numbers = {
            number
            for each in (region, *(one.region for one in written))
            for number in _numbers(each, axis)
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
