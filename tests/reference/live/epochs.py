"""Timestamps of records, and epochs derived from them. Follows Malstrom's time operators.

A record is late when its time is at or before the last epoch. In terms of watermarks, which are one
unit later: before the watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from capstan.pipeline.graph.events import END
from capstan.pipeline.keyed.stateful_functions import Data
from capstan.pipeline.state.codec import PLAIN, Encoded
from tests.reference.live.messages import AbsBarrier, Epoch, Message

EpochRule = Callable[[Data[object], int | None], int | None]
"""Returns the epoch that follows a record, given the last epoch; or None."""


def assign_timestamps(
    time: Callable[[Data[object]], int],
) -> Callable[[Message], Iterator[Message]]:
    """Create an operator that assigns new times to records.

    It drops epochs of the old times, except for the final one, which stays valid.
    """

    def assign(message: Message) -> Iterator[Message]:
        if isinstance(message, Data):
            yield replace(message, time=time(message))
        elif not isinstance(message, Epoch) or message.time == END:
            yield message

    return assign


def monotonic(message: Data[object], last: int | None) -> int | None:
    """Rule for streams whose times never decrease: the time of each record is complete with it."""
    return message.time


def limit_out_of_orderness(bound: int) -> EpochRule:
    """Create the rule for streams in which no record lags by more than `bound`.

    Raises:
        ValueError: The bound is negative.
    """
    if bound < 0:
        message = f"the bound of out-of-orderness must not be negative: {bound}"
        raise ValueError(message)

    def rule(message: Data[object], last: int | None) -> int | None:
        return None if message.time is None else message.time - bound

    return rule


class EpochGenerator:
    """Emits epochs after the records that cause them, and diverts late records.

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
        """Create a generator without an epoch.

        Args:
            operator_id: Number of the operator.
            rule: Returns the epoch after a record; None, or an epoch that is not greater, has no
                effect.
            put: Called with each outgoing message.
            late: Called with each late record.
        """
        self.operator_id = operator_id
        self.last: int | None = None
        self._rule = rule
        self._put = put
        self._late = late

    def handle(self, message: Message) -> None:
        """Handle one message; incoming epochs are dropped, except for the final one."""
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
        """Continue from the epoch of a snapshot.

        Raises:
            ValueError: The state is not an epoch.
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
        epoch = self._rule(message, self.last)
        if epoch is not None:
            self._advance(epoch)

    def _advance(self, to: int) -> None:
        if self.last is None or to > self.last:
            self.last = to
            self._put(Epoch(to))
