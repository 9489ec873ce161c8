"""What holds for all tests of this folder: nothing that they do needs a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import NoReturn

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from capstan.spark import guest_session, log_lines, own_session


@pytest.fixture(scope="module", autouse=True)
def no_jvm() -> Iterator[None]:
    """Fail whoever starts a JVM, or uses one that other tests have left in this process."""

    def refuse(*_: object, **__: object) -> NoReturn:
        # No `Exception`: a command would make an error of its own of it.
        pytest.fail("Spark was asked for by what needs none")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkContext, "_ensure_initialized", refuse)
        patch.setattr(SparkSession.Builder, "getOrCreate", refuse)
        # What stands for a session here has no JVM in which a call could have one of its own.
        patch.setattr(guest_session, "call_session", lambda session: session)
        patch.setattr(own_session, "active", nullcontext)
        patch.setattr(log_lines, "marked", nullcontext)
        yield
