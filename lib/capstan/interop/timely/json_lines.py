"""Incremental decoder of transcripts: bytes in, the events of their lines out."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from capstan.core.protocol import Fault, Item, Rule, read_transcript, transcript_minimum
from capstan.interop.timely.types.codec import MisfitError
from capstan.interop.timely.types.decoder import MAX_FRAME, Decoder, Torn
from capstan.interop.timely.types.event_types import EventTypes


class LineDecoder(Decoder):
    """Yields the event of each complete line.

    A last line without a newline counts as it is: in a file, anything that is not an event is a
    fault of shape. On a connection, a line that stops in the middle is a torn tail, and the events
    before it count. The decoder holds at most one line and one chunk of input.
    """

    __slots__ = ("_connected", "_items", "_lines", "_rest", "_types")

    def __init__(
        self,
        minimum: object,
        types: EventTypes | None = None,
        worker: int | None = None,
        longest: int = MAX_FRAME,
        *,
        connected: bool = False,
    ) -> None:
        """Start at the beginning of a transcript; see `Lines` and its `decoder`."""
        super().__init__(longest)
        transcript_minimum(minimum)
        self._connected = connected
        self._types = types
        self._lines: deque[bytes] = deque()
        self._rest: list[bytes] = []
        self._items = read_transcript(self._next_lines(), minimum, worker)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._lines.append(b"".join((*self._rest, line, b"\n")))
            self._rest = []
        if rest:
            self._rest.append(rest)

    def finish(self) -> None:
        """Mark the end of the input."""
        super().finish()
        if self._rest:
            self._lines.append(b"".join(self._rest))
            self._rest = []

    def _next(self) -> Item | None:
        longest = len(self._lines[0]) if self._lines else sum(map(len, self._rest))
        if longest > self._longest:
            detail = f"the line at byte {self.offset} is longer than {self._longest} bytes"
            return self._damaged("CAP-FRAME-LENGTH", detail)
        if not self._lines:
            self.over = self._ended
            return None
        size = len(self._lines[0])
        if self._connected and _is_cut_off(self._lines[0]):
            self.over = True
            about = f"torn at byte {self.offset + size}, in a line: its end is missing"
            self.torn = Torn(self.offset, size, None, about)
            return None
        item = self._typed(next(self._items))
        self._advance(size)
        return item

    def _next_lines(self) -> Iterator[bytes]:
        # Consumed one line at a time, and only when one is available: see `next`.
        while self._lines:
            yield self._lines.popleft()

    def _typed(self, item: Item) -> Item:
        event = item.found if isinstance(item, Fault) else item
        if self._types is None or event is None:
            return item
        try:
            typed = self._types.from_transcript(event)
            return replace(item, found=typed) if isinstance(item, Fault) else typed
        except MisfitError as error:
            return Fault(Rule.SHAPE, str(error))


def _is_cut_off(line: bytes) -> bool:
    """Whether a line stops in the middle: it has no newline, and is not yet JSON."""
    if line.endswith(b"\n"):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False
