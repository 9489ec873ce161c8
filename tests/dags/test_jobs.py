"""DAGs over a real lake whose tasks submit real jobs to Spark."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from airflow.models.asset import AssetEvent
from airflow.models.xcom import XComModel
from airflow.sdk.exceptions import DownstreamTasksSkipped
from airflow.utils.session import create_session
from sqlalchemy import select

from capstan.airflow.tasks.lineage import lineage
from capstan.storage.lake import Lake
from capstan.verify.violations_ledger import known_violations

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place

PAIRS = """
  pairs:
    stream: little
    pipeline: places
    sink: pairs
    target: pairs
    since: 2024-05-01
    follow: pairs
"""
FILLED = """
  filled: {stream: little, target: filled, since: 2024-05-01, until: 2024-05-05}
"""
pytestmark = [pytest.mark.rest, pytest.mark.spark, pytest.mark.xdist_group("spark")]


def extra(uri: str) -> Any:
    with create_session() as session:
        events = select(AssetEvent).order_by(AssetEvent.id.desc())
        return next(event.extra for event in session.scalars(events) if event.uri == uri)


def xcom(run: Any, task: str, key: str = "return_value") -> Any:
    with create_session() as session:
        actual = session.scalars(
            select(XComModel).where(
                XComModel.run_id == run.run_id, XComModel.task_id == task, XComModel.key == key
            )
        ).one()
        return XComModel.deserialize_value(actual)


def test_a_capture_emits_the_frontier_and_saves_labels(captured: Place) -> None:
    reported = extra("capstan://streams/little")
    assert reported["records"] + sum(reported["late"].values()) == reported["fed"] == 144
    assert reported["frontier"] == ["2024-05-03T21:00:00.000000Z"]
    known = json.loads((captured.lake / "labels.json").read_text(encoding="utf-8"))
    assert known == {"little": ["a", "b", "c"]}
    assert list(captured.work.rglob("result.json")) == []


@pytest.mark.nightly
def test_a_replay_by_hand(captured: Place) -> None:
    requested = {"into": "copied", "workers": ["a", "c"], "until": "2024-05-02"}
    first = captured.run("capstan_replay", requested)
    assert first.state == "success"
    certificate = xcom(first, "replay")
    assert certificate["records"] == 32
    assert certificate["audit"]["passed"]
    assert xcom(first, "certificate").startswith(f"Certificate of {certificate['run']}\n")
    assert extra("capstan://tables/copied")["fingerprint"] == certificate["fingerprint"]
    actual = lineage("replay", str(captured.lake), certificate)
    [tape], [table] = actual.inputs, actual.outputs
    assert tape.name == str(captured.lake / "streams" / "little" / "events")
    assert table.name == str(captured.lake / "tables" / "copied")
    assert table.outputFacets["outputStatistics"].rowCount == 32  # type: ignore[attr-defined]
    assert deltalake.DeltaTable(tape.name).to_pyarrow_dataset().count_rows() > 0
    names = ("Certificate", "Target", "Run")
    links = [xcom(first, "replay", f"_link_{name}Link") for name in names]
    assert links[0].endswith("/tasks/certificate/rendered_templates")
    assert links[1].endswith("/assets?name_pattern=capstan%2Ftables%2Fcopied")
    assert links[2].endswith(f"/plugin/capstan/capstan/runs/{certificate['run']}")


@pytest.mark.nightly
def test_a_day_is_backfilled_and_an_audit_finds_later_changes(captured: Place) -> None:
    # A run by hand has the interval that ends with its date.
    run = captured.run("capstan_backfill__by_day", date=datetime(2024, 5, 2, tzinfo=UTC))
    assert run.state == "success"
    assert xcom(run, "replay")["until"] == "2024-05-02T00:00:00.000000Z"
    assert extra("capstan://tables/by_day")["records"] == 48
    table = captured.lake / "tables" / "by_day"
    actual = deltalake.DeltaTable(str(table)).to_pyarrow_table()
    assert sorted(actual["seen"].to_pylist()) == [16, 16, 16]

    wrong = actual.set_column(actual.schema.get_field_index("seen"), "seen", pa.array([1, 16, 16]))
    deltalake.write_deltalake(str(table), wrong, mode="overwrite")
    refused = captured.run("capstan_audit", {"target": "by_day"})
    assert refused.state == "failed"
    answer = xcom(refused, "audit")
    assert answer["error"] == "CAP-AUDIT"
    [audit] = answer["audits"]
    assert audit["findings"][0]["kind"] == "changed"
    _, audited = lineage("audit", str(captured.lake), answer).inputs
    assert audited.name == str(table)
    assert audited.facets is not None
    [reported] = audited.facets["dataQualityAssertions"].assertions  # type: ignore[attr-defined]
    assert (reported.success, reported.params) == (False, {"run": audit["run"]})


def test_missing_intervals_are_filled_by_one_run_each(
    captured: Place, execute: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = tmp_path / "streams.yaml"
    declared.write_text(captured.streams.read_text(encoding="utf-8") + FILLED, encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_CONFIG", str(declared))
    requested = {"fill": True, "replays": ["filled"], "chunk": 1}
    filled = captured.run("capstan_gaps", requested)
    assert filled.state == "success"
    [backfill] = xcom(filled, "fill")["backfills"]
    became = [(run["since"][:10], run["records"], run["published"]) for run in backfill["runs"]]
    assert became == [("2024-05-01", 48, True), ("2024-05-02", 48, True)]
    actual = deltalake.DeltaTable(str(captured.lake / "tables" / "filled")).to_pyarrow_table()
    assert sorted(actual["id"].to_pylist()) == list(range(96))
    assert extra("capstan://tables/filled")["run"] == backfill["runs"][-1]["run"]
    # And then there is nothing to fill.
    task, where = captured.bag().dags["capstan_gaps"].get_task("gaps"), context()
    where |= {"params": requested, "task": task}
    with pytest.raises(DownstreamTasksSkipped):
        execute(task, where)
    [reported] = where["ti"].pushed["return_value"]["replays"]
    assert (reported["counts"]["covered"], reported["counts"]["gap"]) == (2, 0)


@pytest.mark.nightly
def test_a_recording_that_breaks_a_rule_fails_the_maintenance(
    captured: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(captured.lake, tmp_path / "lake")
    monkeypatch.setenv("CAPSTAN_LAKE", str(tmp_path / "lake"))
    lake = Lake.at(tmp_path / "lake")
    path = lake.stream("little").events
    events = deltalake.DeltaTable(path).to_pyarrow_table().sort_by("commit")
    last = events.slice(events.num_rows - 1).to_pylist()[0]
    stray = {**last, "kind": "progress", "seq": 99, "updates": [], "commit": last["commit"] + 1}
    stray |= dict.fromkeys(("time", "records", "fingerprint"))
    rows = pa.Table.from_pylist([stray], schema=events.schema)
    deltalake.write_deltalake(path, rows, mode="append")
    refused = captured.run("capstan_maintain", {"streams": ["little"]})
    assert refused.state == "failed"
    assert xcom(refused, "maintain")["error"] == "CAP-VIOLATION"
    assert [known.rule for known in known_violations(lake)] == ["seq"]


@pytest.mark.nightly
def test_a_following_replay_continues_from_its_state(
    captured: Place, execute: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = tmp_path / "streams.yaml"
    declared.write_text(captured.streams.read_text(encoding="utf-8") + PAIRS, encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_CONFIG", str(declared))
    first = captured.run("capstan_follow__pairs", {"peers": 2})
    assert first.state == "success"
    certificate = xcom(first, "replay")
    state = certificate["pipeline"]["state"]
    assert (certificate["follow"], certificate["peers"], state["peers"]) == ("pairs", 2, 2)
    where = context()
    where["params"] = {"peers": 3}
    with pytest.raises(DownstreamTasksSkipped):
        execute(captured.bag().dags["capstan_follow__pairs"].get_task("plan"), where)
    request = where["ti"].pushed["request"]
    assert (request["follow"], request["peers"], request["as_of"]) == ("pairs", 3, None)
    assert (request["pipeline"], request["sink"], request["replay"]) == ("places", "pairs", "pairs")
    plan = where["ti"].pushed["plan"]
    assert (plan["peers"], plan["records"]) == (3, 0)
    assert plan["pipeline"]["resumed"] == state["snapshot"]
