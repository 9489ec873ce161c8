"""Output that is published is what was audited."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.core.config import Mode
from capstan.errors import SystemFailureError
from capstan.replay.target.staged_output import require_all_rows
from capstan.storage.delta.delta import Commit
from capstan.storage.lake import Lake
from tests.support.sample_streams import plan_of

if TYPE_CHECKING:
    pass

HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("metrics", "fits"),
    [
        ({"numOutputRows": "4"}, True),
        # Rows of other workers in files that were written anew are none of the run's.
        ({"numOutputRows": "9", "numCopiedRows": "5"}, True),
        ({"numOutputRows": "3"}, False),
        ({"numOutputRows": "5"}, False),
        ({"numOutputRows": "4", "numCopiedRows": "1"}, False),
        ({}, True),
    ],
)
def test_as_many_rows_are_published_as_were_audited(
    lake: Lake, metrics: dict[str, str], fits: bool
) -> None:
    plan, commit = plan_of(lake), Commit(3, metrics)
    if fits:
        require_all_rows(plan, commit, 4)
        return
    with pytest.raises(
        SystemFailureError, match=r"t: 4 rows were audited and [35] were published"
    ) as caught:
        require_all_rows(plan, commit, 4)
    assert caught.value.code == "CAP-PUBLISH"
    # A merge counts rows that were there before.
    require_all_rows(plan_of(lake, mode=Mode.MERGE, keys=("id",)), commit, 4)
