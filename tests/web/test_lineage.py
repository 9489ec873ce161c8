"""What a real Airflow tells OpenLineage of captures and replays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from capstan.testing.rest import until

if TYPE_CHECKING:
    from conftest import World

CAPTURE = "capstan_capture__flights"
REPLAY = "capstan_replay"


def event(world: World, kind: str, job: str) -> dict[str, Any]:
    """The last event of a kind that tells of a task; it comes when the task's state is known."""

    def found() -> dict[str, Any] | None:
        file = world.folder / "events.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        events = [json.loads(line) for line in lines]
        told = [e for e in events if (e["eventType"], e["job"]["name"]) == (kind, job)]
        return told[-1] if told else None

    return until(found, 60)


def test_nothing_is_said_where_nobody_is_to_be_told(
    captured: World, whole: dict[str, object]
) -> None:
    for task in ("plan", "replay", "certificate"):
        said = captured.rest.log(REPLAY, str(whole["dag_run"]), task)
        assert said
        assert "openlineage" not in said.lower()


@pytest.mark.nightly
def test_a_replay_tells_its_certificate_and_what_it_read_and_wrote(traced: World) -> None:
    world = traced
    # Of a stream that is not on tape; the last line of the log is the error all the same.
    world.rest.wait_for_dag(REPLAY)
    run = world.rest.trigger(REPLAY, {"stream": "flights", "into": "daily"})
    assert world.rest.wait(REPLAY, run) == "failed"
    assert event(world, "FAIL", f"{REPLAY}.plan")["outputs"] == []
    assert world.last_line(REPLAY, run, "plan").startswith("CAP-")

    world.capture()
    [tape] = event(world, "COMPLETE", f"{CAPTURE}.capture")["outputs"]
    assert tape["name"] == world.lake.stream("flights").events
    assert tape["facets"]["capstan_frontier"]["frontier"] != []

    days = {"since": "2013-01-01", "until": "2013-01-03"}
    certificate = world.replay(into="daily", transform="flights_by_day", **days)
    done = event(world, "COMPLETE", f"{REPLAY}.replay")
    told = done["run"]["facets"]["capstan_certificate"]["certificate"]
    for key in ("run", "fingerprint", "workers", "since", "until", "target_version", "published"):
        assert told[key] == certificate[key], key
    [read], [written] = done["inputs"], done["outputs"]
    assert (read["namespace"], read["name"]) == ("file", tape["name"])
    assert read["facets"]["version"]["datasetVersion"] == str(certificate["cut"])
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == certificate["records"]
    assert written["name"] == world.lake.table("daily")
    assert written["facets"]["version"]["datasetVersion"] == str(certificate["target_version"])
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == len(world.rows("daily"))
    [audit] = written["facets"]["dataQualityAssertions"]["assertions"]
    assert (audit["name"], audit["success"]) == ("audit", True)
    # What Airflow knows of the run itself is beside it.
    assert done["run"]["facets"]["airflow"]["dagRun"]["run_id"] == certificate["dag_run"]
