"""The two forms in which a recording travels: timely's frames, and transcripts."""

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
    """Takes bytes as they come, and gives events as they are whole; does no reading itself."""

    @property
    def offset(self) -> int:
        """Where the next event starts, in bytes."""

    @property
    def seq(self) -> int:
        """How many events were given."""

    @property
    def torn(self) -> Torn | None:
        """The unfinished last event, once the end was told and `next` has come to it."""

    @property
    def over(self) -> bool:
        """Whether nothing more will be given."""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""

    def finish(self) -> None:
        """Takes note that no more bytes will come."""

    def next(self) -> Item | None:
        """The next event or fault; None when more bytes are needed, or nothing more will come."""


class Encoding(Protocol):
    """A form in which a recording travels."""

    @property
    def suffix(self) -> str:
        """How the names of its files end."""

    def encode(self, event: Event, seq: int) -> bytes:
        """The bytes of an event.

        Args:
            event: The event, its data as values of the record type.
            seq: Its position in the recording.

        Raises:
            InvalidRequestError: `CAP-VALUE`, something in it is not of its type;
                `CAP-FRAME-LENGTH`, it is longer than what is read.
        """

    def decoder(self, *, connected: bool = False) -> Decoder:
        """What reads a recording from its beginning.

        Args:
            connected: Whether it comes over a connection, which can end anywhere.
        """


@dataclass(frozen=True, slots=True)
class Frames:
    """The bytes of timely's `EventWriter`; see module `frames`.

    Attributes:
        types: The types of times and records, which the bytes do not say.
        max_frame: The longest frame that is read, in bytes.
    """

    types: EventTypes
    max_frame: int = MAX_FRAME

    @property
    def suffix(self) -> str:
        """How the names of its files end."""
        return FRAMES_SUFFIX

    def encode(self, event: Event, seq: int) -> bytes:
        """The frame of an event; the bytes do not say its number."""
        try:
            frame = encode_event(self.types, event)
        except MisfitError as error:
            raise _not_encoded(seq, error) from error
        return _readable(frame, len(frame) - PREFIX, self.max_frame, seq)

    def decoder(self, *, connected: bool = False) -> FrameDecoder:
        """What reads frames from the first one; files and connections alike may be cut off."""
        return FrameDecoder(self.types, self.max_frame)


@dataclass(frozen=True, slots=True)
class Lines:
    """Transcripts: an event a line; see `capstan.core.protocol.transcript`.

    Attributes:
        minimum: The minimum time as JSON; as it is written, so is every time.
        types: What times and records have to be of, and what a reader makes of them; without
            any JSON will do, and stays as it is.
        worker: Whose recording it is; when reading, None lets the first line say.
        max_line: The longest line that is read, in bytes.
    """

    minimum: object
    types: EventTypes | None = None
    worker: int | None = 0
    max_line: int = MAX_FRAME

    @classmethod
    def of(cls, types: EventTypes, worker: int | None = 0) -> Lines:
        """Transcripts of these types."""
        return cls(types.minimum_json, types, worker)

    @property
    def suffix(self) -> str:
        """How the names of its files end."""
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
        """What reads a transcript from its first line."""
        return LineDecoder(
            self.minimum, self.types, self.worker, self.max_line, connected=connected
        )


FRAMES_SUFFIX: Final = ".bin"
LINES_SUFFIX: Final = ".jsonl"


def _not_encoded(seq: int, error: MisfitError) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-VALUE",
        f"event {seq} cannot be written: {error}",
        "Records and times have to be of the types that were named.",
        seq=seq,
    )


def _readable(data: bytes, size: int, most: int, seq: int) -> bytes:
    """The bytes of an event that a reader takes: what is written can be read back."""
    if size > most:
        raise InvalidRequestError(
            "CAP-FRAME-LENGTH",
            f"event {seq} cannot be written: it takes {size:,} bytes, and readers take at most "
            f"{most:,}",
            "Deal its records to more workers: a replay into another stream does, with "
            "--into-stream and --peers.",
            seq=seq,
        )
    return data
