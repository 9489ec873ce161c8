"""Changes of counts per time, added up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from capstan.core.times.time import Time


@dataclass(init=False, slots=True)
class ChangeBatch:
    """A batch of changes to how often each time is counted, kept net.

    Changes at one time are added up, and a time whose changes cancel is not in the batch. So the
    order in which changes come in, zeros and cancelling pairs cannot be seen from outside.

    >>> batch = ChangeBatch([(Time.of(1), 1), (Time.of(0), -1), (Time.of(1), -1)])
    >>> batch.items()
    (((0,), -1),)
    """

    _net: dict[tuple[int, ...], int]

    def __init__(self, changes: Iterable[tuple[tuple[int, ...], int]] = ()) -> None:
        self._net = {}
        self.extend(changes)

    def update(self, time: tuple[int, ...], diff: int) -> None:
        """Adds `diff` to the change at `time`."""
        total = self._net.get(time, 0) + diff
        if total:
            self._net[time] = total
        else:
            self._net.pop(time, None)

    def extend(self, changes: Iterable[tuple[tuple[int, ...], int]]) -> None:
        """Adds every `(time, diff)` of `changes`."""
        for time, diff in changes:
            self.update(time, diff)

    def items(self) -> tuple[tuple[Time, int], ...]:
        """The net changes, each time once and none zero, in listing order."""
        return tuple((Time(time), diff) for time, diff in sorted(self._net.items()))

    def __bool__(self) -> bool:
        return bool(self._net)
