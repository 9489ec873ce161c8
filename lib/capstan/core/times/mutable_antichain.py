"""A multiset of times that maintains its frontier while its counts change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from capstan.core.times.antichain import Antichain
from capstan.core.times.change_batch import ChangeBatch
from capstan.core.times.order import PRODUCT, TimeOrder
from capstan.core.times.time import Time

# Removed times stay in the heap until they reach its top. It is rebuilt when it has twice the times
# held plus this many, so that its size and the cost of each change stay bounded.
_SLACK = 64


class MutableAntichain:
    """Counts per time, and the antichain of the minimal times with a positive count.

    In a total order, as that of one coordinate, a change costs the logarithm of the number of times
    held. In others, a change costs a pass over the frontier, and a removal from it a pass over all
    times held.

    Counts may fall below zero, which happens in passing when several senders are added up. Such
    times are not in the frontier. All times have the same number of coordinates, and may be plain
    tuples.
    """

    __slots__ = ("_before", "_counts", "_heap", "_minimal", "_order", "_total", "_width")

    def __init__(self, order: TimeOrder = PRODUCT) -> None:
        self._order = order
        self._before = order.comparison
        # Never zero.
        self._counts: dict[tuple[int, ...], int] = {}
        # Total orders: all held times, and perhaps some that are gone, but never at the top.
        self._heap: list[tuple[int, ...]] = []
        # Other orders: the frontier, in no order.
        self._minimal: list[tuple[int, ...]] = []
        # Number of coordinates; 0 until the first time is seen.
        self._width = 0
        self._total = False

    @classmethod
    def from_items(
        cls, items: Iterable[tuple[tuple[int, ...], int]], order: TimeOrder = PRODUCT
    ) -> MutableAntichain:
        """The multiset with these `(time, count)`; counts at one time are added up."""
        made = cls(order)
        made.update(items)
        return made

    @property
    def frontier(self) -> Antichain:
        """The minimal times with a positive count."""
        return Antichain.of(self._heap[:1] if self._total else self._minimal, self._order)

    @property
    def is_empty(self) -> bool:
        """Whether no time has a positive count."""
        return not self._heap and not self._minimal

    def count(self, time: tuple[int, ...]) -> int:
        """The count of `time`; 0 if it is missing."""
        return self._counts.get(time, 0)

    def items(self) -> tuple[tuple[Time, int], ...]:
        """All times with their counts, none zero, in listing order."""
        return tuple((Time(time), count) for time, count in sorted(self._counts.items()))

    def less_equal(self, time: tuple[int, ...]) -> bool:
        """Whether some time with a positive count is less or equal to `time`."""
        if self._total:
            return bool(self._heap) and self._heap[0] <= time
        before = self._before
        # A loop, not any(): see times.time.
        for element in self._minimal:  # noqa: SIM110
            if before(element, time):
                return True
        return False

    def update(self, changes: Iterable[tuple[tuple[int, ...], int]]) -> None:
        """Change counts in one step; changes at one time are added up."""
        self.apply(ChangeBatch(changes).items())

    def apply(self, net: Sequence[tuple[tuple[int, ...], int]]) -> None:
        """Apply net changes in one step: `(time, diff)`, each time at most once, zeros ignored."""
        if not self._width and net:
            self._width = len(net[0][0])
            self._total = self._order.is_total(self._width)
        if self._total:
            self._apply_total(net)
        else:
            self._apply_partial(net)

    def _apply_total(self, net: Sequence[tuple[tuple[int, ...], int]]) -> None:
        counts, heap = self._counts, self._heap
        for time, diff in net:
            before = counts.get(time, 0)
            after = before + diff
            if after:
                counts[time] = after
            else:
                counts.pop(time, None)
            if before <= 0 < after:
                heappush(heap, time)
        while heap and counts.get(heap[0], 0) <= 0:
            heappop(heap)
        if len(heap) > 2 * len(counts) + _SLACK:
            # A sorted list is a heap.
            heap[:] = sorted(time for time, count in counts.items() if count > 0)

    def _apply_partial(self, net: Sequence[tuple[tuple[int, ...], int]]) -> None:
        counts = self._counts
        came: list[tuple[int, ...]] = []
        gone: set[tuple[int, ...]] = set()
        for time, diff in net:
            before = counts.get(time, 0)
            after = before + diff
            if after:
                counts[time] = after
            else:
                counts.pop(time, None)
            if before <= 0 < after:
                came.append(time)
            elif after <= 0 < before:
                gone.add(time)
        lost = [time for time in self._minimal if time in gone]
        if lost:
            self._minimal = [time for time in self._minimal if time not in gone]
            # Only times covered by a lost element can enter the frontier.
            came.extend(self._covered_by(lost))
        for time in came:
            self._insert(time)

    def _covered_by(self, elements: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [
            time
            for time, count in self._counts.items()
            if count > 0 and any(self._before(element, time) for element in elements)
        ]

    def _insert(self, time: tuple[int, ...]) -> None:
        if not self.less_equal(time):
            before = self._before
            kept = [element for element in self._minimal if not before(time, element)]
            self._minimal = [*kept, time]
