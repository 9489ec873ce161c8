"""Why the query of a capture has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from capstan.capture.query.capture_query import CaptureQuery
from capstan.errors import FencedError

ENDED = "[STREAM_FAILED] Query [id = 0, runId = 1] terminated with exception: "


@pytest.mark.parametrize(
    "text",
    [
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. SQLSTATE: 40000",
        "Multiple streaming queries are concurrently using file:/lake/s/checkpoint/sources/0. S...",
    ],
)
def test_another_capture_at_work_fences_this_one(text: str) -> None:
    fake: Any = SimpleNamespace(name="s", commit=3)
    query = CaptureQuery(fake, fake, fake, None, None, fake)
    error = query._cause(StreamingQueryException(ENDED + text))
    assert isinstance(error, FencedError)
    assert "another capture of this stream is running" in error.hint
