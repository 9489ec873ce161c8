"""What is asked of the ledgers before each run opens few of their files, however many runs were."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import RangeLockedError
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId
from tests.support.bulk_tapes import counting, lay_runs
from tests.support.jvmless_lake import EVENT, Books

EVERYTHING = Region(Box.everything(EVENT))


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_locking_opens_a_constant_number_of_files(tmp_path: Path, count: int) -> None:
    lake = Lake.at(tmp_path)
    target = lake.table("copy")
    lay_runs(Books(lake, "little", target, _now=datetime.now(UTC)), count)
    scope = Scope(target, (0,), EVERYTHING)
    with counting() as opened:
        mine = runs.name_run(lake, "ab" * 16, 1, target)
        assert claims.claim(lake, mine, "little", scope) == 1
    assert opened["runs"] <= 1
    assert opened["claims"] <= 3
    with counting() as opened:
        assert [item.run for item in claims.active(lake, target)] == [mine.name]
        claims.ensure_held(lake, mine.name, 1)
    assert opened["runs"] <= 1
    assert opened["claims"] <= 3
    with pytest.raises(RangeLockedError, match=mine.name):
        claims.claim(lake, RunId("cd" * 16, 1, "copy"), "little", scope)
    assert runs.name_run(lake, "00000007".ljust(32, "0"), 1, target).name == "copy-00000007-1"
    assert runs.name_run(lake, "00000007".ljust(32, "1"), 1, target).name != "copy-00000007-1"
