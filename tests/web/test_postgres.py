"""Airflow over a PostgreSQL of one's own, with a password, that tells OpenLineage what it does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest

from tests.support.airflow_api import until
from tests.support.live_airflow import components

if TYPE_CHECKING:
    from conftest import World

CAPTURE = "capstan_capture__flights"
REPLAY = "capstan_replay"
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def failed(told: World) -> str:
    """A replay of a stream that is not on tape."""
    told.rest.wait_for_dag(REPLAY)
    run = told.rest.trigger(REPLAY, {"stream": "flights", "into": "daily"})
    assert told.rest.wait(REPLAY, run) == "failed"
    return run


@pytest.fixture(scope="module")
def replayed(told: World, failed: str) -> dict[str, object]:
    """The certificate of a replay, once there is something on tape."""
    told.capture()
    days = {"since": "2013-01-01", "until": "2013-01-03"}
    return told.replay(into="daily", transform="flights_by_day", **days)


def test_the_main_job_runs_over_a_postgresql_of_ones_own(
    told: World, replayed: dict[str, object]
) -> None:
    audit = replayed["audit"]
    assert isinstance(audit, dict)
    assert (replayed["published"], audit["passed"]) == (True, True)
    assert len(told.rows("daily")) == 6
    # It is there that Airflow keeps what it knows, and the launcher has started no other one.
    assert told.database is not None
    with psycopg2.connect(told.database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT state FROM dag_run WHERE dag_id = %s ORDER BY state", (REPLAY,))
        assert cursor.fetchall() == [("failed",), ("success",)]
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = 'airflow'")
        assert cursor.fetchone()[0] > 1
    assert "postgres" not in components(told.launched.home)
    assert not (told.launched.home.folder / "postgres" / "data").exists()


def event(world: World, kind: str, job: str) -> dict[str, Any]:
    """The last event of a kind that tells of a task; it comes when the task's state is known."""

    def found() -> dict[str, Any] | None:
        file = world.folder / "events.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        events = [json.loads(line) for line in lines]
        printed = [e for e in events if (e["eventType"], e["job"]["name"]) == (kind, job)]
        return printed[-1] if printed else None

    return until(found, 60)


def test_a_run_that_fails_is_told_and_its_error_is_the_last_line(told: World, failed: str) -> None:
    assert event(told, "FAIL", f"{REPLAY}.plan")["outputs"] == []
    assert told.last_line(REPLAY, failed, "plan").startswith("CAP-")


def test_a_capture_tells_the_tape_and_how_far_it_is_complete(
    told: World, replayed: dict[str, object]
) -> None:
    [tape] = event(told, "COMPLETE", f"{CAPTURE}.capture")["outputs"]
    assert tape["name"] == told.lake.stream("flights").events
    assert tape["facets"]["capstan_frontier"]["frontier"] != []


def test_a_replay_reports_its_certificate_and_lineage(
    told: World, replayed: dict[str, object]
) -> None:
    done = event(told, "COMPLETE", f"{REPLAY}.replay")
    certificate = done["run"]["facets"]["capstan_certificate"]["certificate"]
    for key in ("run", "fingerprint", "workers", "since", "until", "target_version", "published"):
        assert certificate[key] == replayed[key], key
    [read], [written] = done["inputs"], done["outputs"]
    assert (read["namespace"], read["name"]) == ("file", told.lake.stream("flights").events)
    assert read["facets"]["version"]["datasetVersion"] == str(replayed["cut"])
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == replayed["records"]
    assert written["name"] == told.lake.table("daily")
    assert written["facets"]["version"]["datasetVersion"] == str(replayed["target_version"])
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == len(told.rows("daily"))
    [audit] = written["facets"]["dataQualityAssertions"]["assertions"]
    assert (audit["name"], audit["success"]) == ("audit", True)
    # What Airflow knows of the run itself is beside it.
    assert done["run"]["facets"]["airflow"]["dagRun"]["run_id"] == replayed["dag_run"]
