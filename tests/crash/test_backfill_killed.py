"""A driver killed amid the runs of a backfill, which go on together; the same again ends it."""

from __future__ import annotations

import pytest

from capstan.errors import IncompleteError
from capstan.storage.lake import children
from capstan.storage.ledger import claims, runs
from tests.support import lake_contents, small_stream
from tests.support.crash_cases import REPLAY_POINTS, Work, cases

pytestmark = pytest.mark.timeout(900)

# At most points all runs have got as far. Of `replay.publish` the first one has published, then the
# second, and nothing says so yet; then all are done.
POINTS = (*REPLAY_POINTS, "replay.publish:2", "backfill.run")
BACKFILLS = [Work("backfill", point) for point in POINTS]


PAUSED = Work("pause", "backfill.paused").after(Work("backfill", "replay.publish"))


@pytest.mark.parametrize("work", cases([PAUSED]))
def test_a_pause_outlives_all_drivers_and_then_the_missing_runs_are_carried_out(
    killed, whole, work
) -> None:
    begun = list(runs.read_histories(killed.lake))
    with pytest.raises(IncompleteError, match="^CAP-PAUSED: "):
        killed.act("backfill")
    assert killed.act("pause") == {"changed": False}
    assert killed.act("pause", resume=True) == {"changed": True}
    # The first of three runs had published, and nothing said so.
    done = killed.act("backfill")
    assert (done["failed"], done["left"]) == (0, 0)
    target = killed.lake.table(small_stream.BACKFILLED.target)
    assert lake_contents.rows(target) == whole["staged"]["rows"]
    assert list(runs.read_histories(killed.lake)) == begun
    for run in begun:
        lake_contents.require_published_once(killed.lake, run)


@pytest.mark.parametrize("work", cases(BACKFILLS))
def test_a_killed_backfill_goes_on_with_the_run_that_is_missing(killed, whole, work) -> None:
    begun = list(runs.read_histories(killed.lake))
    before = POINTS[: POINTS.index("replay.intent")]
    assert len(begun) == (0 if work.point in before else 3)
    done = killed.act("backfill")
    assert (done["failed"], done["left"]) == (0, 0)
    target = killed.lake.table(small_stream.BACKFILLED.target)
    assert lake_contents.rows(target) == whole["staged"]["rows"]
    histories = runs.read_histories(killed.lake)
    assert set(begun) <= set(histories)
    assert len(histories) == 3
    for run, history in histories.items():
        assert history.published
        lake_contents.require_published_once(killed.lake, run)
    assert claims.active(killed.lake) == []
    assert children(killed.lake.staging("")) == []
    again = killed.act("backfill")
    assert (again["done"], again["runs"]) == (0, [])
