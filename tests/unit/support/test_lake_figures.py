"""Comparison of commands' output and of tables with those of an earlier version."""

from __future__ import annotations

import pytest

from tests.support.lake_figures import as_far_as, comparable, same_log, unmatched

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


def test_what_is_renamed_is_the_same() -> None:
    assert comparable({"stood": True}) == comparable({"unchanged": True})
    assert comparable({"stood": True}) != comparable({"unchanged": False})


def test_rows_are_matched_once_in_any_order() -> None:
    kept = [{"run": "a"}, {"run": "a"}, {"run": "b"}]
    now = [{"run": "b", "table": "1"}, {"run": "c", "table": "1"}, {"run": "a", "table": "2"}]
    assert unmatched(kept, now) == ([{"run": "a"}], [{"run": "c", "table": "1"}])


@pytest.mark.parametrize(
    ("notes", "same", "same_with_more"),
    [
        (["a", "b", "c"], True, True),
        (["b", "c"], True, True),
        (["a", "new", "b", "c"], False, True),
        (["a", "b"], False, False),
        (["new", "b", "c"], False, False),
        ([], False, False),
    ],
)
def test_a_log_may_lack_its_start(notes: list[str], same: bool, same_with_more: bool) -> None:
    kept: dict[str, object] = {"transactions": [], "notes": ["a", "b", "c"]}
    now: dict[str, object] = {"transactions": [], "notes": notes}
    assert same_log(kept, now) is same
    assert same_log(kept, now, more=True) is same_with_more
