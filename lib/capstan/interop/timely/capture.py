"""Capture: a program's output and its frontier, written as a valid recording."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from capstan.core.protocol import Event, Messages, Progress, StreamChecker, Violation
from capstan.core.times import (
    PRODUCT,
    Antichain,
    ChangeBatch,
    Coordinate,
    Kind,
    TimeOrder,
    TimeType,
)
from capstan.errors import CheckFailedError
from capstan.interop.timely.event_link import EventPusher

Output = Event | Antichain
"""One item of a sink's output: an event, or the frontier that the sink has reached."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The result of a capture; its `frontier` is empty when the recording is closed."""

    events: int
    records: int
    frontier: Antichain

    @property
    def closed(self) -> bool:
        """Whether no further events can come."""
        return self.frontier.is_empty


class Capture:
    """Records one worker, event by event.

    Like every recording, it starts with one capability at the minimum. Each event is checked before
    it is pushed: a program that breaks its own promise is stopped, and the recording stays valid.
    As with timely's `capture_into`, a progress event has the net changes of the frontier in listing
    order, and an event without changes is not written.
    """

    def __init__(
        self, pusher: EventPusher, minimum: tuple[int, ...], order: TimeOrder = PRODUCT
    ) -> None:
        """Start a recording whose times begin at `minimum`, and are in `order`."""
        self._pusher = pusher
        self._checker = StreamChecker(minimum, order=order)
        self._width = len(minimum)

    @property
    def captured(self) -> Captured:
        """The events captured so far."""
        return Captured(self._checker.seq, self._checker.records, self._checker.frontier)

    def messages(self, time: tuple[int, ...], data: Iterable[object]) -> None:
        """Record a batch at one time; an empty batch is an event too.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, the time is already complete; nothing was pushed.
        """
        self._push(Messages.of(time, data))

    def stamped(self, times: Iterable[tuple[int, ...]], data: Iterable[object]) -> None:
        """Record a batch under a stamp of any number of times, in any order.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, one of them is complete; nothing was pushed.
        """
        self._push(Messages.under(times, data))

    def advance(self, frontier: Antichain) -> None:
        """Hold one capability for each element of `frontier`: all later records are at or after it.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, the frontier moves back; nothing was pushed.
        """
        changes = ChangeBatch((time, -count) for time, count in self._checker.holdings)
        changes.extend((time, 1) for time in frontier)
        if changes:
            self._push(Progress(changes.items()))

    def close(self) -> None:
        """Close the recording: no more events will come. Otherwise it stays open."""
        self.advance(Antichain())

    def output(self, output: Output) -> None:
        """Record one item of a sink's output, an event unchanged.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, it breaks a rule; nothing was pushed.
        """
        if isinstance(output, Antichain):
            self.advance(output)
        else:
            self._push(output)

    def _push(self, event: Event) -> None:
        violation = self._checker.judge(event)
        if violation is not None:
            raise violation_error(violation, self._width, "the program's output")
        self._pusher.push(event)


def capture_into(
    sink: Iterable[Output],
    pusher: EventPusher,
    minimum: tuple[int, ...] = (0,),
    order: TimeOrder = PRODUCT,
) -> Captured:
    """Record the whole output of a sink, in order; after timely's `capture_into`.

    The sink yields records as `Messages`, and its progress as a frontier or as `Progress`. A source
    with watermarks yields `Antichain.of([(watermark,)])` after the records before it, and
    `Antichain()` at the end. If the sink merely stops, the recording stays open.

    >>> from capstan.interop.timely.event_link import EventLink
    >>> link = EventLink()
    >>> reader = link.reader()
    >>> sink = [Messages.of((0,), ["a"]), Antichain.of([(1,)]), Antichain()]
    >>> capture_into(sink, link).closed
    True
    >>> [event.updates for event in reader if isinstance(event, Progress)]
    [(((0,), -1), ((1,), 1)), (((1,), -1),)]

    Args:
        sink: Consumed as it comes.
        pusher: An `EventLink`, an `EventWriter`, or a connection.
        minimum: Minimum time of the recording.
        order: Order of its times; `PAIR` for pairs.

    Raises:
        CheckFailedError: `CAP-VIOLATION`, the output breaks a rule. The events before it are
            recorded, and form a valid recording.
    """
    capture = Capture(pusher, minimum, order)
    for output in sink:
        capture.output(output)
    return capture.captured


def violation_error(violation: Violation, width: int, subject: str) -> CheckFailedError:
    """The error for events that break a rule; times are tuples of `width` integers."""
    coordinates = (Coordinate.of(f"t{position}", Kind.BIGINT) for position in range(width))
    time_type = TimeType(tuple(coordinates))
    return CheckFailedError(
        "CAP-VIOLATION",
        f"{subject} breaks {violation.rule.value}: {violation.describe(time_type)}",
        "the events before it are sound",
        seq=violation.seq,
        rule=violation.rule.value,
        time=None if violation.time is None else list(violation.time),
    )
