"""Reads a recording from a file or a socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from capstan.core.protocol import Event, Fault, Item, Rule
from capstan.errors import InvalidRequestError
from capstan.interop.timely.encoding import Encoding
from capstan.interop.timely.frames import Closing
from capstan.interop.timely.types.decoder import Damage, Torn

_PIECE: Final = 2**20


class ByteSource(Protocol):
    """A source of bytes: a binary file, or the wrapper of a socket in `sockets`."""

    def read(self, size: int, /) -> bytes | None:
        """At most `size` bytes; empty at the end, None when none are available now."""


class EventReader(Closing):
    """Reads the events of one recording in bounded memory; timely's `EventReader`.

    Unlike timely's, it distinguishes the end from a pause, and a torn tail from complete events. As
    a source it raises at the first item that is not an event; `items` yields that as a `Fault`.

    Attributes:
        name: Name of the recording in errors: a file's path, or a peer's address.
        ended: Whether no more events will come: the end was reached, or damage.
        failure: Reason of a broken connection; empty without one.
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
        """Start at the beginning of a recording.

        Args:
            piece: Maximum number of bytes per read.
            connected: Whether `source` is a connection, which can end in the middle of an event.
        """
        self.name = name
        # `read` of a buffered file waits until all requested bytes are available.
        self._source = source
        self._read = getattr(source, "read1", source.read)
        self._decoder = encoding.decoder(connected=connected)
        self._piece = piece
        self.ended = False
        self.failure = ""

    @property
    def seq(self) -> int:
        """Number of events yielded: the position of the next one."""
        return self._decoder.seq

    @property
    def offset(self) -> int:
        """Start of the next event, in bytes."""
        return self._decoder.offset

    @property
    def torn(self) -> Torn | None:
        """The unfinished last event, once the end is reached; `poll` skips it."""
        return self._decoder.torn

    def poll(self) -> Event | None:
        """The next event, or None at the end or when none is available; reads until it has one.

        Raises:
            InvalidRequestError: `CAP-FRAME-LENGTH`, `CAP-FRAME-TAG`, `CAP-FRAME-TYPES`, not a
                frame; `CAP-TRANSCRIPT`, not a line of a transcript. With file, byte, position and
                reason.
        """
        seq, offset = self.seq, self.offset
        item = self._next()
        if isinstance(item, Fault):
            self.ended = True
            raise self._refused(item, seq, offset)
        return item

    def items(self) -> Iterator[Item]:
        """The events until the end, or until none is available; faults as `Fault`."""
        return iter(self._next, None)

    def __iter__(self) -> Iterator[Event]:
        """The events until the end, or until none is available; raises as `poll` does."""
        return iter(self.poll, None)

    def close(self) -> None:
        """Close the source; this ends a connection."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()

    def _next(self) -> Item | None:
        """The next item, reading as needed; None at the end, or when none is available now."""
        while not self.ended:
            item = self._decoder.next()
            if item is not None:
                self.ended = self._decoder.over
                return item
            if self._decoder.over:
                self.ended = True
                break
            data = self._read_piece()
            if data is None:
                break
            if data:
                self._decoder.feed(data)
            else:
                self._decoder.finish()
        return None

    def _read_piece(self) -> bytes | None:
        try:
            data: bytes | None = self._read(self._piece)
        except (BlockingIOError, TimeoutError):
            return None
        except ConnectionError as error:
            # Everything before is complete; the rest is reported as torn.
            self.failure = error.strerror or str(error)
            return b""
        except OSError as error:
            raise InvalidRequestError(
                "CAP-FILE",
                f"{self.name} cannot be read: {error.strerror or error}",
                "check the file and its permissions",
                file=self.name,
            ) from error
        return data

    def _refused(self, fault: Fault, seq: int, offset: int) -> InvalidRequestError:
        code = fault.code if isinstance(fault, Damage) else "CAP-TRANSCRIPT"
        place = "" if isinstance(fault, Damage) else f"the line at byte {offset}: "
        rule = f"{fault.rule}: " if fault.rule is not Rule.SHAPE else ""
        return InvalidRequestError(
            code,
            f"{self.name or 'the recording'}, event {seq}: {place}{rule}{fault.detail}",
            "the events before it are complete; check the types, and that the file is a recording",
            file=self.name,
            offset=offset,
            seq=seq,
            reason=fault.detail,
        )
