"""A few of the kills of `make chaos`: random, and from one seed."""

from __future__ import annotations

import pytest

from capstan.testing.chaos import Chaos

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

SEED = 20261122


def test_whatever_is_killed_nothing_is_lost(spark, tmp_path) -> None:
    chaos = Chaos(tmp_path, SEED, ("points", "moment"))
    chaos.run(6)
    # Whoever goes on in the same folder goes on from there, over a round that was broken off.
    for kind in ("executors", "broker"):
        other = Chaos(tmp_path, 0, (kind,))
        assert other.progress == chaos.progress
        (tmp_path / f"round-{chaos.progress.rounds}" / "driver").mkdir(parents=True)
        other.run(other.progress.kills + 1)
        chaos = other
    assert chaos.progress.executors * chaos.progress.brokers > 0
    chaos.finish(spark)
