"""The DAG `capstan_maintain`: what it asks its job, what it shows, what fails it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capstan.airflow.documents import maintained_document
from capstan.airflow.tasks.failures import TaskBrokenError, TaskRefusedError
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import lay_tape

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


def test_the_dag_submits_one_job_for_the_chosen_streams(place: Place, submit: Any) -> None:
    submit.answers({"exit": 0, "result": RESULT})
    assert place.run("capstan_maintain").state == "success"
    chosen = {"streams": ["little"], "keep": "2 days"}
    assert place.run("capstan_maintain", chosen).state == "success"
    assert [call["request"] for call in submit.calls] == [
        {"streams": None, "keep": "30 days"},
        chosen,
    ]


def test_the_retention_of_staged_output_is_a_setting(
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


def test_stalled_frontiers_are_reported_without_a_capture(
    place: Place, submit: Any, execute: Any, context: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    submit.answers({"exit": 0, "result": RESULT})
    lake, text = Lake.at(place.lake), place.streams.read_text(encoding="utf-8")
    one = text.split("streams:\n")[1].split("transforms:")[0]
    for name in ("little", "other"):
        lay_tape(lake, name, "ab", [(0,)], (1,))

    def told(bound: str, *more: str) -> Any:
        declared = one + f"    stalled_after: {bound}\n"
        others = "".join(declared.replace("  little:", f"  {name}:", 1) for name in more)
        place.streams.write_text(text.replace(one, declared + others), encoding="utf-8")
        return place.bag().dags["capstan_maintain"].get_task("watch")

    assert execute(told("9 days", "other", "unheard"), context()) == ["little", "other"]
    with pytest.raises(
        TaskRefusedError, match="^CAP-STALLED: stream little: the frontier has been"
    ):
        execute(told("1 microsecond"), context())
    several = told("1 microsecond", "other")
    with pytest.raises(
        TaskRefusedError, match="^CAP-STALLED: the frontiers of 2 streams do not move: little, oth"
    ):
        execute(several, context())
    # One that cannot be read is told, and hides none that stands.
    [log] = Path(lake.stream("little").events, "_delta_log").glob("*0.json")
    whole = log.read_text(encoding="utf-8")
    log.write_text("{torn", encoding="utf-8")
    capsys.readouterr()
    with pytest.raises(TaskBrokenError, match="^CAP-TABLE: "):
        execute(several, context())
    assert "stream other: the frontier has been" in capsys.readouterr().out
    log.write_text(whole, encoding="utf-8")
    assert place.run("capstan_maintain").state == "failed"
    # What is maintained does not wait for it, nor does it for Spark.
    assert len(submit.calls) == 1


def test_the_result_of_maintenance_is_shown() -> None:
    broken = {"error": "CAP-VIOLATION", "message": "worker 3 breaks seq", "hint": ""}
    actual = {**RESULT, "violations": [broken], "error": "CAP-TAPE", "message": "m"}
    assert str(maintained_document(actual)).splitlines() == [
        "Maintenance",
        "",
        "stream  table        files before  files  bytes  rewritten  vacuumed  damaged",
        "------  -----        ------------  -----  -----  ---------  --------  -------",
        "little  records      40            3      70     90         2         3 to 5",
        "        ledger runs  40            3      70     90         2",
        "",
        "skipped: others were faster",
        "",
        "CAP-VIOLATION: worker 3 breaks seq",
        "",
        "CAP-TAPE: m",
    ]
    assert str(maintained_document({**RESULT, "violations": [broken], **broken})).count("seq") == 1
    gone = {"error": "CAP-DAMAGED", "message": "stream a: a file is gone", "hint": ""}
    lines = str(maintained_document({**RESULT, "failed": [gone], **gone})).splitlines()
    assert lines[-1] == "CAP-DAMAGED: stream a: a file is gone"
    assert lines.count(lines[-1]) == 1


def test_values_from_data_are_shown_as_text() -> None:
    """A label of a worker is whatever a source says."""
    label = "worker ![a](https://x/y.png) <b>|`z`"
    broken = {"error": "CAP-VIOLATION", "message": f"{label}\nbreaks\x1b[31m seq", "hint": ""}
    table = {**RESULT["tables"][0], "stream": label}
    document = maintained_document(
        {
            "tables": [table], "busy": [{"message": label}], "violations": [broken],
            "error": "CAP-TAPE", "message": label,
        }
    )  # fmt: skip
    shown = r"worker !\[a\](https://x/y.png) \<b>\|\`z\`"
    assert document.markdown.splitlines()[4:] == [
        f"| {shown} | records | 40 | 3 | 70 | 90 | 2 | 3 to 5 |",
        "",
        f"skipped: {shown}",
        "",
        rf"CAP-VIOLATION: {shown} breaks\\x1b\[31m seq",
        "",
        f"CAP-TAPE: {shown}",
    ]
    assert str(document).splitlines()[-3:-1] == [rf"CAP-VIOLATION: {label} breaks\x1b[31m seq", ""]
