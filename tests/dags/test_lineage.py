"""What tasks tell OpenLineage, as its own client writes it and Airflow's provider sends it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.openlineage.extractors import ExtractorManager, OperatorLineage
from airflow.sdk import DAG
from airflow.utils.state import TaskInstanceState
from openlineage.client.event_v2 import Job, Run, RunEvent
from openlineage.client.serde import Serde

from capstan.airflow.assets import table_asset
from capstan.airflow.operators.result import ResultOperator
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import read_settings
from capstan.airflow.tasks.failures import TaskRefusedError
from capstan.airflow.tasks.lineage import dataset_name, lineage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conftest import FakeSubmit, Place

LAKE = "/data/lake"
TAPE = f"{LAKE}/streams/flights/events"
TABLE = f"{LAKE}/tables/daily"
DAGS = Path(__file__).parents[2] / "dags"
CHECKS = [
    {"name": "some", "rule": "n > 0", "failing": 0},
    {"name": "one", "rule": "unique: day", "failing": 1200},
]
AUDIT: dict[str, object] = {
    "kind": "transform",
    "passed": True,
    "cells": 40,
    "differing": 0,
    "records": 6,
    "totals": {"missing": 0},
    "findings": [],
    "checks": [],
}
CERTIFICATE: dict[str, object] = {
    "run": "r-1",
    "format": 1,
    "stream": "flights",
    "cut": 7,
    "workers": ["EWR", "JFK"],
    "records": 1800,
    "fingerprint": "ab" * 16,
    "since": None,
    "until": "2013-01-03T00:00:00Z",
    "replay_workers": [{"replay_worker": 0, "starts_holding": [["2013-01-01", 2]]}],
    "target": "daily",
    "target_path": TABLE,
    "target_version": 3,
    "audit": AUDIT,
    "published": True,
    "unchanged": False,
}
WAITING = {
    **CERTIFICATE,
    "target_version": None,
    "published": False,
    "diff": {"added": 6, "sample": [{"kind": "added", "after": {"day": "2013-01-01"}}]},
}
ROLLED_BACK = {
    **{
        name: CERTIFICATE[name] for name in ("run", "stream", "target", "workers", "since", "until")
    },
    "target_path": TABLE,
    "target_version": 4,
    "rolled_back": True,
    "unchanged": False,
}


def told(job: str, answer: Mapping[str, object] | None, lake: str = LAKE) -> dict[str, Any]:
    """What is told of an answer, in an event as OpenLineage's client writes it."""
    return written(lineage(job, lake, answer))


def written(found: OperatorLineage[Any, Any]) -> dict[str, Any]:
    event = RunEvent(
        eventTime="2013-01-03T00:00:00Z",
        run=Run("01941f29-7c00-7743-8743-8743874387aa", found.run_facets),
        job=Job("n", "j", found.job_facets),
        inputs=found.inputs,  # type: ignore[arg-type]
        outputs=found.outputs,  # type: ignore[arg-type]
    )
    text: dict[str, Any] = json.loads(Serde.to_json(event))
    return text


def version(dataset: Mapping[str, Any]) -> str | None:
    return dataset["facets"].get("version", {}).get("datasetVersion")


def rows(dataset: Mapping[str, Any]) -> int | None:
    counted = {**dataset.get("inputFacets", {}), **dataset.get("outputFacets", {})}
    return next((facet["rowCount"] for facet in counted.values()), None)


def verdicts(dataset: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    actual = dataset["facets"]["dataQualityAssertions"]["assertions"]
    return [(item["assertion"], item["name"], item["success"]) for item in actual]


@pytest.mark.parametrize("job", ["replay", "publish"])
def test_a_replay_reports_input_output_and_certificate(job: str) -> None:
    actual = told(job, CERTIFICATE)
    [tape], [table] = actual["inputs"], actual["outputs"]
    assert (tape["namespace"], tape["name"], version(tape), rows(tape)) == ("file", TAPE, "7", 1800)
    assert (table["namespace"], table["name"], version(table), rows(table)) == (
        "file",
        TABLE,
        "3",
        6,
    )
    assert set(tape["inputFacets"]) == {"inputStatistics"}
    assert set(table["outputFacets"]) == {"outputStatistics"}
    assert verdicts(table) == [("audit", "audit", True)]
    facet = actual["run"]["facets"]["capstan_certificate"]
    assert facet["_schemaURL"] == "urn:capstan:openlineage:CertificateRunFacet:1"
    assert facet["_producer"]
    # Whole, but what is null and the samples of rows.
    audit = {key: value for key, value in AUDIT.items() if key != "findings"}
    whole = {**CERTIFICATE, "audit": audit}
    assert facet["certificate"] == {k: v for k, v in whole.items() if v is not None}
    for dataset in (tape, table):
        for name, item in {**dataset["facets"], **dataset.get("outputFacets", {})}.items():
            assert item["_schemaURL"].startswith("https://openlineage.io/spec/facets/"), name


def test_an_audit_and_each_check_is_a_test_of_the_table() -> None:
    audit = {**AUDIT, "passed": False, "checks": CHECKS}
    [table] = told("replay", {**CERTIFICATE, "audit": audit})["outputs"]
    assert verdicts(table) == [
        ("audit", "audit", False),
        ("check", "some", True),
        ("check", "one", False),
    ]
    whole, _, unique = table["facets"]["dataQualityAssertions"]["assertions"]
    assert whole["actual"] == "failed (transform): check one not met by 1,200 rows"
    assert (unique["description"], unique["actual"]) == ("unique: day", "not met by 1,200 rows")
    assert {item["params"]["run"] for item in (whole, unique)} == {"r-1"}


def test_an_unchanged_run_reports_zero_rows() -> None:
    actual = told("replay", {**CERTIFICATE, "unchanged": True})
    assert [rows(item) for item in (*actual["inputs"], *actual["outputs"])] == [0, 0]
    assert [version(item) for item in actual["outputs"]] == ["3"]


def test_a_waiting_run_has_no_output() -> None:
    actual = told("replay", WAITING)
    assert ([item["name"] for item in actual["inputs"]], actual["outputs"]) == ([TAPE], [])
    certificate = actual["run"]["facets"]["capstan_certificate"]["certificate"]
    assert (certificate["published"], certificate["diff"]) == (False, {"added": 6})


REFUSED = {"error": "CAP-X", "message": "what is wrong", "hint": "what to do"}


@pytest.mark.parametrize(
    ("job", "answer"),
    [
        ("replay", None),
        ("replay", REFUSED),
        # What a follow answers that finds nothing new, and never did.
        ("replay", {**dict.fromkeys(CERTIFICATE), "unchanged": True}),
        ("publish", {**REFUSED, "run": "r-1", "stream": "flights", "published": False}),
        ("capture", REFUSED),
        ("rollback", REFUSED),
        ("rollback", {**ROLLED_BACK, "unchanged": True}),
        ("audit", REFUSED),
        ("backfill", REFUSED),
        ("verify", {"stream": "flights", "valid": True}),
        ("maintain", {"streams": []}),
    ],
)
def test_jobs_without_tables_report_nothing(job: str, answer: Any) -> None:
    actual = told(job, answer)
    assert (actual["inputs"], actual["outputs"], actual["run"]["facets"]) == ([], [], {})


def test_a_capture_reports_the_tape_and_its_frontier() -> None:
    answer = {"stream": "flights", "cut": 3, "frontier": ["2013-01-09"], "records": 70}
    actual = told("capture", answer)
    [tape] = actual["outputs"]
    assert (actual["inputs"], tape["name"], version(tape), rows(tape)) == ([], TAPE, "3", 70)
    assert tape["facets"]["capstan_frontier"]["frontier"] == ["2013-01-09"]
    assert tape["facets"]["capstan_frontier"]["_schemaURL"].startswith("urn:capstan:")
    # One that is closed, and has nothing on tape.
    [tape] = told("capture", {**answer, "cut": -1, "frontier": [], "records": 0})["outputs"]
    assert (version(tape), rows(tape)) == (None, 0)
    assert tape["facets"]["capstan_frontier"]["frontier"] == []


def test_a_rollback_reports_the_table_with_the_previous_rows() -> None:
    actual = told("rollback", ROLLED_BACK)
    [table] = actual["outputs"]
    assert (actual["inputs"], table["name"], version(table)) == ([], TABLE, "4")
    assert "dataQualityAssertions" not in table["facets"]


def test_audits_report_each_table_once() -> None:
    about = {"stream": "flights", "cut": 7, "target_path": TABLE}
    audits = [
        {**AUDIT, **about, "run": "r-1", "version": 3},
        {**AUDIT, **about, "run": "r-2", "version": 5, "passed": False, "checks": CHECKS},
        {**REFUSED, **about, "run": "r-3", "version": 6},
    ]
    actual = told("audit", {**REFUSED, "audits": audits, "passed": False, "not_audited": ["r-3"]})
    tape, table = actual["inputs"]
    assert actual["outputs"] == []
    assert [(tape["name"], version(tape)), (table["name"], version(table))] == [
        (TAPE, "7"),
        (TABLE, "5"),
    ]
    assert [success for _, _, success in verdicts(table)] == [True, False, True, False]
    # One of a table alone, as it is now, which no run of Capstan's has written.
    _, table = told("audit", {**AUDIT, **about, "version": None})["inputs"]
    assert (version(table), verdicts(table)) == (None, [("audit", "audit", True)])
    assert "run" not in table["facets"]["dataQualityAssertions"]["assertions"][0]["params"]


def test_runs_of_backfills_are_reported_together() -> None:
    runs = [
        CERTIFICATE,
        {**CERTIFICATE, "run": "r-2", "target_version": 4},
        {**REFUSED, **dict.fromkeys(CERTIFICATE), "run": None},
    ]
    other = {**CERTIFICATE, "run": "r-3", "target_path": f"{LAKE}/tables/other"}
    answers = [{"runs": runs}, {"runs": [other]}, {"replay": "x", **REFUSED}]
    actual = told("backfill", {"backfills": answers})
    [tape], [daily, more] = actual["inputs"], actual["outputs"]
    assert (version(tape), rows(tape)) == ("7", 3 * 1800)
    assert (daily["name"], version(daily), rows(daily)) == (TABLE, "4", 12)
    assert (more["name"], version(more), rows(more)) == (f"{LAKE}/tables/other", "3", 6)
    assert len(verdicts(daily)) == 2
    assert actual["run"]["facets"] == {}


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/data/lake/tables/t", ("file", "/data/lake/tables/t")),
        ("file:///data/t", ("file", "/data/t")),
        ("s3a://bucket/lake/tables/t", ("s3://bucket", "lake/tables/t")),
        ("gs://bucket/t", ("gs://bucket", "t")),
        ("hdfs://node:8020/lake/t", ("hdfs://node:8020", "/lake/t")),
        ("abfss://box@a.dfs.core.windows.net/t", ("abfss://box@a.dfs.core.windows.net", "t")),
    ],
)
def test_tables_have_the_names_of_sparks_integration(path: str, named: tuple[str, str]) -> None:
    assert dataset_name(path) == named


def test_a_tape_in_an_object_store_is_named_by_bucket_and_key() -> None:
    [tape] = told("replay", CERTIFICATE, "s3a://bucket/lake")["inputs"]
    assert (tape["namespace"], tape["name"]) == ("s3://bucket", "lake/streams/flights/events")


def extracted(task: Any, state: TaskInstanceState) -> dict[str, Any]:
    """What the provider itself takes of a task that has ended."""
    run: Any = type("Run", (), {"run_id": "r"})()
    actual = ExtractorManager().extract_metadata(run, task, state, None)
    return written(actual)


def own(job: str) -> CapstanSubmitOperator:
    with DAG("own", schedule=None):
        return CapstanSubmitOperator(
            task_id="t",
            app=job,
            settings=read_settings(DAGS / "any.py"),
            request={"stream": "flights"},
            outlets=[table_asset("daily")],
        )


def test_the_provider_collects_it_when_a_task_ends(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    task = own("replay")
    assert extracted(task, TaskInstanceState.RUNNING)["outputs"] == []
    submit.answers({"exit": 0, "result": CERTIFICATE})
    execute(task, context())
    actual = extracted(task, TaskInstanceState.SUCCESS)
    assert [item["name"] for item in actual["outputs"]] == [TABLE]
    # The tape is the one of the lake that the task works on.
    [tape] = actual["inputs"]
    assert tape["name"] == str(place.lake / "streams" / "flights" / "events")
    assert "capstan_certificate" in actual["run"]["facets"]


def test_a_failed_task_reports_its_findings(
    place: Place, submit: FakeSubmit, execute: Any, context: Any
) -> None:
    task = own("audit")
    audit = {**AUDIT, "stream": "flights", "cut": 7, "target_path": TABLE, "passed": False}
    submit.answers({"exit": 1, "result": {**audit, **REFUSED}})
    with pytest.raises(TaskRefusedError):
        execute(task, context())
    _, table = extracted(task, TaskInstanceState.FAILED)["inputs"]
    assert verdicts(table) == [("audit", "audit", False)]


def test_lineage_errors_are_only_logged(
    place: Place, submit: FakeSubmit, execute: Any, context: Any, capsys: Any, caplog: Any
) -> None:
    # A certificate without the path of its target, as no job gives it.
    task = own("replay")
    submit.answers(
        {"exit": 0, "result": {"stream": "flights", "target": "daily", "published": True}}
    )
    assert execute(task, context())["published"]
    actual = extracted(task, TaskInstanceState.SUCCESS)
    assert (actual["inputs"], actual["outputs"]) == ([], [])
    # Where it goes depends on what has set Airflow's log up before.
    printed = capsys.readouterr().out + caplog.text
    assert "OpenLineage method failed to extract data" in printed


@pytest.mark.rest
def test_everything_else_works_without_the_provider(place: Place) -> None:
    gone = """
import sys
sys.modules["airflow.providers.openlineage.conf"] = None
from capstan.airflow.operators.submit import CapstanSubmitOperator
print(CapstanSubmitOperator.__name__)
"""
    ended = subprocess.run(
        [sys.executable, "-c", gone], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "CapstanSubmitOperator"


def test_a_task_without_a_result_reports_nothing(place: Place) -> None:
    for task in (own("replay"), ResultOperator(task_id="t")):
        assert task.get_openlineage_facets_on_complete(None) == OperatorLineage()
