"""The two encodings of a recording: timely's frames, and transcripts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from capstan.core.protocol import Event, transcript_line
from capstan.errors import InvalidRequestError
from capstan.interop.timely.frames import PREFIX, FrameDecoder, encode_event
from capstan.interop.timely.json_lines import LineDecoder
from capstan.interop.timely.types.codec import MisfitError
from capstan.interop.timely.types.decoder import MAX_FRAME, Decoder
from capstan.interop.timely.types.event_types import EventTypes

FRAMES_SUFFIX: Final = ".bin"
LINES_SUFFIX: Final = ".jsonl"


class Encoding(ABC):
    """Encoding of a recording; `longest` is the maximum length of a frame or line, in bytes."""

    __slots__ = ()
    longest: int

    def encode(self, event: Event, seq: int) -> bytes:
        """The bytes of an event at position `seq`; its data are values of the record type.

        Raises:
            InvalidRequestError: `CAP-VALUE`, a value is not of its type; `CAP-FRAME-LENGTH`, the
                event is longer than readers accept.
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

    def decoder(self, *, connected: bool = False) -> FrameDecoder:
        """A decoder from the first frame on; both files and connections may be cut off."""
        return FrameDecoder(self.types, self.longest)

    def _encoded(self, event: Event, seq: int) -> tuple[bytes, int]:
        frame = encode_event(self.types, event)
        return frame, len(frame) - PREFIX


@dataclass(frozen=True, slots=True)
class Lines(Encoding):
    """Transcripts: one event per line; see `capstan.core.protocol.transcript`.

    Attributes:
        minimum: Minimum time as JSON; all times are written in the same form.
        types: A reader converts to them; without them, any JSON is accepted and kept as it is.
        worker: Worker of the recording; a reader with None takes it from the first line.
    """

    minimum: object
    types: EventTypes | None = None
    worker: int | None = 0
    longest: int = MAX_FRAME

    @classmethod
    def of(cls, types: EventTypes, worker: int | None = 0) -> Lines:
        """Transcripts with these types."""
        return cls(types.minimum_json, types, worker)

    def decoder(self, *, connected: bool = False) -> LineDecoder:
        """A decoder that starts at the first line."""
        return LineDecoder(self.minimum, self.types, self.worker, self.longest, connected=connected)

    def _encoded(self, event: Event, seq: int) -> tuple[bytes, int]:
        written = event if self.types is None else self.types.to_transcript(event)
        line = transcript_line(written, self.worker or 0, seq, self.minimum)
        return line, len(line)
