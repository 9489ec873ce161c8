"""Audits of several runs: one that differs refuses the whole, one that cannot be made does not."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from capstan.errors import BadRequest
from capstan.submit import several


def found(passed: bool) -> Any:
    return Some(as_json=lambda _: {"kind": "copy", "passed": passed, "cells": 1, "differing": 0})


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of_run(_s: Any, _l: Any, _d: Any, history: Any, version: int | None) -> Any:
        answer = answers[history.last.run]
        if isinstance(answer, Exception):
            raise answer
        return Some(cut=Some(commit=version), tape=Some(time_type=None)), found(answer)

    answers: dict[str, object] = {}
    monkeypatch.setattr(several, "audit_run", of_run)

    def all_of(strict: bool = False, **given: object) -> Any:
        answers.update(given)
        asked: Any = [
            (Some(last=Some(run=run, stream="s", target="t")), number)
            for number, run in enumerate(given)
        ]
        return several.audit_all(Any, Any, Any, asked, strict=strict)  # type: ignore[arg-type]

    return all_of


def test_all_that_pass_pass(audit: Any) -> None:
    answer = audit(a=True, b=True)
    assert answer.refusal is None
    assert answer.value["passed"] is True
    assert [each["cut"] for each in answer.value["audits"]] == [0, 1]


def test_one_that_differs_refuses_and_is_named(audit: Any) -> None:
    answer = audit(a=True, b=False, c=True)
    assert answer.value["passed"] is False
    assert str(answer.refusal).startswith(
        "CAP-AUDIT: 1 of 3 runs are not what the tape promises: b"
    )
    assert answer.refusal.exit_code == 1
    assert len(answer.value["audits"]) == 3


def test_what_cannot_be_audited_stops_no_other(audit: Any) -> None:
    changed = BadRequest("CAP-CODE", "changed since", "replay")
    gone = AnalysisException("[DELTA_X] gone\nmore")
    answer = audit(a=changed, b=gone, c=True)
    assert answer.refusal is None
    assert answer.value["not_audited"] == ["a", "b"]
    first, second, third = answer.value["audits"]
    assert (first["error"], first["hint"]) == ("CAP-CODE", "replay")
    assert (second["error"], second["version"]) == ("CAP-GONE", 1)
    assert "\n" not in second["message"]
    assert third["passed"] is True


def test_what_cannot_be_audited_is_refused_where_that_is_asked(audit: Any) -> None:
    changed = BadRequest("CAP-CODE", "changed since", "replay")
    answer = audit(a=changed, b=True, strict=True)
    assert str(answer.refusal) == "CAP-AUDIT: 1 of 2 runs cannot be audited any more: a"
    # One that differs comes first.
    assert "what the tape promises: b" in str(audit(a=changed, b=False, strict=True).refusal)
    assert audit(a=True, strict=True).refusal is None


def test_what_nobody_foresaw_is_not_passed_over(audit: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        audit(a=ZeroDivisionError())
