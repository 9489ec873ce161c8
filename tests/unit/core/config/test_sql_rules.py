"""SQL as text: lists of expressions, and stars in them."""

from __future__ import annotations

import pytest

from capstan.core.config.sql_rules import problem_with_columns, select_list, without_stars


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a, b AS c", ["a", "b AS c"]),
        ("f(a, b), [1, 2][0], g((a), b)", ["f(a, b)", "[1, 2][0]", "g((a), b)"]),
        ("'a, b', \"c, (\", `d, e`, r'\\,'", ["'a, b'", '"c, ("', "`d, e`", "r'\\,'"]),
        ("a, -- one, two (\n b /* , */ + 1", ["a", "b + 1"]),
        ("a -- one\n+ b", ["a + b"]),
        (
            "from_json(v, 'a INT, b STRUCT<c: INT>').*",
            ["from_json(v, 'a INT, b STRUCT<c: INT>').*"],
        ),
        ("a,", ["a", ""]),
        ("", [""]),
    ],
)
def test_a_list_is_cut_at_its_commas_alone(text: str, items: list[str]) -> None:
    assert select_list(text) == items


@pytest.mark.parametrize(
    ("sql", "written"),
    [
        ("struct(*)", "struct(x, y)"),
        ("f(a, * , b)", "f(a, x, y , b)"),
        ("*", "x, y"),
        ("a * b", "a * b"),
        ("(a) * (b)", "(a) * (b)"),
        ("o.*", "o.*"),
        ("concat('(*)')", "concat('(*)')"),
        ("f(-- all\n *)", "f( x, y)"),
    ],
)
def test_a_star_is_replaced_where_it_stands_for_columns(sql: str, written: str) -> None:
    assert without_stars(sql, "x, y") == written


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("(SELECT max(a) FROM t)", "has a subquery"),
        ("a IN ( -- these\n select b FROM t)", "has a subquery"),
        ("select a", "without SELECT"),
        ("uuid()", "calls uuid"),
        ("", "is empty"),
        ("`select` + 1", None),
        ("selected", None),
        ("f(selection)", None),
    ],
)
def test_expressions_see_one_record(sql: str, said: str | None) -> None:
    problem = problem_with_columns(sql)
    assert problem is None if said is None else problem is not None and said in problem
