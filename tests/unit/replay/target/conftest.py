"""The lake of the tests of targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.storage.lake import Lake
from tests.support.jvmless_lake import lay_tape
from tests.support.sample_streams import NAME

if TYPE_CHECKING:
    from pathlib import Path

HOUR_US = 3_600_000_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A tape of one worker, with a record an hour for four hours."""
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, NAME, ["a"], [(n * HOUR_US,) for n in range(4)], (4 * HOUR_US,))
    return lake
