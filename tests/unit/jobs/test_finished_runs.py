"""Audits of several runs, and rollbacks: what is refused, and what of it needs no Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction
from pyspark.errors import AnalysisException

from capstan.api.context import Context
from capstan.audit import Audit
from capstan.core.times import Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError, InvalidRequestError, SystemFailureError
from capstan.jobs import finished_runs, handlers
from capstan.replay import standalone_audit
from capstan.storage.lake import Lake
from capstan.storage.ledger.run_identity import RunId
from capstan.telemetry.instrumentation import subscribe
from tests.support.contexts import SparkStarted, refuse_spark
from tests.support.jvmless_lake import Books

ALL = Region(Box((None,), (None,)))


def found(passed: bool) -> Any:
    return Some(to_json=lambda _: {"kind": "copy", "passed": passed, "cells": 1, "differing": 0})


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def of_run(run: str, *, version: int | None, deep: bool) -> Any:
        assert not deep
        answer = answers[run]
        if isinstance(answer, Exception):
            raise answer
        return Some(cut=version, audit=found(answer), time_type=None)

    def history(_: Any, run: str) -> Any:
        return Some(last=Some(run=run, stream="s", target=str(tmp_path / "t")))

    answers: dict[str, object] = {}
    monkeypatch.setattr(finished_runs, "read_history", history)
    context: Any = Some(lake=Some(require=lambda: None), audit=of_run)

    def all_of(strict: bool = False, **given: object) -> Any:
        answers.update(given)
        runs = (finished_runs.RunAudit(run, number) for number, run in enumerate(given))
        return finished_runs.audit_all(context, finished_runs.RunAudits(tuple(runs), strict))

    return all_of


def test_all_that_pass_pass(audit: Any) -> None:
    answer = audit(a=True, b=True)
    assert answer.refusal is None
    assert answer.value["passed"] is True
    assert [item["cut"] for item in answer.value["audits"]] == [0, 1]


def test_each_audit_is_announced(audit: Any) -> None:
    points: list[tuple[str, object]] = []
    with subscribe(lambda point, facts: points.append((point, facts))):
        audit(a=True, b=False)
    first, second = ({"run": run, "number": n, "of": 2} for n, run in enumerate("ab", start=1))
    assert points == [("audit.run", first), ("audit.run", second)]


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
    monkeypatch.setattr(finished_runs, "is_table", lambda _: True)
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
    monkeypatch.setattr(standalone_audit, "audit_run", lambda *_, deep: report)
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


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A lake with a run in each state; `over` has written over part of `under`."""
    lake = Lake.at(tmp_path)
    books = Books(lake, "s", lake.table("t"))
    for run, steps in {
        "claimed": (),
        "begun": ("intent",),
        "waits": ("intent", "audited"),
        "rejected": ("intent", "audited", "rejected"),
    }.items():
        books.claimed(run, [9], ALL)
        for step in steps:
            books.stepped(run, step, {})
    books.failed("failed", [9], ALL)
    books.published("under", [0, 1], ALL)
    books.published("over", [1, 2], ALL)
    books.published("alone", [3], ALL)
    books.published("back", [4], ALL)
    books.rolled_back("back", [4], ALL)
    return Context(tmp_path, spark=refuse_spark)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"run": "over"}, None),
        ({"run": "alone"}, None),
        # It was taken back already, and stays so.
        ({"run": "back"}, None),
        # It may have published, and the target alone knows.
        ({"run": "begun"}, None),
        ({"run": "under"}, "CAP-LATER"),
        ({"run": "failed"}, "CAP-NOT-PUBLISHED"),
        ({"run": "waits"}, "CAP-NOT-PUBLISHED"),
        ({"run": "rejected"}, "CAP-NOT-PUBLISHED"),
        ({"run": "claimed"}, "CAP-RUN"),
        ({"run": "none"}, "CAP-RUN"),
        ({"run": 7}, "CAP-REQUEST"),
        ({"run": "over", "reason": "x"}, "CAP-REQUEST"),
        ({}, "CAP-REQUEST"),
    ],
)
def test_runs_that_can_be_rolled_back(
    context: Context, asked: dict[str, object], code: str | None
) -> None:
    if code is None:
        with pytest.raises(SparkStarted):
            handlers.rollback(asked, context)
        return
    with pytest.raises(InvalidRequestError, match=f"^{code}: "):
        handlers.rollback(asked, context)


def test_the_blocking_run_is_named(context: Context) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        handlers.rollback({"run": "under"}, context)
    assert caught.value.fields["later"] == "over"
    assert caught.value.hint == "roll back over first"


def test_a_missing_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="^CAP-LAKE: "):
        handlers.rollback({"run": "a"}, Context(tmp_path / "none"))


ROWS = pa.table({"x": [1]})


def commit(lake: Lake, run: RunId, version: int, **note: object) -> None:
    """A commit of the target by a transaction of a run."""
    metadata = {"userMetadata": json.dumps({"capstan": {"run": run.name, **note}})}
    properties = CommitProperties(metadata, app_transactions=[Transaction(run.app, version)])
    deltalake.write_deltalake(lake.table("t"), ROWS, mode="append", commit_properties=properties)


@pytest.mark.parametrize("steps", [("audited",), ("audited", "approved"), ("failed",)])
def test_a_run_killed_after_its_commit_can_be_rolled_back(
    tmp_path: Path, steps: tuple[str, ...]
) -> None:
    context = Context(tmp_path, spark=refuse_spark)
    lake = context.lake
    books = Books(lake, "s", lake.table("t"))
    run, other = (RunId(digit * 32, 1, "t") for digit in "ab")
    deltalake.write_deltalake(lake.table("t"), ROWS)
    for item in (run, other):
        books.claimed(item.name, [0], ALL)
        books.stepped(item.name, "intent", {"target_version": 0}, identity=item.identity)
        for step in steps:
            books.stepped(item.name, step, {}, identity=item.identity)
    commit(lake, run, run.change(1).version, publish=True, attempt=1)
    # A later attempt has shut it out, and not gone on: that is no publish.
    commit(lake, other, other.fence(2).version, fence=other.name, attempt=2)
    with pytest.raises(SparkStarted):
        handlers.rollback({"run": run.name}, context)
    with pytest.raises(InvalidRequestError, match="^CAP-NOT-PUBLISHED: "):
        handlers.rollback({"run": other.name}, context)
    # Who shuts it out now comes too late to undo that.
    commit(lake, run, run.fence(2).version, fence=run.name, attempt=2)
    with pytest.raises(SparkStarted):
        handlers.rollback({"run": run.name}, context)
