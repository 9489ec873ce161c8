"""Writes a recording to a file or a socket."""

from __future__ import annotations

from typing import Final, Protocol

from capstan.core.protocol import Event
from capstan.errors import SystemFailureError
from capstan.interop.timely.encoding import Encoding
from capstan.interop.timely.frames import Closing

_PIECE: Final = 64 * 2**10


class ByteSink(Protocol):
    """A sink for bytes: a binary file, or the wrapper of a socket in `sockets`."""

    def write(self, data: bytes, /) -> int | None:
        """Take a prefix of `data`, or all of it; returns how many bytes."""


class EventWriter(Closing):
    """Writes the events of one recording; timely's `EventWriter`.

    Bytes are buffered into pieces of 64 KiB: one write per number, as timely does without a
    buffer, costs a hundred times as much. `flush` sends the buffer, and so does `close`, which
    leaves the sink open. An event is written completely or refused. An event that is refused, or
    on which the sink fails, affects only itself: the recording keeps all events before it.

    `seq` is the number of events pushed, `size` their bytes.
    """

    def __init__(self, sink: ByteSink, encoding: Encoding, name: str = "the sink") -> None:
        """Start a recording at its beginning."""
        self._sink = sink
        self._encoding = encoding
        self._name = name
        self._buffer = bytearray()
        self.seq = 0
        self.size = 0

    def push(self, event: Event) -> None:
        """Append an event.

        Raises:
            InvalidRequestError: `CAP-VALUE`, a value is not of the types; nothing is written.
            SystemFailureError: `CAP-WRITE`, the sink did not take the bytes.
        """
        data = self._encoding.encode(event, self.seq)
        self._buffer += data
        self.seq += 1
        self.size += len(data)
        if len(self._buffer) >= _PIECE:
            self.flush()

    def flush(self) -> None:
        """Send the buffer; `CAP-WRITE` if the sink does not take the bytes."""
        unsent = bytes(self._buffer)
        self._buffer.clear()
        try:
            while unsent:
                size = self._sink.write(unsent)
                if not size:
                    raise BlockingIOError("it takes no bytes now")
                unsent = unsent[size:]
        except (OSError, ValueError) as error:
            raise SystemFailureError(
                "CAP-WRITE",
                f"{self._name} failed after event {self.seq}: {error}",
                "everything it took before is a recording that is still open",
                sink=self._name,
            ) from error

    def close(self) -> None:
        """Send the buffer; the sink stays open, and so does the recording."""
        self.flush()
