"""Who has a run made: which steps keep it, and that they are otherwise as they were."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from capstan.replay.execution import recovery
from capstan.replay.execution.approval import Decision, reject
from capstan.storage.lake import Lake
from capstan.storage.ledger import made_by, runs
from capstan.storage.ledger.made_by import MadeBy, making
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import Step
from capstan.storage.ledger.tables import as_text
from tests.support.jvmless_lake import Books

RUN = RunId.named("t-0a0a0a0a-1", "0a" * 16, 1, "/l/tables/t")
ADA = MadeBy("d", "r:1+0", "g.replay", 2, user="ada")
STATED = {"dag": "d", "dag_run": "r:1+0", "task": "g.replay", "try_number": 2, "user": "ada"}
DETAIL = {"by": "eve", "at": "2024-05-01", "reason": "r", "staging": "/l/staging/t"}


def stored(step: Step) -> str:
    row = runs.step_row(RUN, 1, step, stream="s", target="/l/tables/t", detail=DETAIL)
    return str(row["detail"])


@pytest.mark.parametrize("step", Step)
def test_a_step_keeps_who_makes_it_unless_it_is_an_audit_or_a_certificate(step: Step) -> None:
    assert stored(step) == as_text(DETAIL)
    with making(ADA):
        kept = json.loads(stored(step))
        with making(None):
            assert stored(step) == as_text(DETAIL)
    silent = step in (Step.AUDITED, Step.DONE)
    assert kept == (DETAIL if silent else {**DETAIL, "made_by": STATED})
    assert stored(step) == as_text(DETAIL)


def test_what_a_step_says_is_told_without_who_made_it(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    books = Books(lake, "s", lake.table("t"))
    books.stepped(RUN.name, "intent", {"made_by": {**STATED, "of a later version": 1}})
    books.stepped(RUN.name, "approved", {**DETAIL, "made_by": STATED})
    failed = {"error": "CAP-FULL", "message": "m"}
    books.stepped(RUN.name, "failed", {**failed, "made_by": STATED})
    books.stepped("u-0b0b0b0b-1", "failed", failed)
    history = runs.read_history(lake, RUN.name)
    assert [row.made_by for row in history.rows] == [ADA] * 3
    assert history.approval(1) == DETAIL
    assert history.last.error == failed
    assert runs.read_history(lake, "u-0b0b0b0b-1").last.made_by is None


def test_a_rejection_keeps_who_decided_and_who_carried_it_out(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    books = Books(lake, "s", lake.table("t"))
    books.stepped(RUN.name, "intent", {}, identity=RUN.identity)
    staged = {"audit": {}, "staging": "/l/staging/t"}
    books.stepped(RUN.name, "audited", staged, identity=RUN.identity)
    with making(ADA):
        row = reject(lake, RUN.name, Decision("eve", "2024-05-01", "r"))
    assert (row.stated, row.made_by) == (DETAIL, ADA)


@pytest.mark.parametrize("undo", [False, True])
def test_the_work_of_others_is_written_down_in_nobody_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undo: bool
) -> None:
    lake = Lake.at(tmp_path / "lake")
    books = Books(lake, "s", lake.table("t"))
    books.stepped(RUN.name, "done", {})
    history, seen = runs.read_history(lake, RUN.name), []

    def completed(*given: Any) -> Any:
        seen.append(made_by._present.get())
        return given[-1]

    monkeypatch.setattr(recovery, "_complete_rollback", completed)
    nothing: Any = nullcontext()
    with making(ADA):
        recovery.recover_ledger(nothing, lake, nothing, history, undo=undo)
    # A rollback that is repeated is of whoever repeats it.
    assert seen == [ADA if undo else None]
