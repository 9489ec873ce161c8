"""Incremental decoder of transcripts: bytes in, the events of their lines out."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from capstan.core.protocol import Fault, Item, Rule, read_transcript, transcript_minimum
from capstan.interop.timely.codec import MisfitError
from capstan.interop.timely.event_types import EventTypes
from capstan.interop.timely.frames import MAX_FRAME, Damage, Torn


class LineDecoder:
    """Takes bytes as they arrive, yields the event of each complete line; does no I/O.

    A last line without a newline counts as it is: in a file, anything that is not an event is a
    fault of shape. On a connection, a line that stops in the middle is a torn tail, and the events
    before it count. The decoder holds at most one line and one chunk of input.

    Attributes:
        offset: Start of the next line, in bytes.
        seq: Number of events and faults yielded.
        torn: The unfinished last line of a connection, once `next` has reached it.
        over: Whether no more events will be yielded.
    """

    __slots__ = (
        "_connected", "_ended", "_items", "_lines", "_most", "_rest", "_types",
        "offset", "over", "seq", "torn",
    )  # fmt: skip

    def __init__(
        self,
        minimum: object,
        types: EventTypes | None = None,
        worker: int | None = None,
        max_line: int = MAX_FRAME,
        *,
        connected: bool = False,
    ) -> None:
        """Start at the beginning of a transcript.

        Args:
            minimum: Minimum time as JSON; all times are written in the same form.
            types: Types of times and records, to which `data` is converted; by default any JSON is
                accepted and kept as it is.
            worker: Worker of the recording; by default that of the first line.
            max_line: Maximum length of a line, in bytes.
            connected: Whether the bytes come over a connection, which can end anywhere.

        Raises:
            InvalidRequestError: `CAP-TIME`, `minimum` is not a time.
        """
        transcript_minimum(minimum)
        self._connected = connected
        self._types = types
        self._most = max_line
        self._lines: deque[bytes] = deque()
        self._rest: list[bytes] = []
        self._ended = False
        self._items = read_transcript(self._next_lines(), minimum, worker)
        self.offset = 0
        self.seq = 0
        self.torn: Torn | None = None
        self.over = False

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
        self._ended = True
        if self._rest:
            self._lines.append(b"".join(self._rest))
            self._rest = []

    def next(self) -> Item | None:
        """The event of the next line, or the fault in its place; None without a complete line.

        A line that is too long is damage; nothing is yielded after it.
        """
        if self.over:
            return None
        longest = len(self._lines[0]) if self._lines else sum(map(len, self._rest))
        if longest > self._most:
            self.over = True
            detail = f"the line at byte {self.offset} is longer than {self._most} bytes"
            return Damage(Rule.SHAPE, detail, "CAP-FRAME-LENGTH", self.offset)
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
        self.offset += size
        self.seq += 1
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
