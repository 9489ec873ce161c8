"""Credentials of S3: Spark, Arrow and delta-rs find the same ones, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tests.support.driver_under_test import PATIENCE
from tests.support.s3_faults import faulty
from tests.support.s3_server import BUCKET, Objects, objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.nightly

PROGRAMS = {
    "arrow": """
from capstan.storage.lake import children
assert children("s3a://BUCKET/nothing") == []
""",
    "delta-rs": """
import pyarrow as pa
from capstan.storage import arrow_writer, delta
from pyspark.sql import types as T
place = "s3a://BUCKET/CASE/table"
arrow_writer.create_table(place, T.StructType([T.StructField("n", T.LongType())]))
arrow_writer.append(place, pa.table({"n": [1]}))
assert delta.open_table(place).version() == 1
""",
    "spark": """
from capstan.spark.session import build_session
session = build_session(master="local[1]")
session.range(1).write.format("delta").save("s3a://BUCKET/CASE/spark")
session.stop()
""",
}
SERVED = {
    "Code": "Success",
    "Type": "AWS-HMAC",
    "LastUpdated": "2024-01-01T00:00:00Z",
    "AccessKeyId": "of-the-service",
    "SecretAccessKey": "secret",
    "Token": "token",
    "Expiration": "2099-01-01T00:00:00Z",
}


class _Service(BaseHTTPRequestHandler):
    """The metadata service of an instance; any other path has the credentials of a container."""

    def do_GET(self) -> None:
        names = self.path.rstrip("/").endswith("iam/security-credentials")
        self.answer("role" if names else json.dumps(SERVED))

    def do_PUT(self) -> None:
        self.answer("token")

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "21600")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@contextmanager
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    with objects(tmp_path_factory.mktemp("objects")) as actual:
        yield actual


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("case", "key"),
    [
        ("keys", "of-variables"),
        ("profile", "of-a-profile"),
        ("container", "of-the-service"),
        ("instance", "of-the-service"),
    ],
)
def test_requests_are_signed_with(
    s3: Objects, tmp_path: Path, case: str, key: str, program: str
) -> None:
    (tmp_path / ".aws").mkdir()
    profile = f"[shop]\naws_access_key_id = {key}\naws_secret_access_key = secret\n"
    if case == "profile":
        (tmp_path / ".aws" / "credentials").write_text(profile, encoding="utf-8")
    with faulty(s3.endpoint) as proxy, service() as metadata:
        variables = {
            "keys": {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": "secret"},
            "profile": {"AWS_PROFILE": "shop"},
            "container": {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{metadata}/credentials"},
            # delta-rs has a name of its own for it.
            "instance": {
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata,
                "AWS_METADATA_ENDPOINT": metadata,
            },
        }
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "CAPSTAN_"))}
        environment = {
            **kept,
            "HOME": str(tmp_path),
            "AWS_ENDPOINT_URL": proxy.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            # Amazon's libraries would look for an instance that is not there, for minutes.
            **({} if case == "instance" else {"AWS_EC2_METADATA_DISABLED": "true"}),
            **variables[case],
        }
        text = PROGRAMS[program].replace("BUCKET", BUCKET).replace("CASE", case)
        done = subprocess.run(
            [sys.executable, "-c", text],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert proxy.keys == {key}
