"""Frontiers: sets of times none of which is before another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from capstan.core.times.order import PRODUCT, TimeOrder
from capstan.core.times.time import Time


@dataclass(frozen=True, slots=True)
class Antichain:
    """The minimal elements of some times, as a value: whatever is given, only these are kept.

    As a frontier it stands for all times that are at or after one of its elements: those can still
    come. So the antichain of nothing is the frontier of what is over, and the furthest of all.
    Elements are in listing order.

    >>> Antichain.of([Time.of(1, 0), Time.of(0, 1), Time.of(1, 1)]).elements
    ((0, 1), (1, 0))
    """

    elements: tuple[Time, ...] = ()
    order: TimeOrder = field(default=PRODUCT, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "elements", _minimal(self.elements, self.order))

    @classmethod
    def of(cls, times: Iterable[tuple[int, ...]], order: TimeOrder = PRODUCT) -> Antichain:
        """The minimal elements of `times`."""
        return cls(tuple(Time(time) for time in times), order)

    @property
    def is_empty(self) -> bool:
        """Whether no time can come any more."""
        return not self.elements

    def less_equal(self, time: tuple[int, ...]) -> bool:
        """Whether some element is less or equal to `time`."""
        before = self.order.comparison
        return any(before(element, time) for element in self.elements)

    def dominates(self, other: Antichain) -> bool:
        """Whether `other` has come at least as far: each of its elements is past one of these.

        This is the order in which frontiers advance: reflexive, transitive, antisymmetric. The
        empty frontier is dominated by all.
        """
        return all(self.less_equal(element) for element in other.elements)

    def __iter__(self) -> Iterator[Time]:
        return iter(self.elements)

    def __len__(self) -> int:
        return len(self.elements)


def complete(frontier: Antichain, time: tuple[int, ...]) -> bool:
    """Whether no record at `time` can ever come again: no element is less or equal to it."""
    return not frontier.less_equal(time)


def _minimal(times: tuple[Time, ...], order: TimeOrder) -> tuple[Time, ...]:
    if len(times) <= 1:
        return times
    kept: list[Time] = []
    before = order.comparison
    # In listing order a time can only be covered by one listed before it.
    for time in sorted(times):
        if not any(before(element, time) for element in kept):
            kept.append(time)
    return tuple(kept)
