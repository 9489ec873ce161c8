"""An S3 server for tests: one process on loopback that keeps its objects in memory.

`make objects` fetches its packages, into a separate environment.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

from capstan.spark.project_home import cache_folder
from tests.support.driver_under_test import PATIENCE

BUCKET = "capstan-tests"
"""The existing bucket."""
_PROGRAM = Path(__file__).with_name("s3_program.py")
_KEYS = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
# It does not check signatures but requires one, and reads no fields from a body that is not a form.
_HEADERS = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=nobody/20240101/us-east-1/s3/aws4_request",
    "Content-Type": "application/octet-stream",
}


@dataclass(frozen=True, slots=True)
class Objects:
    """A running S3 server.

    Attributes:
        endpoint: Its URL, `http://127.0.0.1:PORT`.
    """

    endpoint: str

    @property
    def settings(self) -> Mapping[str, str]:
        """Hadoop's settings to reach it."""
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": _KEYS["AWS_ACCESS_KEY_ID"],
            "fs.s3a.secret.key": _KEYS["AWS_SECRET_ACCESS_KEY"],
            # Report failures at once instead of after minutes.
            "fs.s3a.attempts.maximum": "2",
            "fs.s3a.retry.limit": "1",
        }

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables to reach it without a JVM."""
        return {
            **_KEYS,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def put(self, key: str, content: bytes) -> None:
        """Put one object into the bucket."""
        self._ask("PUT", f"{BUCKET}/{key}", content)

    def put_folder(self, key: str, folder: Path) -> None:
        """Put the files of a folder into the bucket, under their names."""
        for file in sorted(folder.iterdir()):
            self.put(f"{key}/{file.name}", file.read_bytes())

    def delete(self, key: str) -> None:
        """Delete one object from the bucket."""
        self._ask("DELETE", f"{BUCKET}/{key}")

    def keys(self, prefix: str) -> list[str]:
        """The keys in the bucket that begin with a prefix, of the first thousand."""
        body = self._ask("GET", f"{BUCKET}?list-type=2&prefix={prefix}").decode()
        return re.findall("<Key>(.*?)</Key>", body)

    def _ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        connection = HTTPConnection(self.endpoint.removeprefix("http://"), timeout=PATIENCE)
        try:
            connection.request(method, quote(f"/{path}", safe="/?=&"), content, _HEADERS)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        assert answer.status < 300, body
        return body


@contextmanager
def objects(folder: Path) -> Iterator[Objects]:
    """An S3 server with an empty bucket, within the `with` block; its log goes to `folder`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    program = cache_folder() / "objects" / "bin" / "python"
    log = folder / "objects.log"
    with log.open("wb") as printed:
        process = subprocess.Popen(
            [str(program), "-P", str(_PROGRAM), "-H", "127.0.0.1", "-p", str(port)],
            env={**os.environ, **_KEYS},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
    server = Objects(f"http://127.0.0.1:{port}")
    try:
        _wait_for(server, process, log)
        server._ask("PUT", BUCKET)
        yield server
    finally:
        process.kill()
        process.wait(PATIENCE)


def _wait_for(server: Objects, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            server._ask("GET", "")
        except ConnectionError:
            if process.poll() is not None or time.monotonic() > end:
                text = log.read_text(encoding="utf-8", errors="replace")
                raise AssertionError(f"S3 did not start:\n{text}") from None
            time.sleep(0.1)
        else:
            return
