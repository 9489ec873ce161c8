"""The job `publish`: what can be decided is told from the ledger, before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.api.context import Context
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import CapstanError, CheckFailedError, InvalidRequestError
from capstan.jobs import handlers
from capstan.replay.execution.approval import Decision, require_waiting, waiting
from capstan.reporting.listings import run_rows
from capstan.storage.lake import Lake
from capstan.storage.ledger.runs import Step, read_history
from tests.support.contexts import SparkStarted, refuse_spark
from tests.support.jvmless_lake import Books

ALL = Region(Box((None,), (None,)))
STAGED = {"audit": {"passed": True}, "staging": "/lake/staging/r-1"}
NO = {"by": "ann", "at": "2024-05-01", "reason": "the wrong month", "staging": "/lake/staging/r-1"}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A lake with a run in each state: `waits`, `approved`, `rejected`, `done`, `failed`."""
    lake = Lake.at(tmp_path)
    books = Books(lake, "s", lake.table("t"))
    for run, steps in {
        "waits": (("intent", {}), ("audited", STAGED)),
        "approved": (("intent", {}), ("audited", STAGED), ("approved", {"by": "ann"})),
        "rejected": (("intent", {}), ("audited", STAGED), ("rejected", NO)),
        "failed": (("failed", {"error": "CAP-AUDIT"}),),
    }.items():
        for step, detail in steps:
            books.stepped(run, step, dict(detail))
    books.published("done", (0,), ALL)
    return Context(tmp_path, spark=refuse_spark)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"run": "waits", "by": "ann"}, None),
        ({"run": "waits"}, None),
        ({"run": "approved", "by": "ann"}, None),
        ({"run": "done", "by": "ann"}, None),
        ({"run": "waits", "by": "ann", "approved": False}, None),
        ({"run": "rejected", "by": "ann", "approved": False}, None),
        ({"run": "none", "by": "ann"}, "CAP-RUN"),
        ({"run": "waits", "approved": False}, "CAP-DECISION"),
        ({"run": "waits", "by": " "}, "CAP-DECISION"),
        ({"run": "rejected", "by": "ann"}, "CAP-REJECTED"),
        ({"run": "failed", "by": "ann"}, "CAP-NOT-AUDITED"),
        ({"run": "done", "by": "ann", "approved": False}, "CAP-NOT-AUDITED"),
        ({"run": "waits", "aproved": True}, "CAP-REQUEST"),
        ({"run": "waits", "by": 7}, "CAP-REQUEST"),
        ({}, "CAP-REQUEST"),
    ],
)
def test_what_can_be_decided(context: Context, asked: dict[str, object], code: str | None) -> None:
    if code is None:
        if asked.get("approved", True):
            with pytest.raises(SparkStarted):
                handlers.publish(asked, context)
        else:
            refusal = handlers.publish(asked, context).refusal
            assert refusal is not None
            assert refusal.code == "CAP-REJECTED"
        return
    with pytest.raises(CapstanError, match=f"^{code}: "):
        handlers.publish(asked, context)


def test_the_rejecting_person_is_named(context: Context) -> None:
    with pytest.raises(CheckFailedError, match=r"by ann at 2024-05-01: the wrong month") as caught:
        require_waiting(read_history(context.lake, "rejected"))
    assert caught.value.exit_code == 1
    assert caught.value.fields["staging"] == "/lake/staging/r-1"


def test_a_run_waits_if_its_last_step_was_its_audit(context: Context) -> None:
    for run in ("waits", "approved"):
        row = waiting(read_history(context.lake, run))
        assert row is not None
        assert row.detail["staging"] == "/lake/staging/r-1"
    assert [waiting(read_history(context.lake, run)) for run in ("done", "failed")] == [None, None]


def test_a_decision_has_a_person_and_a_time() -> None:
    assert Decision("ann").at.startswith("20")
    assert Decision("ann", "then").to_json() == {"by": "ann", "at": "then", "reason": ""}
    assert handlers.PublishRequest("r").decision is None
    with pytest.raises(InvalidRequestError, match="CAP-DECISION"):
        Decision("")


@pytest.mark.parametrize("step", Step)
def test_a_run_is_listed_whatever_it_did_last(tmp_path: Path, step: Step) -> None:
    lake = Lake.at(tmp_path)
    books = Books(lake, "s", lake.table("t"))
    books.stepped("r", "intent", {"certificate": {"records": 7}})
    books.stepped("r", str(step), {"certificate": {"records": 7}, "target_version": 3})
    [row] = run_rows(lake, Context(lake.root).declarations, None, None)
    assert row["state"]
    rejected = step is Step.REJECTED
    assert (row["state"] == "rejected", row["error"] == "CAP-REJECTED") == (rejected, rejected)
