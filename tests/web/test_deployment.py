"""The deployment of `docker/` over a real PostgreSQL and Spark cluster, its parts as processes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg2
import pytest

from capstan.demo.flights import feed
from capstan.storage.ledger.runs import read_histories
from tests.support import lake_contents
from tests.support.airflow_api import until
from tests.support.docker_deployment import Deployment, deployed

if TYPE_CHECKING:
    from pathlib import Path

CAPTURE, REPLAY, DAYS = "capstan_capture__flights", "capstan_replay", 4


@pytest.mark.nightly
def test_the_main_job_runs_on_what_compose_would_start(tmp_path: Path, database: str) -> None:
    """Captured by the scheduler, replayed through a transform, audited: all on two workers."""
    with deployed(tmp_path.resolve() / "deployed", database) as at:
        feed(tmp_path / "deployed" / "lake" / "sources" / "flights", days=range(DAYS))
        captured = capture(at)
        # What the job told of its work is in the task's log.
        assert "capture.begin stream=flights" in at.rest.log(CAPTURE, captured, "capture")
        run = at.rest.run(
            REPLAY,
            {
                "stream": "flights",
                "into": "daily",
                "transform": "flights_by_day",
                "since": "2013-01-01",
                "until": "2013-01-03",
            },
        )
        actual = at.rest.xcom(REPLAY, run, "replay")
        assert isinstance(actual, dict)
        assert (actual["published"], actual["audit"]["passed"]) == (True, True)
        assert len(lake_contents.rows(at.lake.table("daily"))) == 6
        [name] = read_histories(at.lake)
        # Both workers took part in it all, and the form knows what a task has left behind.
        jobs = dict(re.findall(r"Registered app capstan (\w+).* ID (\S+)", at.log("spark-master")))
        for worker in ("spark-worker-1", "spark-worker-2"):
            requested = set(re.findall(r"Asked to launch executor (\S+)/", at.log(worker)))
            assert requested >= {jobs["capture"], jobs["replay"]}, worker
        params = at.rest.call("GET", f"/dags/{REPLAY}/details")["params"]
        assert "EWR" in str(params)
        # The command line beside it, as in a container of its own.
        assert name in at.run("capstan", "runs")
        require_airflow_is_in(database)
        at.stop()


def capture(at: Deployment) -> str:
    """Capture by the scheduler; the run."""
    at.rest.wait_for_dag(CAPTURE)
    at.rest.unpause(CAPTURE)
    run = until(lambda: next(iter(at.rest.runs(CAPTURE)), None), 240)
    assert run["run_type"] == "scheduled"
    at.rest.require(CAPTURE, str(run["dag_run_id"]))
    at.rest.wait_for_dag(REPLAY)
    return str(run["dag_run_id"])


def require_airflow_is_in(database: str) -> None:
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT dag_id, state FROM dag_run WHERE dag_id = %s", (REPLAY,))
        assert cursor.fetchall() == [(REPLAY, "success")]
        cursor.execute("SELECT slots FROM slot_pool WHERE pool = 'spark'")
        assert cursor.fetchall() == [(2,)]
