"""Names, targets, and the words for lengths of time and instants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.config import (
    check_name,
    check_target,
    format_duration,
    join_names,
    parse_duration,
)
from capstan.core.config.durations import parse_instant
from capstan.core.config.names import check_column, check_declared_target, split_names
from capstan.errors import InvalidRequestError

HOSTILE = [
    "../flights",
    "a/../b",
    "",
    " ",
    "Flights",
    "9lives",
    "_hidden",
    "a-b",
    "a b",
    "a.b",
    "a'b",
    'a"b',
    "a`b",
    "a;b",
    "a\nb",
    "flights\n",
    "a\x00b",
    "x; DROP TABLE y",
    "flüge",
    "a" * 65,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_could_be_paths_or_sql_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_name("stream", name)
    assert caught.value.code == "CAP-NAME"
    assert "stream" in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 200
    assert "lower-case letter" in caught.value.hint


@given(st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True))
def test_names_by_the_rule_come_back_as_they_are(name: str) -> None:
    assert check_name("table", name) == name
    assert check_target(name) == name


@pytest.mark.parametrize("name", ["sched_dep", "dateTime", "_c0", "A" * 128])
def test_columns_keep_their_case(name: str) -> None:
    assert check_column(name) == name


@pytest.mark.parametrize("name", ["a.b", "a b", "1a", "", "a`", "A" * 129])
def test_other_columns_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-NAME"):
        check_column(name)


@pytest.mark.parametrize("name", ["shop.orders", "main.shop.Orders_2", "a.b.c.d", "_a._b"])
def test_targets_with_dots_are_tables_of_a_catalog(name: str) -> None:
    assert check_target(name) == name
    with pytest.raises(InvalidRequestError, match="is the name of a table in a catalog") as caught:
        check_declared_target(name)
    assert f"table: {name}" in caught.value.hint
    assert check_declared_target("/data/a.b") == "/data/a.b"


@pytest.mark.parametrize(
    ("given_", "target"),
    [
        ("march", "march"),
        ("/data/March 2013/", "/data/March 2013"),
        ("s3a://bucket/march", "s3a://bucket/march"),
        ("abfss://box@account.dfs.core.windows.net/march/", "abfss://box@account.dfs.core.windows.net/march"),
        ("/data/..march", "/data/..march"),
    ],
)  # fmt: skip
def test_targets_are_names_paths_or_uris(given_: str, target: str) -> None:
    assert check_target(given_) == target


@pytest.mark.parametrize(
    "text",
    [
        "../march",
        "./march",
        "data/march",
        "/data/../../etc",
        "/data/..",
        "s3a://bucket/../other",
        "s3a://bucket//march",
        "s3a://bucket/./march",
        "file:///data/march",
        "//data/march",
        "/data//march",
        "/data/./march",
        "/./data",
        "s3a://",
        "/",
        "///",
        "/data/a'b",
        '/data/a"b',
        "/data/a`b",
        "/data/a;b",
        "/data/a\nb",
        "/data/a\x00b",
        "/data/a\x85b",
        "/" + "a" * 1024,
        *(name for name in HOSTILE if "/" not in name and name != "a.b"),
        "shop.",
        ".orders",
        "shop..orders",
        "a.b.c.d.e",
        "shop.`orders`",
        "spark_catalog.orders",
        "shop.2024",
        "shop.orders; DROP TABLE x",
        "shop.orders ",
        "shop.orders\n",
        "shop.füge",
    ],
)
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_target(text)
    assert caught.value.code == "CAP-NAME"
    assert "\n" not in caught.value.message


@given(st.text())
def test_no_text_becomes_a_target_that_ends_a_literal_or_climbs(text: str) -> None:
    try:
        target = check_target(text)
    except InvalidRequestError:
        return
    assert not set(target) & set("'\"`;\n\r\t\x00")
    assert ".." not in target.split("/")


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("1 hour", timedelta(hours=1)),
        ("3 hours", timedelta(hours=3)),
        ("15 minutes", timedelta(minutes=15)),
        ("1 day", timedelta(days=1)),
        ("500 milliseconds", timedelta(milliseconds=500)),
        ("  2  WEEKS ", timedelta(weeks=2)),
        ("1 day 12 hours", timedelta(hours=36)),
        ("0 seconds", timedelta()),
    ],
)
def test_lengths_of_time_are_a_number_and_a_unit(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length


@pytest.mark.parametrize(
    "text",
    ["", "hour", "1", "-1 hour", "1.5 hours", "1h", "1 month", "1 hour and", "9" * 15 + " weeks"],
)
def test_other_lengths_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"give a number and a unit|at most"):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=999_999)))
def test_lengths_are_read_back_as_they_were_written(length: timedelta) -> None:
    assert parse_duration(format_duration(length)) == length


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2013-03-01", datetime(2013, 3, 1, tzinfo=UTC)),
        ("2013-03-01T05:00:00Z", datetime(2013, 3, 1, 5, tzinfo=UTC)),
        ("2013-03-01 00:00:00-05:00", datetime(2013, 3, 1, 5, tzinfo=UTC)),
        ("0001-01-01", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_instants_are_in_utc(text: str, instant: datetime) -> None:
    read = parse_instant(text)
    assert read == instant
    assert read.tzinfo is UTC


@pytest.mark.parametrize("text", ["", "yesterday", "2013-02-30", "0001-01-01T00:00:00+05:00"])
def test_other_instants_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_instant(text)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("2024-05-20T10:00+25:00", "+25:00"),
        ("2024-05-20 10:00:00.5-24:00 ", "-24:00"),
        ("2024-05-20T10:00:00+3000", "+3000"),
        ("2024-02-30T10:00+02:00", None),
        ("2024-05-20-25", None),
    ],
)
def test_an_offset_out_of_range_is_named(text: str, offset: str | None) -> None:
    with pytest.raises(ValueError, match="is not a date or time") as refused:
        parse_instant(text)
    printed = f": its offset {offset} is out of range; give ISO"
    assert (printed in str(refused.value)) == (offset is not None)
    assert ("offset" in str(refused.value)) == (offset is not None)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("EWR, New York ,,LGA,", ["EWR", "New York", "LGA"]),
        ('"a,b", "x ",plain', ["a,b", "x ", "plain"]),
        ('5" disk,"5"" disk ",""', ['5" disk', '5" disk ', ""]),
        (" , ", []),
    ],
)
def test_a_name_with_a_comma_or_outer_blanks_stands_in_quotes(text: str, names: list[str]) -> None:
    assert split_names(text) == names


@pytest.mark.parametrize("text", ['"a', '"a"b', 'a,"b', '"a" "b"'])
def test_quotes_around_a_part_of_a_name_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match='"'):
        split_names(text)


@given(st.lists(st.text(alphabet='a ,"\n', max_size=4)))
def test_any_names_are_read_as_they_were_listed(names: list[str]) -> None:
    assert split_names(join_names(names)) == names
