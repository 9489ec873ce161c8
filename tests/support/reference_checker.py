"""The reference checker: the rules in their plainest form.

It is slow on purpose. It recomputes everything from a plain dictionary for every event and shares
no code with `capstan.core.protocol.checker`, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capstan.core.protocol import Fault, Item, Messages, Progress, Rule, Verdict, Violation
from capstan.core.protocol.events import unsorted
from capstan.core.times import PRODUCT, Antichain, Time, TimeOrder


def check(
    items: Iterable[Item], minimum: Time, capabilities: int = 1, order: TimeOrder = PRODUCT
) -> Verdict:
    """Check a recording from its beginning, up to its first violation.

    Args:
        items: The events in order, with a `Fault` in place of an invalid one.
        minimum: The time at which every recording starts.
        capabilities: The number held at `minimum` before the first event: the number of recordings
            interleaved in `items`.
        order: The order of times.
    """
    held = {minimum: capabilities} if capabilities else {}
    events = records = 0
    violation = None
    for item in items:
        violation = _violation(events, item, held, minimum, order)
        if violation is not None:
            break
        events += 1
        if isinstance(item, Messages):
            records += item.records
        if isinstance(item, Progress):
            held = _after(held, item)
    return Verdict(
        valid=violation is None,
        events=events,
        records=records,
        violation=violation,
        holdings=_listed(held),
        frontier=Antichain.of(held, order),
        closed=not held,
    )


def _violation(
    seq: int, item: Item, held: Mapping[Time, int], minimum: Time, order: TimeOrder
) -> Violation | None:
    listed = _listed(held)
    if isinstance(item, Fault):
        return Violation(seq, item.rule, None, listed, detail=item.detail)
    times = [time for time, _ in item.updates] if isinstance(item, Progress) else item.stamp
    for time in times:
        if len(time) != len(minimum):
            detail = f"{len(time)} coordinates where times have {len(minimum)}: {tuple(time)}"
            return Violation(seq, Rule.SHAPE, None, listed, detail=detail)
    if isinstance(item, Messages):
        if list(item.stamp) != sorted(item.stamp):
            return Violation(seq, Rule.SHAPE, None, listed, detail=unsorted(item.stamp))
        late = [time for time in item.stamp if not _supported(held, time, order)]
        return Violation(seq, Rule.MESSAGE, late[0], listed) if late else None
    for time, rise in sorted(_net(item).items()):
        if rise > 0 and not _supported(held, time, order):
            return Violation(seq, Rule.INCREMENT, time, listed, count=rise)
    for time, count in sorted(_after(held, item).items()):
        if count < 0:
            return Violation(seq, Rule.NEGATIVE, time, listed, count=count)
    return None


def _supported(held: Mapping[Time, int], time: Time, order: TimeOrder) -> bool:
    return any(count > 0 and order.less_equal(element, time) for element, count in held.items())


def _net(event: Progress) -> dict[Time, int]:
    net: dict[Time, int] = {}
    for time, diff in event.updates:
        net[time] = net.get(time, 0) + diff
    return net


def _after(held: Mapping[Time, int], event: Progress) -> dict[Time, int]:
    after = dict(held)
    for time, diff in _net(event).items():
        after[time] = after.get(time, 0) + diff
    return {time: count for time, count in after.items() if count}


def _listed(held: Mapping[Time, int]) -> tuple[tuple[Time, int], ...]:
    return tuple(sorted(held.items()))
