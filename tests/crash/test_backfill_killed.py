"""A driver killed between the runs of a backfill, and within one; the same again ends it."""

from __future__ import annotations

import pytest

from capstan.ledger import claims, runs
from capstan.testing import contents, little

pytestmark = pytest.mark.timeout(900)

TARGET = little.BACKFILLED.target
# The first run has published, and nothing says so yet; then it is done.
POINTS = ["replay.publish", "backfill.run"]


@pytest.fixture(scope="module")
def killed(recorded, kill):
    """Worlds by the point at which the backfill was cut off in them."""
    worlds = {point: recorded() for point in POINTS}
    kill([world.step("backfill", point) for point, world in worlds.items()])
    return worlds


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_backfill_goes_on_with_the_run_that_is_missing(killed, recorded, point) -> None:
    world = killed[point]
    whole = recorded()
    whole.replay(little.STAGED)
    [first] = runs.read_histories(world.lake)
    done = world.act("backfill")
    assert (done["failed"], done["left"]) == (0, 0)
    assert contents.rows(world.lake.table(TARGET)) == contents.rows(whole.lake.table("staged"))
    histories = runs.read_histories(world.lake)
    assert first in histories
    assert len(histories) == 3
    for run, history in histories.items():
        assert history.published
        contents.require_published_once(world.lake, run)
    assert claims.alive(world.lake) == []
    again = world.act("backfill")
    assert (again["done"], again["runs"]) == (0, [])
