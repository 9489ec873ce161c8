"""A few of the kills of `make chaos`: random, and from one seed."""

from __future__ import annotations

import pytest

from capstan.testing.chaos import Chaos

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

SEED = 20261122


def test_whatever_is_killed_nothing_is_lost(spark, tmp_path) -> None:
    chaos = Chaos(tmp_path, SEED)
    chaos.run(6)
    assert Chaos(tmp_path, 0).progress == chaos.progress
    chaos.finish(spark)
