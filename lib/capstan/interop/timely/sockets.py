"""Recordings over sockets, as timely's `capture_send` and `capture_recv` have them.

Worker `i` of the sender connects to port `base + i` of the receiver and sends its recording, and
nothing else, in the form that both sides know. There is no handshake and no end mark: an orderly
end is a connection that is shut after a whole event, and whether the recording is closed is what
its counts say.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Final

from capstan.core.protocol import Event
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.interop.timely.closing import Closing
from capstan.interop.timely.encoding import Encoding
from capstan.interop.timely.reader import EventReader
from capstan.interop.timely.writer import EventWriter

LOOPBACK: Final = "127.0.0.1"
"""Where listeners are bound unless told otherwise."""

_RECEIVED: Final = 64 * 2**10
_LAST_PORT: Final = 65_535


class SocketWriter(Closing):
    """An `EventWriter` over a connection that it owns.

    Attributes:
        peer: The address of the receiver, `host:port`.
    """

    def __init__(self, connection: socket.socket, encoding: Encoding) -> None:
        """Starts a recording on a new, blocking connection."""
        self._connection = connection
        self.peer = _address(connection.getpeername())
        self._writer = EventWriter(_Sending(connection), encoding, self.peer)

    def push(self, event: Event) -> None:
        """Appends an event; see `EventWriter.push`."""
        self._writer.push(event)

    def flush(self) -> None:
        """Sends what was gathered; see `EventWriter.flush`."""
        self._writer.flush()

    def close(self) -> None:
        """Sends what was gathered, and shuts the connection; again changes nothing."""
        try:
            self._writer.close()
        finally:
            self._connection.close()


class Listener(Closing):
    """Waits for one sender on each of several ports.

    Attributes:
        ports: The port of each worker, in order.
    """

    def __init__(
        self, workers: int, encoding: Callable[[int], Encoding], host: str = LOOPBACK, base: int = 0
    ) -> None:
        """Starts to listen.

        Args:
            workers: How many senders are expected, each on a port of its own.
            encoding: The form in which worker `i` sends.
            host: The address to bind to.
            base: The first of the ports; 0 takes any that are free.

        Raises:
            InvalidRequestError: `CAP-PORT`, no such ports, or no such address, or one that is
                taken.
        """
        if workers < 1 or base < 0 or base + workers - 1 > _LAST_PORT:
            raise _no_port(f"{host}:{base} and on, {workers} in all", "there are no such ports")
        self._encoding = encoding
        self._sockets: list[socket.socket] = []
        for worker in range(workers):
            port = base + worker if base else 0
            try:
                self._sockets.append(socket.create_server((host, port), backlog=1))
            except OSError as error:
                self.close()
                raise _no_port(f"{host}:{port}", error.strerror or str(error)) from error
        self.ports = tuple(int(each.getsockname()[1]) for each in self._sockets)

    def accept(self, worker: int, timeout: float | None = None) -> EventReader:
        """Waits for worker `worker`, and gives the reader of its recording.

        Whoever takes the reader closes it.

        Args:
            worker: Which of the ports.
            timeout: How long to wait, in seconds, and how long the reader's `poll` waits for
                bytes before it answers that there is nothing now. None waits for ever, 0 not at
                all.

        Raises:
            SystemFailureError: `CAP-PEER`, nobody connected in time.
        """
        listening = self._sockets[worker]
        listening.settimeout(timeout)
        try:
            connection, address = listening.accept()
        except (TimeoutError, BlockingIOError) as error:
            raise SystemFailureError(
                "CAP-PEER",
                f"nobody connected to port {self.ports[worker]} within {timeout} s",
                "Start the sender, or give it more time.",
                port=self.ports[worker],
            ) from error
        connection.settimeout(timeout)
        source, encoding = _Receiving(connection), self._encoding(worker)
        return EventReader(source, encoding, _address(address), _RECEIVED, connected=True)

    def waits(self, worker: int) -> bool:
        """Whether somebody has connected to the port of `worker` who was not accepted yet."""
        found, _, _ = select.select([self._sockets[worker]], [], [], 0)
        return bool(found)

    def close(self) -> None:
        """Stops to listen; connections that were taken stay open."""
        for each in self._sockets:
            each.close()


def connect(host: str, port: int, encoding: Encoding, timeout: float = 10.0) -> SocketWriter:
    """Connects to who receives on a port, as worker `i` of timely does to port `base + i`.

    Args:
        host: The receiver's name or address.
        port: Its port.
        encoding: The form in which to send.
        timeout: How long to wait for the connection, and for each write, in seconds.

    Raises:
        SystemFailureError: `CAP-PEER`, nobody receives there.
    """
    try:
        connection = socket.create_connection((host, port), timeout)
    # OverflowError: a port beyond 65535.
    except (OSError, OverflowError) as error:
        raise SystemFailureError(
            "CAP-PEER",
            f"nobody receives at {host}:{port}: {error}",
            "Start the receiver first, and look at the port: it is the first one plus the worker.",
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
    # Sockets of other families than IP have other addresses, or none.
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)


def _no_port(place: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-PORT",
        f"cannot listen on {place}: {reason}",
        "Choose ports from 1 to 65535 that are free, and an address of this machine.",
    )
