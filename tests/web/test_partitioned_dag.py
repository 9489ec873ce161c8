"""The partitioned DAGs of docs/airflow.md under a scheduler: of a late hour, and of a lost day."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from capstan.airflow.local import processes
from capstan.cli.scaffold import write_project
from tests.support.airflow_api import until
from tests.support.docs import blocks, page, section
from tests.support.live_airflow import launch
from tests.support.small_spark import SUBMITTED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CAPTURE, CONSUMER = "capstan_capture__orders", "bookkeeping"
DAY = datetime(2026, 1, 5, tzinfo=UTC)
STREAMS = """
streams:
  orders:
    source: {format: json, path: "{here}/source", schema: "shop STRING, placed_at TIMESTAMP"}
    workers: {by: column, column: shop, labels: [berlin, oslo]}
    time: {domain: event, column: placed_at, every: 1 hour, watermark: worker}
    partitions: {every: 1 hour}
replays:
  kept: {stream: orders, target: kept, partitions: true}
"""
TELLER, SENDER, RECALLER = "capstan_partitions__kept", "send_revenue", "recall_revenue"


def send(source: Path, name: str, **hours: Iterable[int]) -> None:
    """Let shops have an order in each of some hours."""
    lines = (
        json.dumps({"shop": shop, "placed_at": (DAY + timedelta(hours=hour)).isoformat()})
        for shop, each in hours.items()
        for hour in each
    )
    (source / f"{name}.json").write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_a_day_runs_once_when_all_its_hours_are_complete(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    dags, lake, source = (folder / name for name in ("dags", "lake", "dags/source"))
    write_project(folder / "project", airflow=dags)
    lake.mkdir()
    source.mkdir()
    (dags / "streams.yaml").write_text(STREAMS, encoding="utf-8")
    [text] = blocks(section(page("airflow"), "Partitions"), "python")
    (dags / "bookkeeping.py").write_text(text, encoding="utf-8")
    [text] = blocks(section(page("airflow"), "Partitions of tables"), "python")
    (dags / "revenue.py").write_text(
        text.replace("tables/revenue", "tables/kept"), encoding="utf-8"
    )
    arguments = ["--lake", str(lake), "--dags", str(dags)]
    launched = launch(folder, arguments=arguments, environment=SUBMITTED)
    try:
        rest = launched.rest
        for dag in (CAPTURE, CONSUMER, TELLER, SENDER, RECALLER):
            rest.wait_for_dag(dag)
            rest.unpause(dag)
        assert rest.import_errors() == []
        send(source, "both", berlin=range(23), oslo=range(23))
        rest.run(CAPTURE)
        send(source, "berlin_alone", berlin=range(23, 26))
        rest.run(CAPTURE)
        assert rest.runs(CONSUMER) == []
        send(source, "oslo_again", oslo=range(23, 26))
        rest.run(CAPTURE)
        run = until(lambda: next(iter(rest.runs(CONSUMER)), None), 240)
        rest.require(CONSUMER, str(run["dag_run_id"]))
        assert run["partition_key"] == "2026-01-05"
        assert "all orders of 2026-01-05 are there" in rest.log(
            CONSUMER, str(run["dag_run_id"]), "close"
        )
        rest.run(CAPTURE)
        # A replay by hand takes the day from its key.
        body = {"conf": {"stream": "orders", "into": "days"}, "logical_date": None}
        keyed = rest.call(
            "POST", "/dags/capstan_replay/dagRuns", {**body, "partition_key": "2026-01-05"}
        )
        replay = str(keyed["dag_run_id"])
        rest.require("capstan_replay", replay)
        certificate = rest.xcom("capstan_replay", replay, "replay")
        assert isinstance(certificate, dict)
        assert (certificate["records"], certificate["published"]) == (48, True)
        assert len(rest.runs(CONSUMER)) == 1
        # A publish has its day told, once, and its rollback that it is gone.
        published = rest.run("capstan_replay", {"replay": "kept"})
        certificate = rest.xcom("capstan_replay", published, "replay")
        assert isinstance(certificate, dict)
        sent = until(lambda: next(iter(rest.runs(SENDER)), None), 240)
        assert sent["partition_key"] == "2026-01-05T00:00:00"
        rest.require(SENDER, str(sent["dag_run_id"]))
        rest.run("capstan_rollback", {"run": certificate["run"]})
        recalled = until(lambda: next(iter(rest.runs(RECALLER)), None), 240)
        assert recalled["partition_key"] == "2026-01-05T00:00:00"
        rest.require(RECALLER, str(recalled["dag_run_id"]))
        assert [len(rest.runs(dag)) for dag in (SENDER, RECALLER, CONSUMER)] == [1, 1, 1]
        launched.stop(signal.SIGINT)
    finally:
        processes.end(launched.home.left)
