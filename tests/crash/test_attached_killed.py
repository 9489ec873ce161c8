"""A query of the user's that is killed while it records: the started-again job ends the same."""

from __future__ import annotations

import pytest

from tests.support import lake_contents
from tests.support.crash_cases import CAPTURE_POINTS, Work, cases

pytestmark = pytest.mark.timeout(1800)

POINTS = ["capture.attach", *CAPTURE_POINTS]
BY_DAY = {"capture.attach", "capture.records:3"}
QUERIES = [Work("attach", point, world="empty") for point in POINTS]


@pytest.fixture(scope="module")
def attached(undisturbed: dict[str, list[str]]) -> dict[str, list[str]]:
    """The tape of a declared source, without the files of late records: a query has none."""
    return lake_contents.without_files(undisturbed)


@pytest.mark.parametrize("work", cases(QUERIES, night=set(POINTS) - BY_DAY))
def test_a_killed_query_ends_in_the_same_tape(killed, attached, work) -> None:
    assert lake_contents.tape(killed.lake) != attached
    killed.act("attach")
    # The same rows, in the same micro-batches, as a capture of a declared source.
    assert lake_contents.tape(killed.lake) == attached
    lake_contents.require_sound(killed.spark, killed.lake)
    killed.act("attach")
    assert lake_contents.tape(killed.lake) == attached
