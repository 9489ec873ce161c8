"""What many runs have covered, told by as few regions as mean the same.

A table that is filled by the hour has thousands of runs in a year, and mostly one stretch of times
that they cover together. Nothing here is approximate: the points stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from capstan.core.times import Antichain, Box
from capstan.core.times.region import Region
from capstan.storage.ledger.claims import Scope

Workers = frozenset[int] | None
"""None for all, also those to come."""


@dataclass(frozen=True, slots=True)
class RegionStrip:
    """Workers, and regions of theirs that differ in their last coordinate alone.

    Attributes:
        workers: The workers.
        regions: In order of the last coordinate, each with a gap to the next.
    """

    workers: Workers
    regions: tuple[Region, ...]


def merge_scopes(scopes: Iterable[Scope]) -> list[RegionStrip]:
    """The same rows as those of some scopes of one target, whose times have the same coordinates.

    Args:
        scopes: In the order they were written, in which followed replays go on from each other.
    """
    by_workers: dict[Workers, list[Region]] = {}
    for scope in scopes:
        workers = None if scope.workers is None else frozenset(scope.workers)
        by_workers.setdefault(workers, []).append(scope.region)
    found: dict[tuple[Region, ...], Workers] = {}
    for workers, regions in by_workers.items():
        for row in _rows(united(regions)):
            # Workers of whom the same is covered are told of together.
            others = found.get(row, frozenset())
            found[row] = None if workers is None or others is None else workers | others
    return [RegionStrip(workers, row) for row, workers in found.items()]


def united(regions: Iterable[Region]) -> list[Region]:
    """Regions that have exactly the times of these, and are mostly fewer."""
    by_box: dict[Box, list[Region]] = {}
    for region in map(_plain, regions):
        if not region.box.is_empty:
            _append_or_extend(by_box.setdefault(region.box, []), region)
    found = [region for joined in by_box.values() for region in joined]
    axes = len(found[0].box.since) if found else 0
    for axis in reversed(range(axes)):
        found = [region for row in _along(found, axis) for region in row]
    return found


def _rows(regions: list[Region]) -> list[tuple[Region, ...]]:
    return _along(regions, len(regions[0].box.since) - 1) if regions else []


def _plain(region: Region) -> Region:
    """The region without the frontiers that bound nothing inside of its box."""
    region = region.simplified()
    below, above = region.below, region.above
    if below is not None and region.box.is_complete(below):
        region = replace(region, below=None)
    first = tuple(bound for bound in region.box.since if bound is not None)
    if above is not None and len(first) == len(region.box.since) and above.less_equal(first):
        region = replace(region, above=None)
    return region


def _append_or_extend(joined: list[Region], region: Region) -> None:
    """Append a region to others of its box, or unite it with the last, if it goes on from that."""
    last = joined[-1] if joined else None
    if last is None or not _follows(last, region):
        joined.append(region)
    elif _is_at_most(last.below, region.below):
        joined[-1] = replace(last, below=region.below)
    elif not _is_at_most(region.below, last.below):
        joined.append(region)


def _follows(first: Region, region: Region) -> bool:
    """Whether a region of the same box begins after another one does, and before that has ended."""
    begins = region.above
    if begins is None:
        return first.above is None
    in_order = first.above is None or first.above.dominates(begins)
    return in_order and _is_at_most(begins, first.below)


def _is_at_most(one: Antichain | None, end: Antichain | None) -> bool:
    """Whether an end has come at least as far as `one`; None is past all."""
    return end is None or (one is not None and one.dominates(end))


def _along(regions: Iterable[Region], axis: int) -> list[tuple[Region, ...]]:
    """Regions that are the same but for one coordinate, united in it, and in its order."""
    alike: dict[tuple[object, ...], list[Region]] = {}
    for region in regions:
        box = region.box
        rest = (
            *box.since[:axis],
            *box.since[axis + 1 :],
            *box.until[:axis],
            *box.until[axis + 1 :],
        )
        alike.setdefault((rest, region.below, region.above), []).append(region)
    return [_joined(group, axis) for group in alike.values()]


def _joined(regions: list[Region], axis: int) -> tuple[Region, ...]:
    stretches: list[tuple[int | None, int | None]] = []
    for low, high in sorted((_stretch(each, axis) for each in regions), key=_order):
        since, until = stretches[-1] if stretches else (low, low)
        if not stretches or (until is not None and low is not None and low > until):
            stretches.append((low, high))
        elif until is not None:
            stretches[-1] = since, None if high is None else max(until, high)
    return tuple(_stretched(regions[0], axis, *each) for each in stretches)


def _stretch(region: Region, axis: int) -> tuple[int | None, int | None]:
    return region.box.since[axis], region.box.until[axis]


def _order(stretch: tuple[int | None, int | None]) -> tuple[bool, int]:
    return stretch[0] is not None, stretch[0] or 0


def _stretched(region: Region, axis: int, since: int | None, until: int | None) -> Region:
    low, high = list(region.box.since), list(region.box.until)
    low[axis], high[axis] = since, until
    return replace(region, box=Box(tuple(low), tuple(high)))
