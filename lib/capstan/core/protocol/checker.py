"""The checker of recordings, which costs as much per event as the event changes.

It takes events as plain tuples and numbers, so that readers of columnar batches need not build an
object per event, and it can resume where an earlier run stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from capstan.core.protocol.events import Item, Messages, Progress, in_order, unsorted
from capstan.core.protocol.rules import Rule, Violation, holdings_json
from capstan.core.times import PRODUCT, Antichain, MutableAntichain, Time, TimeOrder, TimeType

_PAIR: Final = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a recording."""

    valid: bool
    events: int  # valid ones before the first violation
    records: int
    violation: Violation | None
    holdings: tuple[tuple[Time, int], ...]  # `(time, count)` then held, in listing order
    frontier: Antichain
    closed: bool

    def to_json(self, time_type: TimeType) -> dict[str, object]:
        """The verdict as JSON for reports."""
        return {
            "valid": self.valid,
            "events": self.events,
            "records": self.records,
            "violation": None if self.violation is None else self.violation.to_json(time_type),
            "holdings": holdings_json(self.holdings, time_type),
            "frontier": [time_type.render(time) for time in self.frontier],
            "closed": self.closed,
        }


class StreamChecker:
    """Checks the events of one recording in order and keeps only the capabilities held.

    `progress` and `messages` each check one event. They either accept the event, apply its changes
    and count it, or return the violation and change nothing. A recording ends at its first
    violation: the caller stops there. `seq` is the position of the next event, from 0.
    """

    __slots__ = ("_held", "_width", "records", "seq")

    def __init__(
        self,
        minimum: tuple[int, ...],
        holdings: Iterable[tuple[tuple[int, ...], int]] | None = None,
        *,
        seq: int = 0,
        records: int = 0,
        order: TimeOrder = PRODUCT,
    ) -> None:
        """Start at the beginning, or where an earlier run stopped, with what was held there.

        By default `{minimum: 1}` is held; `n` interleaved recordings start with `{minimum: n}`.
        """
        held = MutableAntichain.from_items([(minimum, 1)] if holdings is None else holdings, order)
        for time, count in held.items():
            if count < 0 or len(time) != len(minimum):
                message = f"cannot be held: {time} x{count}"
                raise ValueError(message)
        self._held: Final = held
        self._width: Final = len(minimum)
        self.seq = seq
        self.records = records

    @property
    def holdings(self) -> tuple[tuple[Time, int], ...]:
        """The capabilities held: `(time, count)` in listing order."""
        return self._held.items()

    @property
    def frontier(self) -> Antichain:
        """The minimal elements of the times held."""
        return self._held.frontier

    @property
    def closed(self) -> bool:
        """Whether nothing is held."""
        return self._held.is_empty

    def judge(self, item: Item) -> Violation | None:
        """Check an event, or report the fault in its place."""
        if isinstance(item, Progress):
            return self.progress(item.updates)
        if isinstance(item, Messages):
            return self.messages(item.stamp, item.records)
        return self.refuse(item.rule, item.detail)

    def expect(self, seq: int) -> Violation | None:
        """Check the number of the next event; the event itself is checked afterwards."""
        if seq == self.seq:
            return None
        return self.refuse(Rule.SEQ, f"seq {seq} where {self.seq} was due")

    def refuse(self, rule: Rule, detail: str, time: tuple[int, ...] | None = None) -> Violation:
        """The violation that the caller found at the next event: `shape`, `seq` or `content`."""
        offending = None if time is None else Time(time)
        return Violation(self.seq, rule, offending, self.holdings, detail=detail)

    def progress(self, updates: Sequence[tuple[tuple[int, ...], int]]) -> Violation | None:
        """Check a progress event, given its `(time, diff)` pairs in any order."""
        held, width = self._held, self._width
        net = updates
        # Nearly every event drops one time and takes another, so there is nothing to add up.
        if len(updates) > _PAIR or (len(updates) == _PAIR and updates[0][0] == updates[1][0]):
            net = _net(updates)
        for time, diff in net:
            if (
                len(time) != width
                or (diff > 0 and not held.less_equal(time))
                or (diff < 0 and held.count(time) + diff < 0)
            ):
                return self._broken_by(net)
        held.apply(net)
        self.seq += 1
        return None

    def messages(self, stamp: Sequence[tuple[int, ...]], records: int) -> Violation | None:
        """Check a messages event by the times of its stamp, and count its records."""
        if len(stamp) == 1:
            # Nearly all messages have one time.
            time = stamp[0]
            if len(time) != self._width or not self._held.less_equal(time):
                return self._uncovered(stamp)
        elif not self._covers(stamp):
            return self._uncovered(stamp)
        self.seq += 1
        self.records += records
        return None

    def verdict(self, violation: Violation | None = None) -> Verdict:
        """The result for the recording: ended by `violation`, or valid so far."""
        return Verdict(
            valid=violation is None,
            events=self.seq,
            records=self.records,
            violation=violation,
            holdings=self.holdings,
            frontier=self.frontier,
            closed=self.closed,
        )

    def _broken_by(self, net: Sequence[tuple[tuple[int, ...], int]]) -> Violation | None:
        """The first rule that a progress event breaks, by the order of the rules."""
        for time, _ in net:
            if len(time) != self._width:
                return self._misshapen(time)
        listed = sorted(net)
        for time, diff in listed:
            if diff > 0 and not self._held.less_equal(time):
                return Violation(self.seq, Rule.INCREMENT, Time(time), self.holdings, count=diff)
        for time, diff in listed:
            count = self._held.count(time) + diff
            if count < 0:
                return Violation(self.seq, Rule.NEGATIVE, Time(time), self.holdings, count=count)
        return None

    def _covers(self, stamp: Sequence[tuple[int, ...]]) -> bool:
        width, held = self._width, self._held
        sized = all(len(time) == width for time in stamp)
        return sized and in_order(stamp) and all(held.less_equal(time) for time in stamp)

    def _uncovered(self, stamp: Sequence[tuple[int, ...]]) -> Violation:
        """The first rule that a stamp breaks, by the order of the rules."""
        for time in stamp:
            if len(time) != self._width:
                return self._misshapen(time)
        if not in_order(stamp):
            return self.refuse(Rule.SHAPE, unsorted(stamp))
        time = next(time for time in stamp if not self._held.less_equal(time))
        return Violation(self.seq, Rule.MESSAGE, Time(time), self.holdings)

    def _misshapen(self, time: tuple[int, ...]) -> Violation:
        return self.refuse(
            Rule.SHAPE, f"{len(time)} coordinates where times have {self._width}: {tuple(time)}"
        )


def check_all(judge: StreamChecker, items: Iterable[Item]) -> Verdict:
    """Check events up to the first violation, and return the result."""
    for item in items:
        violation = judge.judge(item)
        if violation is not None:
            return judge.verdict(violation)
    return judge.verdict()


def _net(updates: Iterable[tuple[tuple[int, ...], int]]) -> list[tuple[tuple[int, ...], int]]:
    # Zeros stay, so that the times of all updates are checked.
    net: dict[tuple[int, ...], int] = {}
    for time, diff in updates:
        net[time] = net.get(time, 0) + diff
    return list(net.items())
