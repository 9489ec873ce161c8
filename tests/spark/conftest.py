"""One small Spark session for all tests of this folder: a JVM start costs several seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.session import build_session
from capstan.tape.lake import Lake
from capstan.testing.settings import LASTING, MASTER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of all Spark tests, shrunk to two cores; stopped after the last."""
    session = build_session("capstan-tests", master=MASTER, extra=LASTING)
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake of the test's own, with nothing in it."""
    return Lake.at(tmp_path / "lake")
