"""Reading a recording from a file or a socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from capstan.core.protocol import Event, Fault, Item, Rule
from capstan.errors import InvalidRequestError
from capstan.interop.timely.closing import Closing
from capstan.interop.timely.encoding import Decoder, Encoding
from capstan.interop.timely.frames import Damage, Torn

_PIECE: Final = 2**20


class ByteSource(Protocol):
    """What bytes can be read from: a binary file, or what `sockets` makes of a socket."""

    def read(self, size: int, /) -> bytes | None:
        """At most `size` bytes; empty at the end, None when there are none now."""


class EventReader(Closing):
    """Reads the events of one recording in bounded memory; timely's `EventReader`.

    Unlike that one it tells the end from a pause, and what was cut off from what is whole. As a
    source it raises at the first place that is no event; `items` gives that as a `Fault`.

    Attributes:
        name: What the recording is called in errors: a file's path, or a peer's address.
        ended: Whether nothing will come any more: the end was reached, or damage.
        failure: How the connection broke, in words; empty when it did not.
    """

    def __init__(
        self,
        source: ByteSource,
        encoding: Encoding,
        name: str = "",
        piece: int = _PIECE,
        *,
        connected: bool = False,
    ) -> None:
        """Starts at the beginning of a recording.

        Args:
            source: Where its bytes come from.
            encoding: The form in which they come.
            name: What it is called in errors.
            piece: How many bytes are read at once, at most.
            connected: Whether the source is a connection, which can end in the middle of an event.
        """
        self.name = name
        # A buffered file's `read` waits until all bytes that were asked for are there.
        self._source = source
        self._read = getattr(source, "read1", source.read)
        self._decoder: Decoder = encoding.decoder(connected=connected)
        self._piece = piece
        self.ended = False
        self.failure = ""

    @property
    def seq(self) -> int:
        """How many events were given: the position of the next one."""
        return self._decoder.seq

    @property
    def offset(self) -> int:
        """Where the next event starts, in bytes."""
        return self._decoder.offset

    @property
    def torn(self) -> Torn | None:
        """The unfinished last event, once the end is reached: `poll` passes it over."""
        return self._decoder.torn

    def poll(self) -> Event | None:
        """The next event, or None when there is none now, or no more; reads until there is one.

        Raises:
            InvalidRequestError: `CAP-FRAME-LENGTH`, `CAP-FRAME-TAG`, `CAP-FRAME-TYPES`, no frame;
                `CAP-TRANSCRIPT`, no line of a transcript. With file, byte, position and reason.
        """
        seq, offset = self.seq, self.offset
        item = self._next()
        if isinstance(item, Fault):
            self.ended = True
            raise self._refused(item, seq, offset)
        return item

    def items(self) -> Iterator[Item]:
        """The events to the end, or until there is none now; a `Fault` in the place of others."""
        return iter(self._next, None)

    def __iter__(self) -> Iterator[Event]:
        """The events to the end, or until there is none now; raises as `poll` does."""
        return iter(self.poll, None)

    def close(self) -> None:
        """Closes the source; a connection is ended by it."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()

    def _next(self) -> Item | None:
        """The next item, reading until there is one; None at the end, or when none is there now."""
        while not self.ended:
            item = self._decoder.next()
            if item is not None:
                self.ended = self._decoder.over
                return item
            if self._decoder.over:
                self.ended = True
                break
            data = self._piece_read()
            if data is None:
                break
            if data:
                self._decoder.feed(data)
            else:
                self._decoder.finish()
        return None

    def _piece_read(self) -> bytes | None:
        try:
            found: bytes | None = self._read(self._piece)
        except (BlockingIOError, TimeoutError):
            return None
        except ConnectionError as error:
            # What came before is whole; what was cut off is told as torn.
            self.failure = error.strerror or str(error)
            return b""
        except OSError as error:
            raise InvalidRequestError(
                "CAP-FILE",
                f"{self.name} cannot be read: {error.strerror or error}",
                "Look at the file, and at who may read it.",
                file=self.name,
            ) from error
        return found

    def _refused(self, fault: Fault, seq: int, offset: int) -> InvalidRequestError:
        code = fault.code if isinstance(fault, Damage) else "CAP-TRANSCRIPT"
        place = "" if isinstance(fault, Damage) else f"the line at byte {offset}: "
        rule = f"{fault.rule}: " if fault.rule is not Rule.SHAPE else ""
        return InvalidRequestError(
            code,
            f"{self.name or 'the recording'}, event {seq}: {place}{rule}{fault.detail}",
            "What comes before it is whole. Are the types right, and is this such a recording?",
            file=self.name,
            offset=offset,
            seq=seq,
            reason=fault.detail,
        )
