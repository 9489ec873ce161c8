"""Transcripts as they come in: pieces of bytes into the events of their lines."""

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
    """Takes bytes as they come, and gives the event of each whole line; does no reading itself.

    A last line without its newline counts as it is: of a file, what is no event is a fault of
    shape; of a connection, a line that stops in the middle is a torn tail, and what is whole
    counts. At most a line and one piece of input are held.

    Attributes:
        offset: Where the next line starts, in bytes.
        seq: How many events and faults were given.
        torn: The unfinished last line of a connection, once `next` has come to it.
        over: Whether nothing more will be given.
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
        """Starts at the beginning of a transcript.

        Args:
            minimum: The minimum time as JSON; as it is written, so is every time.
            types: What times and records have to be of, and what the values of `data` become; by
                default any JSON will do, and stays as it is.
            worker: Whose recording it is; by default the first line says.
            max_line: The longest line that is read, in bytes.
            connected: Whether it comes over a connection, which can end anywhere.

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
        self._items = read_transcript(self._taken(), minimum, worker)
        self.offset = 0
        self.seq = 0
        self.torn: Torn | None = None
        self.over = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._lines.append(b"".join((*self._rest, line, b"\n")))
            self._rest = []
        if rest:
            self._rest.append(rest)

    def finish(self) -> None:
        """Takes note that no more bytes will come."""
        self._ended = True
        if self._rest:
            self._lines.append(b"".join(self._rest))
            self._rest = []

    def next(self) -> Item | None:
        """The event of the next line, or the fault in its place; None when there is no whole one.

        A line that is too long is damage, after which nothing more is given.
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
        if self._connected and _stops(self._lines[0]):
            self.over = True
            about = f"torn at byte {self.offset + size}, in a line: its end is missing"
            self.torn = Torn(self.offset, size, None, about)
            return None
        item = self._typed(next(self._items))
        self.offset += size
        self.seq += 1
        return item

    def _taken(self) -> Iterator[bytes]:
        # Asked for one line at a time, and only when there is one: see `next`.
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


def _stops(line: bytes) -> bool:
    """Whether a line stops in the middle: it has no newline, and is no JSON yet."""
    if line.endswith(b"\n"):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False
