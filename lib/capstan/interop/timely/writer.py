"""Writing a recording to a file or a socket."""

from __future__ import annotations

from typing import Final, Protocol

from capstan.core.protocol import Event
from capstan.errors import SystemFailureError
from capstan.interop.timely.closing import Closing
from capstan.interop.timely.encoding import Encoding

_PIECE: Final = 64 * 2**10


class ByteSink(Protocol):
    """What bytes can be written to: a binary file, or what `sockets` makes of a socket."""

    def write(self, data: bytes, /) -> int | None:
        """Takes the beginning of `data`, or all; how much it took."""


class EventWriter(Closing):
    """Writes the events of one recording; timely's `EventWriter`.

    Bytes are gathered into pieces of 64 KiB: one write per number, as timely does without a
    buffer, costs a hundred times as much. `flush` sends what is gathered; closing does too, but
    leaves the sink open. An event is written whole or refused; one that is refused, or that the
    sink fails on, ends nothing but itself: the recording stays what was written.

    Attributes:
        seq: How many events were pushed: the position of the next one.
        size: How many bytes they take.
    """

    def __init__(self, sink: ByteSink, encoding: Encoding, name: str = "the sink") -> None:
        """Starts a recording at its beginning.

        Args:
            sink: Where the bytes go.
            encoding: The form in which they go there.
            name: What the sink is called in errors.
        """
        self._sink = sink
        self._encoding = encoding
        self._name = name
        self._buffer = bytearray()
        self.seq = 0
        self.size = 0

    def push(self, event: Event) -> None:
        """Appends an event.

        Raises:
            InvalidRequestError: `CAP-VALUE`, something in it is not of the recording's types;
                nothing of it is written.
            SystemFailureError: `CAP-WRITE`, the sink did not take the bytes.
        """
        data = self._encoding.encode(event, self.seq)
        self._buffer += data
        self.seq += 1
        self.size += len(data)
        if len(self._buffer) >= _PIECE:
            self.flush()

    def flush(self) -> None:
        """Sends what was gathered.

        Raises:
            SystemFailureError: `CAP-WRITE`, the sink did not take the bytes.
        """
        waiting = bytes(self._buffer)
        self._buffer.clear()
        try:
            while waiting:
                taken = self._sink.write(waiting)
                if not taken:
                    raise BlockingIOError("it takes nothing now")
                waiting = waiting[taken:]
        except (OSError, ValueError) as error:
            raise SystemFailureError(
                "CAP-WRITE",
                f"{self._name} took no more after event {self.seq}: {error}",
                "What was taken before is a recording that is still open.",
                sink=self._name,
            ) from error

    def close(self) -> None:
        """Sends what was gathered; the sink stays open, and so does the recording."""
        self.flush()
