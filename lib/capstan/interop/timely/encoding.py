"""The two encodings of a recording: timely's frames, and transcripts."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from capstan.core.protocol import (
    Event,
    Fault,
    Item,
    Release,
    Rule,
    read_transcript,
    transcript_line,
    transcript_minimum,
)
from capstan.errors import InvalidRequestError
from capstan.interop.timely.frames import PREFIX, FrameDecoder, encode_event
from capstan.interop.timely.types.codec import MisfitError
from capstan.interop.timely.types.decoder import MAX_FRAME, Decoder, Torn
from capstan.interop.timely.types.event_types import EventTypes

FRAMES_SUFFIX: Final = ".bin"
LINES_SUFFIX: Final = ".jsonl"


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
        release: Release | None = None,
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
        self._items = read_transcript(self._next_lines(), minimum, worker, release)

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


class Encoding(ABC):
    """Encoding of a recording; `longest` is the maximum length of a frame or line, in bytes."""

    __slots__ = ()
    longest: int

    def encode(self, event: Event, seq: int) -> bytes:
        """The bytes of an event at position `seq`; its data are values of the record type.

        Raises:
            InvalidRequestError: `CAP-VALUE`, a value is not of its type; `CAP-FRAME-LENGTH`, the
                event is longer than readers accept; `CAP-STAMP`, the form has no place for its
                stamp.
        """
        try:
            data, size = self._encoded(event, seq)
        except MisfitError as error:
            raise InvalidRequestError(
                "CAP-VALUE",
                f"event {seq} cannot be written: {error}",
                "records and times must be of the given types",
                seq=seq,
            ) from error
        except InvalidRequestError as error:
            if error.code != "CAP-STAMP":
                raise
            raise InvalidRequestError(
                error.code,
                f"event {seq} cannot be written as timely {Release.V031} does: {error.message}",
                f"write the recording in the form of timely {Release.V032}",
                seq=seq,
            ) from error
        if size > self.longest:
            raise InvalidRequestError(
                "CAP-FRAME-LENGTH",
                f"event {seq} cannot be written: it takes {size:,} bytes, and readers accept at "
                f"most {self.longest:,}",
                "spread its records over more workers: replay into another stream with "
                "--into-stream and --peers",
                seq=seq,
            )
        return data

    @abstractmethod
    def decoder(self, *, connected: bool = False) -> Decoder:
        """A decoder from the start of a recording; a connected one's bytes can end anywhere."""

    @abstractmethod
    def _encoded(self, event: Event, seq: int) -> tuple[bytes, int]:
        """The bytes of an event, and their number as a reader limits it."""


@dataclass(frozen=True, slots=True)
class Frames(Encoding):
    """The bytes of timely's `EventWriter`: they state neither `types` nor `seq`; see `frames`."""

    types: EventTypes
    longest: int = MAX_FRAME
    release: Release = Release.V031

    def decoder(self, *, connected: bool = False) -> FrameDecoder:
        """A decoder from the first frame on; both files and connections may be cut off."""
        return FrameDecoder(self.types, self.longest, self.release)

    def _encoded(self, event: Event, seq: int) -> tuple[bytes, int]:
        frame = encode_event(self.types, event, self.release)
        return frame, len(frame) - PREFIX


@dataclass(frozen=True, slots=True)
class Lines(Encoding):
    """Transcripts: one event per line; see `capstan.core.protocol.transcript`."""

    minimum: object  # as JSON; all times are written in the same form
    # A reader converts to them; without them, any JSON is kept as it is.
    types: EventTypes | None = None
    worker: int | None = 0  # of the recording; a reader with None takes it from the first line
    longest: int = MAX_FRAME
    # None: messages under one time have a `time`, unless the first that are read have a `stamp`.
    release: Release | None = None

    @classmethod
    def of(cls, types: EventTypes, worker: int | None = 0, release: Release | None = None) -> Lines:
        """Transcripts with these types."""
        return cls(types.minimum_json, types, worker, release=release)

    def decoder(self, *, connected: bool = False) -> LineDecoder:
        """A decoder that starts at the first line."""
        return LineDecoder(
            self.minimum, self.types, self.worker, self.longest, self.release, connected=connected
        )

    def _encoded(self, event: Event, seq: int) -> tuple[bytes, int]:
        written = event if self.types is None else self.types.to_transcript(event)
        line = transcript_line(written, self.worker or 0, seq, self.minimum, self.release)
        return line, len(line)
