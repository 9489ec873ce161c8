"""Receivers on consecutive ports, as timely's workers have them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE = 120.0


@contextmanager
def adjacent(count: int) -> Iterator[list[socket.socket]]:
    """Listening sockets on consecutive ports of loopback."""
    for base in range(20_000, 60_000, count):
        taken: list[socket.socket] = []
        try:
            taken += [socket.create_server(("127.0.0.1", base + n)) for n in range(count)]
        except OSError:
            for server in taken:
                server.close()
            continue
        try:
            yield taken
        finally:
            for server in taken:
                server.close()
        return
    raise AssertionError("no ports are free")


@contextmanager
def receivers(count: int) -> Iterator[tuple[int, list[bytearray]]]:
    """The first port, and the bytes of each receiver: complete after the `with` block."""
    received = [bytearray() for _ in range(count)]

    def receive(taken: socket.socket, place: int) -> None:
        connection, _ = taken.accept()
        with connection:
            while data := connection.recv(2**16):
                received[place] += data

    with adjacent(count) as sockets:
        threads = [
            threading.Thread(target=receive, args=(taken, place), daemon=True)
            for place, taken in enumerate(sockets)
        ]
        for thread in threads:
            thread.start()
        yield int(sockets[0].getsockname()[1]), received
        for thread in threads:
            thread.join(_PATIENCE)
