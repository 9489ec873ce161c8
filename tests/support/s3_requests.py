"""What work on a lake on S3 costs in requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from capstan.capture.run import capture
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.storage.lake import Lake
from tests.support.s3_faults import FaultyProcess, faulty_process
from tests.support.s3_server import objects
from tests.support.sample_streams import HOUR, NAME, START, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PER_FILE = 12
"""Rows of a file: six hours of the stream."""


class CountedLake:
    """A lake on S3 of one stream, and what work on it costs in requests."""

    def __init__(
        self, session: SparkSession, proxy: FaultyProcess, lake: Lake, folder: Path
    ) -> None:
        self.session, self.proxy, self.lake, self.folder = session, proxy, lake, folder
        self.stream = little_stream(folder)
        self.files = 0

    def micro_batch(self) -> Counter[str]:
        """A capture of one more file."""
        first = self.files * PER_FILE
        lay(self.folder, f"part-{self.files:04}", rows(range(first, first + PER_FILE)))
        self.files += 1
        self.proxy.counted()
        assert capture(self.session, self.lake, self.stream).batches == 1
        return self.proxy.counted()

    def run(self, hour: int) -> Counter[str]:
        """A replay of one hour of all workers."""
        since = START + hour * HOUR
        request = Request(NAME, "copied", since=since.isoformat(), until=(since + HOUR).isoformat())
        self.proxy.counted()
        actual = replay(self.session, self.lake, declared(self.stream), request)
        assert actual.certificate is not None
        return self.proxy.counted()


@contextmanager
def counted_s3(folder: Path) -> Iterator[FaultyProcess]:
    """A proxy that counts requests, before an S3 server of its own; its log goes to `folder`."""
    with objects(folder) as server, faulty_process(server.endpoint) as proxy:
        yield proxy
