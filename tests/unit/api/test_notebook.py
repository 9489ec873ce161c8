"""HTML tables of results: values as people write them, and names that cannot inject markup."""

from __future__ import annotations

import pytest

from capstan.api.notebook import facts_html, rows_html


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"),
        (True, "yes"),
        (False, "no"),
        (["a", 1000], "a, 1000"),
        ({"late": 1000, "ahead": 2}, "1,000 late, 2 ahead"),
        ([{"rows": 1, "state": "done"}, None], "rows=1, state=done, "),
        ("<b>&", "&lt;b&gt;&amp;"),
    ],
)
def test_a_value_is_written_for_people(value: object, text: str) -> None:
    assert f"<td>{text}</td>" in facts_html("facts", {"name": value})
    assert f"<td>{text}</td>" in rows_html("rows", ["name"], [{"name": value}])


def test_facts_without_a_value_are_left_out() -> None:
    html = facts_html("facts", {"no text": "", "nothing": None, "empty": [], "zero": 0})
    assert html.count("<td>") == 1
    assert "<td>0</td>" in html


def test_many_rows_are_cut_off_and_counted() -> None:
    html = rows_html("rows", ["n"], [{"n": number} for number in range(1051)])
    assert html.count("<td>") == 50
    assert "The first 50 of 1,051." in html
