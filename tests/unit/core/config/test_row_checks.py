"""Declared checks: what is read, and how what cannot be meant is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from capstan.core.config import ProjectConfig, load_config
from capstan.core.config.row_checks import Check, Range, duplicate_name
from capstan.errors import InvalidRequestError

HEAD = """\
streams:
  rides:
    source: {format: rate}
    workers: {by: key, columns: value, count: 2}
    time: {domain: event, column: at, every: 1 hour}
    stalled_after: 2 days
    notify: [alerts.us:ON_CALL]
targets:
  rides:
    checks:
"""


def read(tmp_path: Path, checks: str, rest: str = "") -> ProjectConfig:
    path = tmp_path / "streams.yaml"
    lines = "".join(f"      {line}\n" for line in checks.splitlines())
    path.write_text(HEAD + lines + rest, encoding="utf-8")
    return load_config(path, lake="/lake")


def test_all_four_kinds_are_read(tmp_path: Path) -> None:
    declared = read(
        tmp_path,
        "- {name: paid, sql: 'amount >= 0 -- or free'}\n"
        "- {unique: [id, At]}\n"
        "- {not_null: id}\n"
        "- {range: {column: amount, min: 0, max: 99.5}}\n"
        "- {name: lately, range: {column: at, min: 2024-05-01}}",
    )
    checks = declared.targets["rides"].checks
    assert [(check.title, check.rule) for check in checks] == [
        ("paid", "amount >= 0"),
        ("unique_id_at", "unique: id, At"),
        ("not_null_id", "not null: id"),
        ("range_amount", "0 <= amount <= 99.5"),
        ("lately", "2024-05-01T00:00:00+00:00 <= at"),
    ]
    assert checks[4].range is not None
    assert checks[4].range.min == datetime(2024, 5, 1, tzinfo=UTC)
    assert declared.streams["rides"].stalled_after is not None
    assert declared.streams["rides"].notify == ("alerts.us:ON_CALL",)


@pytest.mark.parametrize(
    ("check", "line", "key", "problem"),
    [
        ("- {unique: [id], not_null: [id]}", 11, "0", "exactly one of sql, unique"),
        ("- {name: nothing}", 11, "0", "exactly one of sql, unique"),
        ("- {sql: a > 0}", 11, "0", "needs a name"),
        ("- {name: a, sql: a > rand()}", 11, "0.sql", "calls rand"),
        ("- {name: a, sql: a > 0; DROP TABLE b}", 11, "0.sql", "';'"),
        ("- {name: A-b, sql: a > 0}", 11, "0.name", "cannot name a check"),
        ("- {unique: []}", 11, "0.unique", "is empty"),
        ("- {unique: ['a`b']}", 11, "0.unique.0", "cannot name a column"),
        ("- {unqiue: [id]}", 11, "0.unqiue", "did you mean 'unique'"),
        ("- {range: {column: a}}", 11, "0.range", "needs a min, a max"),
        ("- {range: {column: a, min: 3, max: 2}}", 11, "0.range", "above its max"),
        ("- {range: {column: a, min: 3, max: 2024-05-01}}", 11, "0.range", "of the same kind"),
        ("- {range: {column: a, min: soon}}", 11, "0.range.min", "is not a date or time"),
        ("- {range: {column: a, min: NaN}}", 11, "0.range.min", "is not a number"),
        ("- {unique: id}\n- {not_null: id}\n- {unique: id}", 10, "", "two checks named"),
        ("{unique: id}", 10, "", "must be a list"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(
    tmp_path: Path, check: str, line: int, key: str, problem: str
) -> None:
    with pytest.raises(InvalidRequestError, match="^CAP-DECLARE: ") as caught:
        read(tmp_path, check)
    fields = caught.value.fields
    assert problem in caught.value.message
    assert fields["key"] == ".".join(filter(None, ("targets.rides.checks", key)))
    assert fields["line"] == line


def test_a_replay_may_not_name_a_check_as_its_target_does(tmp_path: Path) -> None:
    rest = """\
replays:
  rides:
    stream: rides
    target: rides
    approve: yes
    checks:
      - {unique: [id]}
"""
    declared = read(tmp_path, "- {not_null: id}", rest)
    assert declared.replays["rides"].approve is True
    with pytest.raises(
        InvalidRequestError, match="'unique_id' is also a check of target rides"
    ) as caught:
        read(tmp_path, "- {unique: id}", rest)
    assert (caught.value.fields["key"], caught.value.fields["line"]) == ("replays.rides.checks", 17)


numbers = st.decimals(-999, 999, allow_nan=False, allow_infinity=False, places=3)


@given(numbers, numbers)
def test_a_range_is_one_that_has_a_value(low: Decimal, high: Decimal) -> None:
    if low <= high:
        actual = Check(range=Range("a", str(low), str(high))).range  # type: ignore[arg-type]
        assert actual is not None
        assert (actual.min, actual.max) == (low, high)
    else:
        with pytest.raises(ValidationError, match="above its max"):
            Range("a", low, high)


@given(st.lists(st.sampled_from("abc"), max_size=4))
def test_the_first_name_that_comes_twice(names: list[str]) -> None:
    actual = duplicate_name([Check(name=name, unique=("x",)) for name in names])
    doubled = [name for i, name in enumerate(names) if name in names[:i]]
    assert actual == (doubled[0] if doubled else None)
