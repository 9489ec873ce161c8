"""The times of a replay: a box, restricted to complete times and to times not yet replayed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

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
        return Region(replace(self.box, since=(None,) * len(self.box.since)), self.below)

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
        return pending or replace(self.box, until=(None,) * len(self.box.until)).contains(time)

    def splits(self, stamp: Collection[Time]) -> bool:
        """Whether some elements of a stamp are in the region, and others are not."""
        inside = sum(map(self.contains, stamp))
        return 0 < inside < len(stamp)

    def includes(self, other: Region) -> bool:
        """Whether every time of another region is known to be in this one."""
        one, two = self.simplified(), other.simplified()
        if (one.below, one.above) not in ((None, None), (two.below, two.above)):
            return False
        inner = two.box.hull(one.box.order)
        return two.box.is_empty or one.box.intersect(inner) == inner

    def is_in(self, time_type: TimeType) -> bool:
        """Whether its times have as many coordinates as a type, in the same order."""
        shape = len(time_type.coordinates), time_type.order
        return (len(self.box.since), self.box.order) == shape

    def simplified(self) -> Region:
        """The same set; for totally ordered times as a box only."""
        box = self.box
        if not box.order.is_total(len(box.since)):
            return self
        if self.below:
            box = box.intersect(replace(box, until=self.below.elements[0]))
        if self.above is not None:
            # No time is above an empty frontier: an empty box at its own start.
            zero = tuple(bound or 0 for bound in box.until)
            start = self.above.elements[0] if self.above else zero
            box = box.intersect(replace(box, since=start))
            if not self.above:
                box = replace(box, until=box.since)
        return Region(box)
