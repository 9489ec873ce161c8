"""Exact unions of covered regions, as few as possible.

A table with hourly runs has thousands of them in a year, which mostly cover one contiguous range of
times. The union is exact: the points stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from capstan.core.times import Antichain, Box
from capstan.core.times.box import Bound, given
from capstan.core.times.region import Region
from capstan.storage.ledger.claims import Scope

Workers = frozenset[int] | None
"""None means all workers, including future ones."""


@dataclass(frozen=True, slots=True)
class RegionStrip:
    """Regions of some workers that differ only in their last coordinate, in order and with gaps.

    Those of pairs differ in their bounds as a whole.
    """

    workers: Workers
    regions: tuple[Region, ...]


def merge_scopes(scopes: Iterable[Scope]) -> list[RegionStrip]:
    """Merge scopes of one target, in the order they were written, into strips with the same rows.

    Runs of a followed replay continue from each other in this order.
    """
    by_workers: dict[Workers, list[Region]] = {}
    for scope in scopes:
        workers = None if scope.workers is None else frozenset(scope.workers)
        by_workers.setdefault(workers, []).append(scope.region)
    by_regions: dict[tuple[Region, ...], Workers] = {}
    for workers, regions in by_workers.items():
        merged = merge_regions(regions)
        for row in _merge_along(merged, _axes(merged)[-1]) if merged else ():
            # Workers with the same coverage share a strip.
            others = by_regions.get(row, frozenset())
            by_regions[row] = None if workers is None or others is None else workers | others
    return [RegionStrip(workers, row) for row, workers in by_regions.items()]


def merge_regions(regions: Iterable[Region]) -> list[Region]:
    """Merge regions into usually fewer ones with exactly the same times."""
    by_box: dict[Box, list[Region]] = {}
    for region in map(_without_idle_frontiers, regions):
        if not region.box.is_empty:
            _append_or_extend(by_box.setdefault(region.box, []), region)
    merged = [region for group in by_box.values() for region in group]
    for axis in reversed(_axes(merged)):
        merged = [region for strip in _merge_along(merged, axis) for region in strip]
    return merged


def _axes(regions: Sequence[Region]) -> list[slice]:
    """The parts of bounds along which regions can follow each other."""
    if not regions:
        return []
    width, order = len(regions[0].box.since), regions[0].box.order
    return [slice(0, width)] if order.lexicographic else [slice(i, i + 1) for i in range(width)]


def _without_idle_frontiers(region: Region) -> Region:
    """The region without frontiers that exclude nothing inside its box."""
    region = region.simplified()
    below, above = region.below, region.above
    if below is not None and region.box.is_complete(below):
        region = replace(region, below=None)
    first = tuple(bound for bound in region.box.since if bound is not None)
    if above is not None and len(first) == len(region.box.since) and above.less_equal(first):
        region = replace(region, above=None)
    return region


def _append_or_extend(joined: list[Region], region: Region) -> None:
    """Append a region to others of its box, or extend the last one if the region continues it."""
    last = joined[-1] if joined else None
    if last is None or not _follows(last, region):
        joined.append(region)
    elif _is_at_most(last.below, region.below):
        joined[-1] = replace(last, below=region.below)
    elif not _is_at_most(region.below, last.below):
        joined.append(region)


def _follows(first: Region, region: Region) -> bool:
    """Whether a region begins no earlier than another of its box, and no later than its end."""
    begins = region.above
    if begins is None:
        return first.above is None
    in_order = first.above is None or first.above.dominates(begins)
    return in_order and _is_at_most(begins, first.below)


def _is_at_most(one: Antichain | None, end: Antichain | None) -> bool:
    """Whether a frontier is at or beyond `one`; None is beyond all."""
    return end is None or (one is not None and one.dominates(end))


def _merge_along(regions: Iterable[Region], axis: slice) -> list[tuple[Region, ...]]:
    """Merge regions that differ only in one part of their bounds; sorted by it."""
    groups: dict[tuple[object, ...], list[Region]] = {}
    for region in regions:
        box = region.box
        rest = (
            *box.since[: axis.start],
            *box.since[axis.stop :],
            *box.until[: axis.start],
            *box.until[axis.stop :],
        )
        groups.setdefault((rest, region.below, region.above), []).append(region)
    return [_merge_intervals(group, axis) for group in groups.values()]


def _merge_intervals(regions: list[Region], axis: slice) -> tuple[Region, ...]:
    intervals = [(region.box.since[axis], region.box.until[axis]) for region in regions]
    merged: list[tuple[Bound, Bound]] = []
    for low, high in sorted(intervals, key=lambda interval: given(interval[0])):
        since, until = merged[-1] if merged else (low, low)
        if not merged or (given(until) and given(low) > given(until)):
            merged.append((low, high))
        elif given(until):
            merged[-1] = since, max(until, high, key=given) if given(high) else high
    return tuple(_with_interval(regions[0], axis, *interval) for interval in merged)


def _with_interval(region: Region, axis: slice, since: Bound, until: Bound) -> Region:
    low, high = list(region.box.since), list(region.box.until)
    low[axis], high[axis] = since, until
    return replace(region, box=replace(region.box, since=tuple(low), until=tuple(high)))
