"""Airflow's own backfill over data intervals: six days, two at a time, once and again."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from capstan.testing.rest import Refused, until

if TYPE_CHECKING:
    from conftest import World

BACKFILL = "capstan_backfill__flights_by_day"
FIRST, SECOND, LAST = (f"2013-01-0{day}T00:00:00Z" for day in (1, 2, 6))
FOLLOWS = "example_follow_flights"
ENDED = {"success", "failed"}


def backfill(world: World, last: str, **more: object) -> int:
    """Backfill days from the first on, and wait for their end; how many ran at once at most."""
    begun = world.rest.backfill(BACKFILL, FIRST, last, max_active_runs=2, **more)
    at_once = 0

    def ended() -> bool | None:
        nonlocal at_once
        states = [str(run["state"]) for run in world.rest.runs(BACKFILL)]
        at_once = max(at_once, states.count("running"))
        return (len(states) >= 6 and set(states) <= ENDED) or None

    until(ended, 1000)
    for run in world.rest.runs(BACKFILL):
        world.rest.require(BACKFILL, str(run["dag_run_id"]))
    # Airflow takes note of its end now and then; until it has, or is told, it allows no other.
    try:
        world.rest.call("PUT", f"/backfills/{begun}/cancel")
    except Refused as refused:
        assert refused.status == 409
    return at_once


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_six_days_two_at_a_time_are_one_replay_over_all_and_again_nothing(
    captured: World, whole: dict[str, object]
) -> None:
    captured.rest.wait_for_dag(BACKFILL)
    captured.rest.unpause(BACKFILL)
    assert backfill(captured, LAST) == 2
    runs = captured.rest.runs(BACKFILL)
    assert [str(run["data_interval_start"])[:10] for run in runs] == [
        f"2013-01-0{day}" for day in range(1, 7)
    ]
    assert captured.rows("flights_by_day") == captured.rows("whole") != []

    before = captured.versions()
    assert before["tables/flights_by_day"] >= 6
    backfill(captured, SECOND, reprocess_behavior="completed")
    assert captured.versions() == before
    assert len(captured.rest.runs(BACKFILL)) == 6
    for run in captured.rest.runs(BACKFILL)[:2]:
        name = str(run["dag_run_id"])
        certificate = captured.rest.xcom(BACKFILL, name, "replay")
        assert isinstance(certificate, dict)
        assert certificate["stood"]
        assert int(str(captured.rest.task(BACKFILL, name, "replay")["try_number"])) == 2
    follows_the_table(captured)


def follows_the_table(world: World) -> None:
    """The example that follows the table has run for what was replayed."""

    def followed() -> bool | None:
        return any(run["state"] == "success" for run in world.rest.runs(FOLLOWS)) or None

    until(followed, 240)
    found = [
        world.rest.xcom(FOLLOWS, str(run["dag_run_id"]), "worst_day")
        for run in world.rest.runs(FOLLOWS)
        if run["state"] == "success"
    ]
    days = {str(row["day"]) for rows in found if isinstance(rows, list) for row in rows}
    assert days
    assert days <= {f"2013-01-0{day}" for day in range(1, 7)}


def test_a_day_that_is_not_complete_waits_without_a_slot(captured: World) -> None:
    captured.rest.wait_for_dag(BACKFILL)
    captured.rest.unpause(BACKFILL)
    day = "2013-01-20T00:00:00+00:00"
    body = {"logical_date": day, "conf": {}}
    run = str(captured.rest.call("POST", f"/dags/{BACKFILL}/dagRuns", body)["dag_run_id"])

    def waits() -> bool | None:
        return captured.rest.task(BACKFILL, run, "complete")["state"] == "up_for_reschedule" or None

    until(waits, 240)
    assert captured.rest.call("GET", "/pools/default_pool")["running_slots"] == 0
    assert "not complete yet" in captured.rest.log(BACKFILL, run, "complete")
    captured.rest.call("PATCH", f"/dags/{BACKFILL}/dagRuns/{quote(run)}", {"state": "failed"})


def test_backfills_that_cannot_be_meant_are_refused(captured: World) -> None:
    captured.rest.wait_for_dag(BACKFILL)
    for conf in ({"workers": "EWR"}, {"dry_run": 3}):
        with pytest.raises(Refused) as caught:
            captured.rest.backfill(BACKFILL, FIRST, LAST, dag_run_conf=conf)
        assert caught.value.status in (400, 422)
