"""Captures and replays that are triggered over REST, and those that are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from capstan.storage.tape.tape import open_tape
from tests.support.airflow_api import Refused, until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conftest import World

REPLAY = "capstan_replay"
CAPTURE = "capstan_capture__flights"
AUDIT = "capstan_audit"
ROOT = Path(__file__).parents[2]

WRONG = """
# Airflow looks for DAGs in no file that does not speak of one.
import os

os.environ["CAPSTAN_CONFIG"] = {streams!r}

from capstan.airflow.dags.declaration_errors import require_none
from capstan.airflow.settings import read_settings

require_none(read_settings(__file__))
"""
"""A DAG file over declarations of its own; each file is read in a process of its own."""


def asset_events(world: World, name: str) -> list[dict[str, object]]:
    actual = world.rest.call("GET", "/assets/events?limit=100")["asset_events"]
    assert isinstance(actual, list)
    actual.sort(key=lambda event: str(event["timestamp"]))
    return [event["extra"] for event in actual if event["name"] == name]


def test_no_dag_file_has_an_error(captured: World) -> None:
    assert captured.rest.import_errors() == []


def test_a_capture_puts_the_source_on_tape_and_tells_its_asset(captured: World) -> None:
    tape = open_tape(captured.lake, "flights")
    assert tape is not None
    run = captured.rest.runs(CAPTURE)[0]
    result = captured.rest.xcom(CAPTURE, str(run["dag_run_id"]), "capture")
    assert isinstance(result, dict)
    assert result["fed"] == result["records"] + sum(result["late"].values()) > 5000
    extra = asset_events(captured, "capstan/streams/flights")[0]
    assert extra["cut"] == result["cut"]
    assert extra["frontier"] == result["frontier"] != []


def test_a_replay_is_published_and_certified(captured: World, whole: dict[str, object]) -> None:
    assert whole["published"]
    assert whole["audit"]["passed"]  # type: ignore[index]
    assert len(captured.rows("whole")) == 3 * 3
    # A run that was done again says so: whoever follows the table finds nothing new.
    extra, *again = asset_events(captured, "capstan/tables/whole")
    assert all(item["unchanged"] for item in again)
    assert extra["run"] == whole["run"]
    assert extra["target_version"] == whole["target_version"]
    shown = captured.rest.xcom(REPLAY, str(whole["dag_run"]), "certificate")
    assert str(shown).startswith(f"Certificate of {whole['run']}\n")


@pytest.mark.parametrize(
    "conf",
    [
        {"into": ""},
        {"into": "t", "stream": "nothing"},
        {"into": "t", "workers": "EWR"},
        {"into": "t", "since": 7},
        {"into": "t", "transform": "none_such"},
        {"into": "t", "mode": "burn"},
        {"into": "t", "peers": 0},
        {"into": "t", "dry_run": "yes"},
    ],
    ids=str,
)
def test_what_the_form_does_not_offer_is_refused_at_once(
    captured: World, conf: Mapping[str, object]
) -> None:
    before = len(captured.rest.runs(REPLAY))
    with pytest.raises(Refused) as caught:
        captured.rest.trigger(REPLAY, conf)
    assert caught.value.status == 400
    assert len(captured.rest.runs(REPLAY)) == before


# One of a name, one of the tape; what else is refused is told by the tests of the plan itself.
REFUSED = {"CAP-NAME": {"into": "../t"}, "CAP-INCOMPLETE": {"into": "t", "until": "2013-02-01"}}


@pytest.mark.rest
def test_what_cannot_be_meant_is_refused_before_spark_starts(captured: World) -> None:
    before = captured.versions()
    runs = {code: captured.rest.trigger(REPLAY, conf) for code, conf in REFUSED.items()}
    for code, run in runs.items():
        assert captured.rest.wait(REPLAY, run) == "failed", code
        tasks = {str(t["task_id"]): t for t in captured.rest.tasks(REPLAY, run)}
        assert tasks["plan"]["state"] == "failed"
        assert tasks["plan"]["try_number"] == 1
        assert tasks["replay"]["state"] == "upstream_failed"
        assert captured.last_line(REPLAY, run, "plan").startswith(f"{code}: ")
        assert "Traceback" not in captured.rest.log(REPLAY, run, "plan")
    assert captured.launched.spark() == []
    assert captured.versions() == before


@pytest.mark.rest
def test_what_only_the_job_can_tell_is_the_last_line_of_its_log(
    captured: World, whole: dict[str, object]
) -> None:
    # The same rows, at a place where no replay has put them.
    shutil.copytree(captured.lake.table("whole"), captured.lake.table("foreign"))
    before = captured.versions()["tables/foreign"]
    requested = {key: whole[key] for key in ("transform", "since", "until")}
    run = captured.rest.trigger(REPLAY, {**requested, "into": "foreign"})
    assert captured.rest.wait(REPLAY, run) == "failed"
    task = captured.rest.task(REPLAY, run, "replay")
    assert (task["state"], task["try_number"]) == ("failed", 1)
    last = captured.last_line(REPLAY, run, "replay")
    assert last.startswith("CAP-ADOPT: target foreign has 9 rows in the range"), last
    log = captured.rest.log(REPLAY, run, "replay")
    assert "What to do: inspect them, then replace them with --adopt" in log
    assert captured.versions()["tables/foreign"] == before


@pytest.mark.nightly
def test_wrong_declarations_are_located_import_errors(world: World) -> None:
    declared = (ROOT / "dags" / "streams.yaml").read_text(encoding="utf-8")
    wrong = world.folder / "wrong.yaml"
    wrong.write_text(declared.replace("\n    workers:", "\n    wrokers:", 1), encoding="utf-8")
    line = wrong.read_text(encoding="utf-8").split("wrokers:")[0].count("\n") + 1
    file = world.folder / "dags" / "wrong.py"
    file.write_text(WRONG.format(streams=str(wrong)), encoding="utf-8")
    try:
        [error] = until(lambda: world.rest.import_errors() or None, 240)
        assert str(error["filename"]).endswith("wrong.py")
        printed = str(error["stack_trace"]).strip().splitlines()[-1]
        assert f"CAP-DECLARE: {wrong}:{line}: streams.flights.wrokers: " in printed
    finally:
        file.unlink()
    until(lambda: world.rest.import_errors() == [] or None, 240)


@pytest.mark.rest
def test_a_dry_run_shows_the_plan_and_starts_no_spark(captured: World) -> None:
    before = captured.versions()
    run = captured.rest.run(REPLAY, {"into": "dry", "until": "2013-01-03", "dry_run": True})
    states = {str(t["task_id"]): t["state"] for t in captured.rest.tasks(REPLAY, run)}
    skipped = dict.fromkeys(("replay", "approve", "publish", "certificate"), "skipped")
    assert states == {"plan": "success", **skipped}
    result = captured.rest.xcom(REPLAY, run, "plan")
    assert isinstance(result, dict)
    assert result["plan"]["records"] > 1000
    assert captured.versions() == before


@pytest.mark.nightly
def test_failed_captures_and_audits_end_with_the_reason(
    captured: World, whole: dict[str, object]
) -> None:
    table = deltalake.DeltaTable(captured.lake.table("whole"))
    version = table.version()
    table.delete("origin = 'EWR'")
    captured.rest.wait_for_dag(AUDIT)
    captured.rest.unpause(AUDIT)
    run = captured.rest.trigger(AUDIT, {"target": "whole"})
    try:
        assert captured.rest.wait(AUDIT, run) == "failed"
    finally:
        table.restore(version)
    assert captured.rest.task(AUDIT, run, "audit")["try_number"] == 1
    assert captured.last_line(AUDIT, run, "audit").startswith("CAP-AUDIT: ")
    actual = captured.rest.xcom(AUDIT, run, "audit")
    assert isinstance(actual, dict)
    assert actual["passed"] is False

    source = Path(captured.lake.root) / "sources" / "flights"
    elsewhere = source.rename(source.with_name("elsewhere"))
    try:
        run = captured.rest.trigger(CAPTURE)
        assert captured.rest.wait(CAPTURE, run) == "failed"
    finally:
        elsewhere.rename(source)
    assert captured.rest.task(CAPTURE, run, "capture")["try_number"] == 1
    last = captured.last_line(CAPTURE, run, "capture")
    assert last.startswith(f"CAP-SOURCE: stream flights: {source} does not exist"), last
