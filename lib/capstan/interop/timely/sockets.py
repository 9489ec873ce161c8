"""Recordings over sockets, compatible with timely's `capture_send` and `capture_recv`.

Worker `i` of the sender connects to port `base + i` of the receiver and sends its recording, and
nothing else, in an encoding that both sides know. There is no handshake and no end mark. An orderly
end is a connection that is shut down after a complete event; the counts tell whether the recording
is closed.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Final

from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.interop.timely.encoding import Encoding
from capstan.interop.timely.frames import Closing
from capstan.interop.timely.reader import EventReader
from capstan.interop.timely.writer import EventWriter

LOOPBACK: Final = "127.0.0.1"
"""Default address of listeners."""

_RECEIVED: Final = 64 * 2**10
_LAST_PORT: Final = 65_535


class SocketWriter(EventWriter):
    """An `EventWriter` over a connection, which it closes; `peer` is the receiver's `host:port`."""

    def __init__(self, connection: socket.socket, encoding: Encoding) -> None:
        """Start a recording on a new, blocking connection."""
        self._connection = connection
        self.peer = _address(connection.getpeername())
        super().__init__(_Sending(connection), encoding, self.peer)

    def close(self) -> None:
        """Send the buffered bytes and close the connection; idempotent."""
        try:
            super().close()
        finally:
            self._connection.close()


class Listener(Closing):
    """Listens for one sender on each of several `ports`, one per worker in order."""

    def __init__(
        self, workers: int, encoding: Callable[[int], Encoding], host: str = LOOPBACK, base: int = 0
    ) -> None:
        """Start listening; `encoding` is by worker, `base` the first port, or 0 for free ones."""
        if workers < 1 or base < 0 or base + workers - 1 > _LAST_PORT:
            raise _no_port(f"{host}:{base} and up, {workers} ports", "there are no such ports")
        self._encoding = encoding
        self._sockets: list[socket.socket] = []
        for worker in range(workers):
            port = base + worker if base else 0
            try:
                self._sockets.append(socket.create_server((host, port), backlog=1))
            except OSError as error:
                self.close()
                raise _no_port(f"{host}:{port}", error.strerror or str(error)) from error
        self.ports = tuple(int(server.getsockname()[1]) for server in self._sockets)

    def accept(self, worker: int, timeout: float | None = None) -> EventReader:
        """Wait for the sender of `worker`; the caller closes the reader of its recording.

        Args:
            worker: Index of the port.
            timeout: Seconds to wait for the connection, and for bytes in each `poll` of the reader
                before it returns None. None waits forever, 0 does not wait.

        Raises:
            SystemFailureError: `CAP-PEER`, nothing connected in time.
        """
        server = self._sockets[worker]
        server.settimeout(timeout)
        try:
            connection, address = server.accept()
        except (TimeoutError, BlockingIOError) as error:
            raise SystemFailureError(
                "CAP-PEER",
                f"no sender connected to port {self.ports[worker]} within {timeout} s",
                "start the sender, or raise the timeout",
                port=self.ports[worker],
            ) from error
        connection.settimeout(timeout)
        source, encoding = _Receiving(connection), self._encoding(worker)
        return EventReader(source, encoding, _address(address), _RECEIVED, connected=True)

    def has_pending(self, worker: int) -> bool:
        """Whether a connection to the port of `worker` waits to be accepted."""
        readable, _, _ = select.select([self._sockets[worker]], [], [], 0)
        return bool(readable)

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        for server in self._sockets:
            server.close()


def connect(host: str, port: int, encoding: Encoding, timeout: float = 10.0) -> SocketWriter:
    """Connect to a receiver, as worker `i` of timely does on port `base + i`.

    Args:
        timeout: Seconds to wait for the connection, and for each write.

    Raises:
        SystemFailureError: `CAP-PEER`, nothing listens there.
    """
    try:
        connection = socket.create_connection((host, port), timeout)
    # OverflowError: a port beyond 65535.
    except (OSError, OverflowError) as error:
        raise SystemFailureError(
            "CAP-PEER",
            f"no receiver at {host}:{port}: {error}",
            "start the receiver first, and check the port: it is the base port plus the worker",
            host=host,
            port=port,
        ) from error
    return SocketWriter(connection, encoding)


class _Sending:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, data: bytes, /) -> int:
        self._connection.sendall(data)
        return len(data)


class _Receiving:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def read(self, size: int, /) -> bytes:
        return self._connection.recv(size)

    def close(self) -> None:
        self._connection.close()


def _address(address: object) -> str:
    # Sockets of families other than IP have other addresses, or none.
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)


def _no_port(place: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-PORT",
        f"cannot listen on {place}: {reason}",
        "choose free ports from 1 to 65535, and an address of this machine",
    )
