"""Audits of several runs: one that differs refuses the whole, one that cannot be made does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from capstan.api.context import Context
from capstan.audit import Audit
from capstan.core.times import Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError, InvalidRequestError, SystemFailureError
from capstan.jobs import audit_runs, handlers
from capstan.replay import standalone_audit
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import Books

ALL = Region(Box((None,), (None,)))


def found(passed: bool) -> Any:
    return Some(to_json=lambda _: {"kind": "copy", "passed": passed, "cells": 1, "differing": 0})


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def of_run(run: str, *, version: int | None) -> Any:
        answer = answers[run]
        if isinstance(answer, Exception):
            raise answer
        return Some(cut=version, audit=found(answer), time_type=None)

    def history(_: Any, run: str) -> Any:
        return Some(last=Some(run=run, stream="s", target=str(tmp_path / "t")))

    answers: dict[str, object] = {}
    monkeypatch.setattr(audit_runs, "read_history", history)
    context: Any = Some(lake=Some(require=lambda: None), audit=of_run)

    def all_of(strict: bool = False, **given: object) -> Any:
        answers.update(given)
        runs = (audit_runs.RunAudit(run, number) for number, run in enumerate(given))
        return audit_runs.audit_all(context, audit_runs.RunAudits(tuple(runs), strict))

    return all_of


def test_all_that_pass_pass(audit: Any) -> None:
    answer = audit(a=True, b=True)
    assert answer.refusal is None
    assert answer.value["passed"] is True
    assert [item["cut"] for item in answer.value["audits"]] == [0, 1]


def test_a_differing_run_is_a_refusal_and_named(audit: Any) -> None:
    answer = audit(a=True, b=False, c=True)
    assert answer.value["passed"] is False
    assert str(answer.refusal).startswith(
        "CAP-AUDIT: the targets of 1 of 3 runs differ from the tape: b"
    )
    assert answer.refusal.exit_code == 1
    assert len(answer.value["audits"]) == 3


def test_a_failed_audit_does_not_stop_the_others(audit: Any) -> None:
    changed = InvalidRequestError("CAP-CODE", "changed since", "replay")
    gone = AnalysisException("[DELTA_X] gone\nmore")
    answer = audit(a=changed, b=gone, c=True)
    assert answer.refusal is None
    assert answer.value["not_audited"] == ["a", "b"]
    first, second, third = answer.value["audits"]
    assert (first["error"], first["hint"]) == ("CAP-CODE", "replay")
    assert (second["error"], second["version"]) == ("CAP-GONE", 1)
    assert "\n" not in second["message"]
    assert third["passed"] is True


def test_strict_refuses_runs_that_cannot_be_audited(audit: Any) -> None:
    changed = InvalidRequestError("CAP-CODE", "changed since", "replay")
    answer = audit(a=changed, b=True, strict=True)
    assert str(answer.refusal) == "CAP-AUDIT: 1 of 2 runs can no longer be audited: a"
    # One that differs comes first.
    assert "differ from the tape: b" in str(audit(a=changed, b=False, strict=True).refusal)
    assert audit(a=True, strict=True).refusal is None


def test_an_unexpected_error_is_not_swallowed(audit: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        audit(a=ZeroDivisionError())


def test_a_broken_run_does_not_stop_the_others(audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = SystemFailureError("CAP-DAMAGED", "a file is torn", "put it back")
    monkeypatch.setattr(audit_runs, "is_table", lambda _: True)
    answer = audit(a=torn, b=True)
    assert answer.refusal is torn
    assert [item.get("error") for item in answer.value["audits"]] == ["CAP-DAMAGED", None]
    assert answer.value["not_audited"] == ["a"]
    assert isinstance(audit(a=torn, b=False).refusal, CheckFailedError)


def laid(lake: Lake, target: str, *runs: str) -> Books:
    books = Books(lake, "s", lake.table(target))
    for number, run in enumerate(runs):
        books.published(run, [number], ALL)
    return books


def test_runs_changed_meanwhile_do_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was taken back since it was listed, a table is gone, another was made anew."""
    lake = Lake.at(tmp_path)
    laid(lake, "t", "back", "good").rolled_back("back", [0], ALL)
    laid(lake, "gone", "lost")
    laid(lake, "new", "remade")
    shutil.rmtree(lake.table("gone"))
    report = standalone_audit.AuditReport(
        audit=Audit("copy", True, 1, 0, (), 1, {}),
        run="good",
        target_version=0,
        stream="s",
        cut=7,
        cuts={},
        target="t",
        target_path=lake.table("t"),
        version=None,
        time_type=TimeType.of(epoch=Kind.BIGINT),
    )
    monkeypatch.setattr(standalone_audit, "audit_run", lambda *_: report)
    context = Context(tmp_path, spark=lambda: Some(stop=lambda: None))  # type: ignore[arg-type,return-value]
    requested = [{"run": "back"}, {"run": "lost", "version": 3}, {"run": "remade", "version": 3}]
    answer = handlers.audit({"audits": [*requested, {"run": "good"}]}, context)
    assert answer.refusal is None
    audits: Any = answer.value["audits"]
    assert [(item["run"], item.get("error")) for item in audits] == [
        ("back", "CAP-NOT-PUBLISHED"),
        ("lost", "CAP-TABLE"),
        ("remade", "CAP-VERSION"),
        ("good", None),
    ]
    assert answer.value["not_audited"] == ["back", "lost", "remade"]
    with pytest.raises(InvalidRequestError, match="^CAP-RUN: "):
        handlers.audit({"audits": [{"run": "never"}]}, context)
