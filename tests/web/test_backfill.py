"""Airflow's own backfill over data intervals: three days, two at a time, once and again."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.support.airflow_api import Refused, until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conftest import World

BACKFILL = "capstan_backfill__flights_by_day"
FIRST, LAST, NEXT = (f"2013-01-0{day}T00:00:00Z" for day in (1, 3, 4))
CAPTURE = "capstan_capture__flights"
FOLLOWS = "example_follow_flights"
HASTY = "hasty"
ENDED = {"success", "failed"}


def by_shell(world: World, *arguments: str) -> None:
    """Begin a backfill as `docs/airflow.md` says for a shell."""
    home = str(world.launched.home.folder)
    command = [sys.executable, "-m", "airflow", "backfill", "create", "--dag-id", BACKFILL]
    # All that Airflow is told stands in the file of its home.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment = {**kept, "AIRFLOW_HOME": home}
    subprocess.run([*command, *arguments], env=environment, check=True, timeout=240)


def ended(world: World, days: int) -> int:
    """Wait until so many days have succeeded; how many ran at once at most."""
    at_once = 0

    def done() -> bool | None:
        nonlocal at_once
        states = [str(run["state"]) for run in world.rest.runs(BACKFILL)]
        at_once = max(at_once, states.count("running"))
        return (len(states) >= days and set(states) <= ENDED) or None

    until(done, 1000)
    for run in world.rest.runs(BACKFILL):
        world.rest.require(BACKFILL, str(run["dag_run_id"]))
    # Airflow takes note of its end now and then; until it has, or is told, it allows no other.
    begun = world.rest.call("GET", f"/backfills?dag_id={BACKFILL}")["backfills"]
    assert isinstance(begun, list)
    try:
        world.rest.call("PUT", f"/backfills/{max(item['id'] for item in begun)}/cancel")
    except Refused as refused:
        assert refused.status == 409
    return at_once


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_chunked_days_equal_one_replay_and_repeat_nothing(
    captured: World, whole: dict[str, object]
) -> None:
    captured.rest.wait_for_dag(BACKFILL)
    captured.rest.unpause(BACKFILL)
    captured.rest.backfill(BACKFILL, FIRST, LAST, max_active_runs=2)
    assert ended(captured, 3) == 2
    runs = captured.rest.runs(BACKFILL)
    assert [str(run["data_interval_start"])[:10] for run in runs] == [
        f"2013-01-0{day}" for day in range(1, 4)
    ]
    assert captured.rows("flights_by_day") == captured.rows("whole") != []
    follows_the_table(captured)

    before = captured.versions()
    assert before["tables/flights_by_day"] >= 3
    again = ("--max-active-runs", "2", "--reprocess-behavior", "completed")
    by_shell(captured, "--from-date", FIRST, "--to-date", FIRST, *again)
    ended(captured, 3)
    assert captured.versions() == before
    assert len(captured.rest.runs(BACKFILL)) == 3
    run = captured.rest.runs(BACKFILL)[0]
    name = str(run["dag_run_id"])
    assert certificate(captured, run)["unchanged"]
    assert int(str(captured.rest.task(BACKFILL, name, "replay")["try_number"])) == 2

    parameters = {"workers": ["EWR"], "dry_run": True}
    captured.rest.backfill(BACKFILL, NEXT, NEXT, dag_run_conf=parameters)
    ended(captured, 4)
    name = str(captured.rest.runs(BACKFILL)[3]["dag_run_id"])
    planned = captured.rest.xcom(BACKFILL, name, "plan")
    assert isinstance(planned, dict)
    assert (planned["plan"]["workers"], planned["plan"]["complete"]) == (["EWR"], True)
    assert captured.rest.task(BACKFILL, name, "replay")["state"] == "skipped"
    assert captured.versions() == before


def certificate(world: World, run: Mapping[str, object]) -> dict[str, object]:
    """What a run of the backfill has done."""
    reported = world.rest.xcom(BACKFILL, str(run["dag_run_id"]), "replay")
    assert isinstance(reported, dict)
    return reported


def follows_the_table(world: World) -> None:
    """The example that follows the table finds, of what was replayed, each run with its day."""
    reported = [certificate(world, run) for run in world.rest.runs(BACKFILL)]
    played = {(item["run"], str(item["since"])[:10]) for item in reported}

    def followed() -> set[tuple[object, str]] | None:
        actual = [
            world.rest.xcom(FOLLOWS, str(run["dag_run_id"]), "worst_day")
            for run in world.rest.runs(FOLLOWS)
            if run["state"] == "success"
        ]
        rows = [row for item in actual if isinstance(item, list) for row in item]
        return {(row["run"], str(row["day"])) for row in rows} or None

    assert until(followed, 240) <= played


def waiting(world: World, day: date) -> str:
    """Have a day run that is not complete, until it waits; the run."""
    world.rest.wait_for_dag(BACKFILL)
    world.rest.unpause(BACKFILL)
    # A run by hand is one of the interval before its moment.
    moment = f"{day + timedelta(1)}T00:00:00+00:00"
    body = {"logical_date": moment, "conf": {}}
    run = str(world.rest.call("POST", f"/dags/{BACKFILL}/dagRuns", body)["dag_run_id"])

    def waits() -> bool | None:
        return world.rest.task(BACKFILL, run, "complete")["state"] == "up_for_reschedule" or None

    until(waits, 240)
    return run


def reached(world: World) -> date:
    """The first day that is not complete."""
    reported = world.rest.xcom(CAPTURE, str(world.rest.runs(CAPTURE)[-1]["dag_run_id"]), "capture")
    assert isinstance(reported, dict)
    [time] = reported["frontier"]
    return date.fromisoformat(str(time)[:10])


@pytest.mark.nightly
@pytest.mark.rest
def test_waiting_tasks_hold_no_slot(captured: World) -> None:
    day = reached(captured)
    captured.rest.wait_for_dag(HASTY)
    hasty = captured.rest.trigger(HASTY, {"until": (day + timedelta(1)).isoformat()})
    patient = waiting(captured, day)
    assert captured.rest.call("GET", "/pools/default_pool")["running_slots"] == 0
    assert "not complete yet" in captured.rest.log(BACKFILL, patient, "complete")

    def waits() -> bool | None:
        state = captured.rest.task(HASTY, hasty, "replay")["state"]
        assert state not in ENDED
        return state == "up_for_reschedule" or None

    # The job has said that it is not complete, and the task holds no slot until it asks again.
    until(waits, 240, every=0.1)
    assert "CAP-INCOMPLETE" in captured.rest.log(HASTY, hasty, "replay")
    assert captured.rest.call("GET", "/pools/spark")["running_slots"] == 0
    captured.capture_more(2)
    captured.rest.require(BACKFILL, patient)
    captured.rest.require(HASTY, hasty)
    # To wait is no failure: it is the first try still.
    assert captured.rest.task(BACKFILL, patient, "complete")["try_number"] == 1
    assert captured.rest.task(HASTY, hasty, "replay")["try_number"] == 1
    played = captured.rest.xcom(BACKFILL, patient, "replay")
    assert isinstance(played, dict)
    assert (played["published"], str(played["since"])[:10]) == (True, day.isoformat())
    assert captured.rows("hasty") != []


@pytest.mark.rest
def test_backfills_that_cannot_be_meant_are_refused(captured: World) -> None:
    captured.rest.wait_for_dag(BACKFILL)
    for conf in ({"workers": "EWR"}, {"dry_run": 3}):
        with pytest.raises(Refused) as caught:
            captured.rest.backfill(BACKFILL, FIRST, LAST, dag_run_conf=conf)
        assert caught.value.status in (400, 422)
