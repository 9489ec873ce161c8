"""Overhead of Airflow: the same replay by the job alone and by the DAG, alternately."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from capstan.demo.flights import feed
from capstan.errors import SystemFailureError
from tests.bench.inputs import Bench
from tests.bench.measures import Line
from tests.bench.submit import DECLARED, submitted
from tests.support.airflow_api import Fields, Rest
from tests.support.live_airflow import launch

OVER_GOAL, PARSE_GOAL = 6.0, 0.5
_DAG, _STREAM = "capstan_replay", "flights"
_DAYS = 4
TASKS = ("plan", "replay", "certificate")
"""Tasks of a run without approval, in their order; other tasks of the DAG are skipped."""


def scheduled(bench: Bench) -> list[Line]:
    """The results `Airflow`, `a hop of Airflow` and `parsing a DAG file`, from real runs.

    Raises:
        SystemFailureError: `CAP-BENCH` if a job or a run does not succeed.
    """
    folder = bench.place("airflow")
    feed(folder / "lake" / "sources" / _STREAM, days=range(_DAYS))
    submitted(folder, "capture", {"stream": _STREAM})
    bench.say("starting Airflow")
    launched = launch(
        folder,
        arguments=["--lake", str(folder / "lake")],
        environment={"CAPSTAN_CONFIG": str(DECLARED)},
    )
    try:
        launched.rest.wait_for_dag(_DAG)
        return _measured(bench, folder, launched.rest)
    finally:
        launched.stop()


def _measured(bench: Bench, folder: Path, rest: Rest) -> list[Line]:
    bare, runs, hops = [], [], []
    # The first round is a rehearsal: it creates what later rounds need.
    for number in range(bench.options.rounds + 1):
        bare.append(submitted(folder, "replay", _request(f"bare_{number}")).wall)
        seconds, tasks = _run(rest, _request(f"scheduled_{number}"))
        runs.append(seconds)
        hops += _hops(tasks) if number else []
        bench.say(f"a replay: {bare[-1]:.1f} s alone, {seconds:.1f} s in Airflow")
    over = tuple(run - alone for run, alone in zip(runs, bare, strict=True))[1:]
    detail = {"wall": {"bare": bare[1:], "airflow": runs[1:]}}
    parsed = _parsed(rest)
    return [
        Line("Airflow", "bare app", median(over), OVER_GOAL, "s", None, over, detail),
        Line("a hop of Airflow", "", median(hops), None, "s", None, (), {"hops": hops}),
        Line("parsing a DAG file", "", max(parsed), PARSE_GOAL, "s", None, (), {"files": parsed}),
    ]


def _request(into: str) -> Fields:
    return {
        "stream": _STREAM,
        "into": into,
        "workers": ["EWR", "LGA"],
        "since": "2013-01-01",
        "until": "2013-01-03",
    }


def _run(rest: Rest, request: Fields) -> tuple[float, list[Fields]]:
    """Trigger a replay and wait for its end; returns the seconds, and its tasks."""
    began = time.time()
    run = rest.trigger(_DAG, request)
    state = rest.wait(_DAG, run)
    if state != "success":
        hint = "--workdir keeps the logs of its tasks; check them"
        raise SystemFailureError("CAP-BENCH", f"the run {run} of {_DAG} is {state}", hint)
    ran = {str(task["task_id"]): task for task in rest.tasks(_DAG, run)}
    tasks = [ran[name] for name in TASKS]
    return _moment(tasks[-1]["end_date"]) - began, tasks


def _hops(tasks: Sequence[Fields]) -> list[float]:
    """Seconds from the end of each task to the start of the next."""
    return [
        _moment(after["start_date"]) - _moment(before["end_date"])
        for before, after in itertools.pairwise(tasks)
    ]


def _parsed(rest: Rest) -> list[float]:
    """Seconds that Airflow took for its last parse of each DAG file."""
    dags = rest.call("GET", "/dags?limit=100")["dags"]
    assert isinstance(dags, list)
    files = {dag["fileloc"]: dag["last_parse_duration"] for dag in dags}
    return sorted(float(seconds) for seconds in files.values() if seconds is not None)


def _moment(value: object) -> float:
    return datetime.fromisoformat(str(value)).timestamp()
