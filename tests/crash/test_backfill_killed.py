"""A driver killed between the runs of a backfill, and within one; the same again ends it."""

from __future__ import annotations

import pytest

from capstan.storage.ledger import claims, runs
from tests.support import lake_contents, small_stream
from tests.support.crash_cases import Work, cases

pytestmark = pytest.mark.timeout(900)

# The first run has published, and nothing says so yet; then it is done.
BACKFILLS = [Work("backfill", point) for point in ("replay.publish", "backfill.run")]


@pytest.mark.parametrize("work", cases(BACKFILLS))
def test_a_killed_backfill_goes_on_with_the_run_that_is_missing(killed, whole, work) -> None:
    [first] = runs.read_histories(killed.lake)
    done = killed.act("backfill")
    assert (done["failed"], done["left"]) == (0, 0)
    target = killed.lake.table(small_stream.BACKFILLED.target)
    assert lake_contents.rows(target) == whole["staged"]["rows"]
    histories = runs.read_histories(killed.lake)
    assert first in histories
    assert len(histories) == 3
    for run, history in histories.items():
        assert history.published
        lake_contents.require_published_once(killed.lake, run)
    assert claims.active(killed.lake) == []
    again = killed.act("backfill")
    assert (again["done"], again["runs"]) == (0, [])
