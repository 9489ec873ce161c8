"""The DAG `capstan_maintain`: what it asks its app, what it shows, what fails it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from capstan.airflow.maintain import maintained_markdown

if TYPE_CHECKING:
    from conftest import Place

TABLE = {
    "stream": "little", "table": "records", "files_before": 40, "files": 3, "bytes": 70,
    "rewritten": 90, "vacuumed": 2, "checkpoint": True, "damaged": [[3, 5]],
}  # fmt: skip
RESULT = {
    "streams": ["little"],
    "tables": [TABLE, {**TABLE, "stream": None, "table": "ledger runs", "damaged": []}],
    "busy": [{"error": "CAP-CONFLICT", "message": "others were faster", "hint": ""}],
}


def test_the_dag_submits_one_app_over_the_streams_that_are_chosen(
    place: Place, submit: Any
) -> None:
    submit.answers({"exit": 0, "result": RESULT})
    assert place.run("capstan_maintain").state == "success"
    chosen = {"streams": ["little"], "keep": "2 days"}
    assert place.run("capstan_maintain", chosen).state == "success"
    assert [call["request"] for call in submit.calls] == [
        {"streams": None, "keep": "30 days"},
        chosen,
    ]


def test_how_long_what_is_staged_is_kept_is_a_setting(
    place: Place, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSTAN_KEEP", "90 days")
    submit.answers({"exit": 0, "result": RESULT})
    assert place.run("capstan_maintain").state == "success"
    assert [call["request"]["keep"] for call in submit.calls] == ["90 days"]


def test_damage_fails_the_run_without_a_retry(place: Place, submit: Any) -> None:
    refused = {**RESULT, "error": "CAP-TAPE", "message": "batches 3 to 5", "hint": "look"}
    submit.answers({"exit": 1, "result": refused})
    assert place.run("capstan_maintain").state == "failed"
    assert len(submit.calls) == 1


def test_what_was_done_is_shown() -> None:
    lines = maintained_markdown({**RESULT, "error": "CAP-TAPE", "message": "m"}).splitlines()
    assert lines[4:] == [
        "| little | records | 40 | 3 | 70 | 90 | 2 | 3 to 5 |",
        "|  | ledger runs | 40 | 3 | 70 | 90 | 2 |  |",
        "",
        "passed over: others were faster",
        "",
        "**CAP-TAPE**: m",
    ]
