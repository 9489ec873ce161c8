"""Ranges of one coordinate of times that follow each other without a gap."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from capstan.core.times.box import Box


@dataclass(frozen=True, slots=True)
class AdjoiningRanges:
    """Half-open ranges of the last coordinate, in the order of their times."""

    bounds: tuple[int, ...]  # The start of each range, then the end of the last one.

    @classmethod
    def of(cls, boxes: Sequence[Box]) -> AdjoiningRanges | None:
        """The ranges of boxes that differ in the last coordinate alone; None if there is a gap."""
        starts, ends = [box.since[-1] for box in boxes], [box.until[-1] for box in boxes]
        others = {(box.since[:-1], box.until[:-1]) for box in boxes}
        bounds = tuple(bound for bound in (*starts, *ends[-1:]) if bound is not None)
        if len(bounds) <= len(boxes) or starts[1:] != ends[:-1] or len(others) != 1:
            return None
        return cls(bounds)

    def number(self, time: tuple[int, ...]) -> int:
        """The number of the range that has a time; of other times that of the nearest one."""
        return min(max(bisect_right(self.bounds, time[-1]) - 1, 0), len(self.bounds) - 2)
