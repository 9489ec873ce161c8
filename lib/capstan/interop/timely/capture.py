"""Capture: what a program puts out, and how far it has come, as a valid recording."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from capstan.core.protocol import Event, Messages, Progress, StreamChecker, Violation
from capstan.core.times import Antichain, ChangeBatch, Coordinate, Kind, TimeType
from capstan.errors import CheckFailedError
from capstan.interop.timely.event_link import EventPusher

Output = Event | Antichain
"""What a sink gives: records, or how far it has come, as its frontier or as changes of counts."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What was recorded.

    Attributes:
        events: How many events.
        records: How many records they carry.
        frontier: Where the recording stands: empty when it is closed.
    """

    events: int
    records: int
    frontier: Antichain

    @property
    def closed(self) -> bool:
        """Whether nothing more can come."""
        return self.frontier.is_empty


class Capture:
    """Records one worker, event by event.

    It starts out holding one capability, for the minimum, as every recording does. Each event is
    judged before it is pushed, so that a program that breaks its own promise is stopped, and what
    is recorded is valid. After timely's `capture_into`: a progress event has the net changes of
    the frontier in listing order, and one that would change nothing is not written.

    Attributes:
        records: How many records were recorded.
    """

    def __init__(self, pusher: EventPusher, minimum: tuple[int, ...]) -> None:
        """Starts a recording whose times begin at `minimum`."""
        self._pusher = pusher
        self._judge = StreamChecker(minimum)
        self._width = len(minimum)

    @property
    def captured(self) -> Captured:
        """What was recorded so far."""
        return Captured(self._judge.seq, self._judge.records, self._judge.frontier)

    def messages(self, time: tuple[int, ...], data: Iterable[object]) -> None:
        """Records a batch at one time; an empty one is an event like others.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, no record can come at that time any more; nothing of
                it was pushed.
        """
        self._push(Messages.of(time, data))

    def progress(self, updates: Sequence[tuple[tuple[int, ...], int]]) -> None:
        """Records changes of the counts of held capabilities, as they are.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, they break a rule; nothing was pushed.
        """
        self._push(Progress.of(updates))

    def advance(self, frontier: Antichain) -> None:
        """Records that no record can come any more but at or after `frontier`.

        The capabilities that are held become one for each of its elements.

        Raises:
            CheckFailedError: `CAP-VIOLATION`, the frontier goes back; nothing was pushed.
        """
        changes = ChangeBatch((time, -count) for time, count in self._judge.holdings)
        changes.extend((time, 1) for time in frontier)
        if changes:
            self._push(Progress(changes.items()))

    def close(self) -> None:
        """Records that nothing more will come. Without it the recording stays open."""
        self.advance(Antichain())

    def output(self, output: Output) -> None:
        """Records one thing that a sink gave; see the methods for each kind."""
        if isinstance(output, Antichain):
            self.advance(output)
        else:
            self._push(output)

    def _push(self, event: Event) -> None:
        violation = self._judge.judge(event)
        if violation is not None:
            raise refusal(violation, self._width, "what the program puts out")
        self._pusher.push(event)


def capture_into(
    sink: Iterable[Output], pusher: EventPusher, minimum: tuple[int, ...] = (0,)
) -> Captured:
    """Records all that a sink gives, in order; after timely's `capture_into`.

    A sink gives records as `Messages`, and how far it has come as its frontier or as `Progress`.
    What has watermarks gives `Antichain.of([(watermark,)])` after the records before it, and
    `Antichain()` at the end; a sink that is just over leaves the recording open.

    >>> from capstan.interop.timely.event_link import EventLink
    >>> link = EventLink()
    >>> reader = link.reader()
    >>> sink = [Messages.of((0,), ["a"]), Antichain.of([(1,)]), Antichain()]
    >>> capture_into(sink, link).closed
    True
    >>> [event.updates for event in reader if isinstance(event, Progress)]
    [(((0,), -1), ((1,), 1)), (((1,), -1),)]

    Args:
        sink: What was put out and how far it has come, in order; drawn from as it comes.
        pusher: Where the events go: an `EventLink`, an `EventWriter`, a connection.
        minimum: The time at which the recording starts.

    Raises:
        CheckFailedError: `CAP-VIOLATION`, what the sink gave breaks a rule. What came before is
            recorded, and a valid recording.
    """
    capture = Capture(pusher, minimum)
    for output in sink:
        capture.output(output)
    return capture.captured


def refusal(violation: Violation, width: int, what: str) -> CheckFailedError:
    """The error for events that break a rule, their times being integers."""
    coordinates = (Coordinate.of(f"t{at}", Kind.BIGINT) for at in range(width))
    time_type = TimeType(tuple(coordinates))
    return CheckFailedError(
        "CAP-VIOLATION",
        f"{what} breaks {violation.rule.value}: {violation.describe(time_type)}",
        "What comes before it is sound.",
        seq=violation.seq,
        rule=violation.rule.value,
        time=None if violation.time is None else list(violation.time),
    )
