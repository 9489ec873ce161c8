"""A proxy before an S3 server that counts requests, and answers some of them as a failing S3 would.

It is a server on loopback; each connection has a thread. In a test's own process it decides about
each request. delta-rs holds Python's lock while it waits for an answer, so work that uses it needs
the proxy in a process of its own: `python -m tests.support.s3_faults ENDPOINT`.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Literal

from tests.support.driver_under_test import PATIENCE

Fault = Literal["none", "no condition", "lose answer", "slow down", "internal error", "reset"]
_CONTROL = "/_proxy"
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
        keys: The access keys that requests were signed with.
    """

    endpoint: str = ""
    decide: Callable[[str, str], Fault] = lambda _method, _path: "none"
    requests: Counter[str] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, method: str, path: str) -> Fault:
        """Count a request, and decide about it; one at a time."""
        with self.lock:
            self.requests["LIST" if "list-type=2" in path else method] += 1
            return self.decide(method, path)

    def fail_every(self, number: int, faults: Sequence[Fault]) -> None:
        """Let every request with a multiple of a number fail, in each of several ways in turn."""
        arrivals = itertools.count(1)

        def decide(_method: str, _path: str) -> Fault:
            round_, rest = divmod(next(arrivals), number)
            return "none" if rest else faults[round_ % len(faults)]

        self.decide = decide


@dataclass(frozen=True, slots=True)
class FaultyProcess:
    """A proxy in a process of its own.

    Attributes:
        endpoint: Its URL.
    """

    endpoint: str

    def counted(self) -> Counter[str]:
        """The requests by kind since the last call."""
        return Counter(self._control({}))

    def fail_every(self, number: int, faults: Sequence[Fault]) -> None:
        """As `Faults.fail_every`."""
        self._control({"number": number, "faults": list(faults)})

    def recover(self) -> None:
        """Let no request fail from here on."""
        self.fail_every(1, ["none"])

    def _control(self, command: dict[str, object]) -> dict[str, int]:
        connection = HTTPConnection(self.endpoint.removeprefix("http://"), timeout=PATIENCE)
        try:
            connection.request("PUT", _CONTROL, json.dumps(command).encode())
            actual: dict[str, int] = json.loads(connection.getresponse().read())
            return actual
        finally:
            connection.close()


@contextmanager
def faulty_process(endpoint: str) -> Iterator[FaultyProcess]:
    """A proxy in a process of its own before the S3 server at `endpoint`, inside the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, endpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield FaultyProcess(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


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
        if self.path == _CONTROL:
            self.control()
            return
        fault = self.faults.handle(self.command, self.path)
        signed = re.search("Credential=([^/]+)/", self.headers.get("Authorization", ""))
        self.faults.keys.add(signed[1] if signed else "")
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self.content()
        if fault in _ANSWERS:
            status, code = _ANSWERS[fault]
            self.answer(status, [], f"<Error><Code>{code}</Code></Error>".encode())
        elif fault == "reset":
            self.hang_up()
        else:
            actual = self.ask(body, with_condition=fault != "no condition")
            if fault == "lose answer":
                self.hang_up()
            else:
                self.answer(*actual)

    def control(self) -> None:
        """Obey a `FaultyProcess`; the answer has the requests since the last one."""
        command = json.loads(self.content())
        with self.faults.lock:
            actual = dict(self.faults.requests)
            if "faults" in command:
                self.faults.fail_every(command["number"], command["faults"])
            else:
                self.faults.requests.clear()
        self.answer(200, [], json.dumps(actual).encode())

    def content(self) -> bytes:
        """The body of the request; Arrow sends it in chunks of unknown number."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # Trailers: the checksum is one of them, which S3 gets in the chunks themselves.
        return b"".join(chunks)

    def ask(self, body: bytes, *, with_condition: bool) -> tuple[int, list[tuple[str, str]], bytes]:
        """Status, headers and content of the server's answer."""
        dropped = {"expect", "transfer-encoding"} | (set() if with_condition else {"if-none-match"})
        headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        backend = HTTPConnection(self.endpoint.removeprefix("http://"), timeout=PATIENCE)
        try:
            backend.request(self.command, self.path, body, headers)
            actual = backend.getresponse()
            return actual.status, actual.getheaders(), actual.read()
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
        if self.command == "HEAD":
            return
        try:
            self.wfile.write(content)
        except ConnectionError:
            # A reader that has what it needs leaves before the end of an object.
            self.close_connection = True

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward


def main() -> int:
    """Serve until standard input ends; prints the URL."""
    with faulty(sys.argv[1]) as faults:
        print(faults.endpoint, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
