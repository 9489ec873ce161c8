"""Comparison of what commands print with what an earlier version printed."""

from __future__ import annotations

import pytest

from tests.support.lake_figures import as_far_as

KEPT = {"code": 0, "printed": {"runs": [{"run": "a", "rows": 3}]}}


def test_a_later_version_may_print_more() -> None:
    given = {"code": 0, "printed": {"runs": [{"run": "a", "rows": 3, "jobs": []}], "seconds": 1}}
    assert as_far_as(KEPT, given) == KEPT


@pytest.mark.parametrize(
    "given",
    [
        {"code": 0, "printed": {"runs": [{"run": "a"}]}},
        {"code": 0, "printed": {"runs": [{"run": "a", "rows": 4}]}},
        {"code": 0, "printed": {"runs": []}},
        {"code": 0, "printed": {"runs": [{"run": "a", "rows": 3}, {"run": "b", "rows": 1}]}},
        {"code": 0, "printed": None},
        {"code": 1, "printed": KEPT["printed"]},
    ],
)
def test_what_was_printed_stays(given: dict[str, object]) -> None:
    assert as_far_as(KEPT, given) != KEPT
