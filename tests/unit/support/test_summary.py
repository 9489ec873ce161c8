"""What a run of tests says at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.conftest import pytest_terminal_summary


def test_the_end_says_what_was_not_tried_and_why() -> None:
    reasons = [
        "Skipped: there is no Chromium",
        "Skipped: too late",
        "Skipped: there is no Chromium",
    ]
    reports = [SimpleNamespace(longrepr=("a.py", 1, reason)) for reason in reasons]
    said: list[str] = []
    reporter: Any = SimpleNamespace(stats={"skipped": reports}, write_line=said.append)
    pytest_terminal_summary(reporter)
    assert said == ["Not tried, of the tests: 2 because there is no Chromium; 1 because too late."]
    pytest_terminal_summary(SimpleNamespace(stats={}, write_line=said.append))  # type: ignore[arg-type]
    assert len(said) == 1
