"""A proxy before an S3 server that counts requests, and answers some of them as a failing S3 would.

It is a server on loopback in this process; each connection has a thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Literal

from tests.support.driver_under_test import PATIENCE

Fault = Literal["none", "no condition", "lose answer", "slow down", "internal error", "reset"]
_ANSWERS: dict[Fault, tuple[int, str]] = {
    "slow down": (503, "SlowDown"),
    "internal error": (500, "InternalError"),
}


@dataclass(slots=True)
class Faults:
    """A running proxy.

    Attributes:
        endpoint: Its URL.
        decide: Called with method and path of each request; returns what happens to it.
        requests: The number of requests by kind: a method, or LIST.
    """

    endpoint: str = ""
    decide: Callable[[str, str], Fault] = lambda _method, _path: "none"
    requests: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, method: str, path: str) -> Fault:
        """Count a request, and decide about it; one at a time."""
        with self.lock:
            self.requests["LIST" if "list-type=2" in path else method] += 1
            return self.decide(method, path)


@contextmanager
def faulty(endpoint: str) -> Iterator[Faults]:
    """A proxy before the S3 server at `endpoint`, inside the `with` block."""
    faults = Faults()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (_Handler,), {"endpoint": endpoint, "faults": faults})
    )
    server.daemon_threads = True
    faults.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    endpoint: ClassVar[str]
    faults: ClassVar[Faults]

    def forward(self) -> None:
        fault = self.faults.handle(self.command, self.path)
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault in _ANSWERS:
            status, code = _ANSWERS[fault]
            self.answer(status, [], f"<Error><Code>{code}</Code></Error>".encode())
        elif fault == "reset":
            self.hang_up()
        else:
            found = self.ask(body, with_condition=fault != "no condition")
            if fault == "lose answer":
                self.hang_up()
            else:
                self.answer(*found)

    def ask(self, body: bytes, *, with_condition: bool) -> tuple[int, list[tuple[str, str]], bytes]:
        """Status, headers and content of the server's answer."""
        dropped = {"expect"} if with_condition else {"expect", "if-none-match"}
        headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        backend = HTTPConnection(self.endpoint.removeprefix("http://"), timeout=PATIENCE)
        try:
            backend.request(self.command, self.path, body, headers)
            found = backend.getresponse()
            return found.status, found.getheaders(), found.read()
        finally:
            backend.close()

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length":
                # An answer to HEAD has the length of what it does not send.
                length = value if self.command == "HEAD" else length
            elif name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward
