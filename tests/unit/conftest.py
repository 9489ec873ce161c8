"""What holds for all tests of this folder: nothing that they do needs a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession


@pytest.fixture(scope="module", autouse=True)
def no_jvm() -> Iterator[None]:
    """Fail whoever starts a JVM, or uses one that other tests have left in this process."""

    def refuse(*_: object, **__: object) -> NoReturn:
        # No `Exception`: a command would make an error of its own of it.
        pytest.fail("Spark was asked for by what needs none")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkContext, "_ensure_initialized", refuse)
        patch.setattr(SparkSession.Builder, "getOrCreate", refuse)
        yield
