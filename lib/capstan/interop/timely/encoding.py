"""The two encodings of a recording: timely's frames, and transcripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from capstan.core.protocol import Event, Item, transcript_line
from capstan.errors import InvalidRequestError
from capstan.interop.timely.codec import MisfitError
from capstan.interop.timely.event_types import EventTypes
from capstan.interop.timely.frames import MAX_FRAME, PREFIX, FrameDecoder, Torn, encode_event
from capstan.interop.timely.json_lines import LineDecoder


class Decoder(Protocol):
    """Incremental decoder: takes bytes as they arrive, yields complete events; does no I/O."""

    @property
    def offset(self) -> int:
        """Start of the next event, in bytes."""

    @property
    def seq(self) -> int:
        """Number of events yielded."""

    @property
    def torn(self) -> Torn | None:
        """The unfinished last event, once `finish` was called and `next` has reached it."""

    @property
    def over(self) -> bool:
        """Whether no more events will be yielded."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""

    def finish(self) -> None:
        """Mark the end of the input."""

    def next(self) -> Item | None:
        """The next event or fault; None if bytes are missing, or at the end."""


class Encoding(Protocol):
    """Encoding of a recording."""

    @property
    def suffix(self) -> str:
        """Suffix of its files."""

    def encode(self, event: Event, seq: int) -> bytes:
        """The bytes of an event.

        Args:
            event: The event, its data as values of the record type.
            seq: Its position in the recording.

        Raises:
            InvalidRequestError: `CAP-VALUE`, a value is not of its type; `CAP-FRAME-LENGTH`, the
                event is longer than readers accept.
        """

    def decoder(self, *, connected: bool = False) -> Decoder:
        """A decoder that starts at the beginning of a recording.

        Args:
            connected: Whether the bytes come over a connection, which can end anywhere.
        """


@dataclass(frozen=True, slots=True)
class Frames:
    """The bytes of timely's `EventWriter`; see module `frames`.

    Attributes:
        types: Types of times and records, which the bytes do not state.
        max_frame: Maximum length of a frame, in bytes.
    """

    types: EventTypes
    max_frame: int = MAX_FRAME

    @property
    def suffix(self) -> str:
        """Suffix of its files."""
        return FRAMES_SUFFIX

    def encode(self, event: Event, seq: int) -> bytes:
        """The frame of an event; it does not contain `seq`."""
        try:
            frame = encode_event(self.types, event)
        except MisfitError as error:
            raise _not_encoded(seq, error) from error
        return _readable(frame, len(frame) - PREFIX, self.max_frame, seq)

    def decoder(self, *, connected: bool = False) -> FrameDecoder:
        """A decoder from the first frame on; both files and connections may be cut off."""
        return FrameDecoder(self.types, self.max_frame)


@dataclass(frozen=True, slots=True)
class Lines:
    """Transcripts: one event per line; see `capstan.core.protocol.transcript`.

    Attributes:
        minimum: Minimum time as JSON; all times are written in the same form.
        types: Types of times and records, to which a reader converts them; without them, any JSON
            is accepted and kept as it is.
        worker: Worker of the recording; a reader with None takes it from the first line.
        max_line: Maximum length of a line, in bytes.
    """

    minimum: object
    types: EventTypes | None = None
    worker: int | None = 0
    max_line: int = MAX_FRAME

    @classmethod
    def of(cls, types: EventTypes, worker: int | None = 0) -> Lines:
        """Transcripts with these types."""
        return cls(types.minimum_json, types, worker)

    @property
    def suffix(self) -> str:
        """Suffix of its files."""
        return LINES_SUFFIX

    def encode(self, event: Event, seq: int) -> bytes:
        """The line of an event."""
        try:
            written = event if self.types is None else self.types.to_transcript(event)
        except MisfitError as error:
            raise _not_encoded(seq, error) from error
        line = transcript_line(written, self.worker or 0, seq, self.minimum)
        return _readable(line, len(line), self.max_line, seq)

    def decoder(self, *, connected: bool = False) -> LineDecoder:
        """A decoder that starts at the first line."""
        return LineDecoder(
            self.minimum, self.types, self.worker, self.max_line, connected=connected
        )


FRAMES_SUFFIX: Final = ".bin"
LINES_SUFFIX: Final = ".jsonl"


def _not_encoded(seq: int, error: MisfitError) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-VALUE",
        f"event {seq} cannot be written: {error}",
        "Records and times must be of the given types.",
        seq=seq,
    )


def _readable(data: bytes, size: int, most: int, seq: int) -> bytes:
    """The bytes of an event, checked to be short enough for a reader."""
    if size > most:
        raise InvalidRequestError(
            "CAP-FRAME-LENGTH",
            f"event {seq} cannot be written: it takes {size:,} bytes, and readers accept at most "
            f"{most:,}",
            "Spread its records over more workers: replay into another stream with --into-stream "
            "and --peers.",
            seq=seq,
        )
    return data
