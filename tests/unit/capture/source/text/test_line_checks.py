"""Keys that a JSON record has twice."""

from __future__ import annotations

import pytest

from capstan.capture.source.text.line_checks import repeated_key


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"a": 1, "b": 2}', None),
        ('{"a": 1, "a": 1}', "a"),
        ('{"b": {"x": 1, "x": 2}}', "x"),
        ('{"b": [{"y": 1}, {"x": 1, "x": 2}]}', "x"),
        ('[{"a": 1}, {"a": 1, "a": 2}]', "a"),
        ('{"b": {"a": 1}, "a": {"a": 2}}', None),
        ('{"other": 1, "other": 2, "z": {"x": 1, "x": 2}}', None),
        ('{"a": 1, "a"', None),
        ("no JSON", None),
        ("", None),
    ],
)
def test_a_key_of_a_captured_column_that_comes_twice_is_found(line: str, key: str | None) -> None:
    assert repeated_key(line, ["a", "b"]) == key


def test_without_declared_columns_every_key_counts() -> None:
    assert repeated_key('{"other": 1, "other": 2}', None) == "other"
