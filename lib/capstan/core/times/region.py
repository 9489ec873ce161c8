"""The times of a replay: a box, restricted to complete times and to times not yet replayed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from capstan.core.times.antichain import Antichain
from capstan.core.times.box import Box
from capstan.core.times.time import Time
from capstan.core.times.time_type import TimeType


@dataclass(frozen=True, slots=True)
class Region:
    """A set of times: those of a box, complete under `below` and not complete under `above`.

    None sets no bound; neither does an empty `below`, under which every time is complete. A
    followed replay covers what is complete, so `above` leaves the times that are new to it.
    """

    box: Box
    below: Antichain | None = None
    above: Antichain | None = None

    def contains(self, time: Time) -> bool:
        """Whether `time` is in the region."""
        if self.below is not None and self.below.less_equal(time):
            return False
        if self.above is not None and not self.above.less_equal(time):
            return False
        return self.box.contains(time)

    @property
    def is_everything(self) -> bool:
        """Whether nothing bounds it: then it also has what is under no time at all."""
        region = self.simplified()
        bounds = (*region.box.since, *region.box.until)
        return not region.below and region.above is None and not any(b is not None for b in bounds)

    @property
    def end(self) -> Region:
        """The region with all times before it."""
        return Region(Box((None,) * len(self.box.since), self.box.until), self.below)

    def place(self, stamp: Collection[Time]) -> Time | None:
        """The element by which the region has the records under a stamp; None if it has not.

        It has them when some element is before its end, and none was in an earlier range: complete,
        and before its beginning. The first in listing order that is before the end is the place.
        """
        first = next(filter(self.end.contains, stamp), None)
        return first if first is not None and all(map(self._is_later, stamp)) else None

    def _is_later(self, time: Time) -> bool:
        """Whether a time was in no earlier range."""
        if self.above is not None and not self.above.less_equal(time):
            return False
        pending = self.below is not None and self.below.less_equal(time)
        return pending or Box(self.box.since, (None,) * len(self.box.until)).contains(time)

    def splits(self, stamp: Collection[Time]) -> bool:
        """Whether some elements of a stamp are in the region, and others are not."""
        inside = sum(map(self.contains, stamp))
        return 0 < inside < len(stamp)

    def includes(self, other: Region) -> bool:
        """Whether every time of another region is known to be in this one."""
        one, two = self.simplified(), other.simplified()
        if (one.below, one.above) not in ((None, None), (two.below, two.above)):
            return False
        return two.box.is_empty or one.box.intersect(two.box) == two.box

    def is_in(self, time_type: TimeType) -> bool:
        """Whether its times have as many coordinates as a type."""
        return len(self.box.since) == len(time_type.coordinates)

    def simplified(self) -> Region:
        """The same set; for totally ordered times as a box only."""
        if len(self.box.since) != 1:
            return self
        since, until = self.box.since[0], self.box.until[0]
        if self.below is not None and self.below.elements:
            end = self.below.elements[0][0]
            until = end if until is None else min(until, end)
        if self.above is not None:
            # No time is above an empty frontier: an empty box at its own start.
            start = self.above.elements[0][0] if self.above.elements else until or 0
            since = start if since is None else max(since, start)
            if not self.above.elements:
                until = since
        return Region(Box((since,), (until,)))
