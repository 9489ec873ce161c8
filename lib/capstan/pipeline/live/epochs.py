"""Gives records times, and epochs from these times. Follows Malstrom's operators of time.

A record is late when its time is at or before the last epoch; with watermarks, which are one unit
later, the same rule reads: before the watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from capstan.pipeline.graph.events import END
from capstan.pipeline.keyed.messages import AbsBarrier, Data, Epoch, Message
from capstan.pipeline.state.codec import PLAIN, Encoded

EpochRule = Callable[[Data[object], int | None], int | None]
"""From a record and the last epoch the epoch that follows the record, or None."""


def assign_timestamps(
    time: Callable[[Data[object]], int],
) -> Callable[[Message], Iterator[Message]]:
    """An operator that gives records new times.

    Epochs of the old times are dropped, but for the last one: that nothing follows stays true.
    """

    def assigned(message: Message) -> Iterator[Message]:
        if isinstance(message, Data):
            yield replace(message, time=time(message))
        elif not isinstance(message, Epoch) or message.time == END:
            yield message

    return assigned


def monotonic(message: Data[object], last: int | None) -> int | None:
    """The rule of streams whose times never fall: each record's time is complete with it."""
    return message.time


def limit_out_of_orderness(bound: int) -> EpochRule:
    """The rule of streams in which no record lags by more than `bound`.

    Raises:
        ValueError: The bound is negative.
    """
    if bound < 0:
        message = f"records cannot lag by {bound}"
        raise ValueError(message)

    def rule(message: Data[object], last: int | None) -> int | None:
        return None if message.time is None else message.time - bound

    return rule


class EpochGenerator:
    """Puts epochs behind the records that cause them, and late records aside.

    Attributes:
        operator_id: Stable number of the operator, for snapshots.
        last: The last epoch, or None.
    """

    __slots__ = ("_late", "_put", "_rule", "last", "operator_id")

    def __init__(
        self,
        operator_id: int,
        rule: EpochRule,
        put: Callable[[Message], None],
        late: Callable[[Data[object]], None],
    ) -> None:
        """A generator without an epoch.

        Args:
            operator_id: Its number.
            rule: What epoch follows a record; None or one that is not greater changes nothing.
            put: Called with each message that comes out.
            late: Called with each record that is late.
        """
        self.operator_id = operator_id
        self.last: int | None = None
        self._rule = rule
        self._put = put
        self._late = late

    def handle(self, message: Message) -> None:
        """Handle one message; epochs that come in are dropped, but for the last one."""
        if isinstance(message, Data):
            self._data(message)
        elif isinstance(message, Epoch):
            if message.time == END:
                self._advance(END)
        else:
            if isinstance(message, AbsBarrier):
                state = Encoded(PLAIN.name, 1, PLAIN.encode(self.last))
                message.reply.give_state(self.operator_id, state)
            self._put(message)

    def restore(self, state: Encoded) -> None:
        """Go on from the epoch of a snapshot.

        Raises:
            ValueError: It is no epoch.
        """
        last = PLAIN.decode(state.data)
        if last is not None and not isinstance(last, int):
            message = f"not an epoch: {last!r}"
            raise ValueError(message)
        self.last = last

    def _data(self, message: Data[object]) -> None:
        if self.last is not None and message.time is not None and message.time <= self.last:
            self._late(message)
            return
        self._put(message)
        found = self._rule(message, self.last)
        if found is not None:
            self._advance(found)

    def _advance(self, to: int) -> None:
        if self.last is None or to > self.last:
            self.last = to
            self._put(Epoch(to))
