"""Several channels as one input, with merged epochs and aligned system messages.

Follows Malstrom's operator input, with four corrections: channels take turns, an epoch is passed
on only when the merged one rises, every system message is passed on once, and channels that wait
for different messages are an error instead of a deadlock.
"""

from __future__ import annotations

from collections import deque

from capstan.pipeline.keyed.stateful_functions import Data
from tests.reference.errors import MixedAlignment
from tests.reference.live.messages import Epoch, Message


class AlignedInput:
    """Merges a number of channels.

    Records pass in turns of the channels. The merged epoch is the minimum of the channels' last
    epochs, and None until every channel has one. A system message blocks its channel until all
    channels have reached it.

    Attributes:
        frontier: The last epoch that was passed on, or None.
    """

    __slots__ = ("_channels", "_epochs", "_turn", "frontier")

    def __init__(self, channels: int) -> None:
        self._channels: list[deque[Message]] = [deque() for _ in range(channels)]
        self._epochs: list[int | None] = [None] * channels
        self._turn = 0
        self.frontier: int | None = None

    def send(self, channel: int, message: Message) -> None:
        """Queue a message on a channel."""
        self._channels[channel].append(message)

    def recv(self) -> Message | None:
        """Return the next message, or None when none can pass yet.

        Raises:
            MixedAlignment: Channels wait for different system messages.
        """
        while True:
            message = self._next()
            if not isinstance(message, Epoch):
                return message
            merged = self._merged()
            if merged is not None and (self.frontier is None or merged > self.frontier):
                self.frontier = merged
                return Epoch(merged)

    def _next(self) -> Message | None:
        """Return the next readable record or epoch, or the aligned system message."""
        count = len(self._channels)
        for step in range(count):
            number = (self._turn + step) % count
            channel = self._channels[number]
            if channel and isinstance(channel[0], Data | Epoch):
                self._turn = number + 1
                message = channel.popleft()
                if isinstance(message, Epoch):
                    known = self._epochs[number]
                    self._epochs[number] = (
                        message.time if known is None else max(known, message.time)
                    )
                return message
        return self._aligned()

    def _aligned(self) -> Message | None:
        # Only system messages are left at the heads.
        heads = [channel[0] for channel in self._channels if channel]
        different = [head for head in heads if head != heads[0]]
        if different:
            waiting = [type(head).__name__ for head in (heads[0], different[0])]
            text = f"channels wait for {waiting[0]} and {waiting[1]}"
            raise MixedAlignment.create(text, waiting=waiting)
        if len(heads) < len(self._channels):
            return None
        for channel in self._channels:
            channel.popleft()
        return heads[0]

    def _merged(self) -> int | None:
        least: int | None = None
        for epoch in self._epochs:
            if epoch is None:
                return None
            least = epoch if least is None else min(least, epoch)
        return least
