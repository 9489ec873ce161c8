"""What Airflow adds to a replay: the same request to the app alone, and to the DAG, in turns."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from capstan.bench.inputs import Bench
from capstan.bench.lines import Line
from capstan.errors import Broken
from capstan.runtime.archive import pyspark_home
from capstan.runtime.submission import submission
from capstan.testing.launched import launch
from capstan.testing.rest import Fields, Rest
from capstan.workloads.flights import feed

OVER_GOAL, PARSE_GOAL = 6.0, 0.5
_ROOT = Path(__file__).parents[3]
_DECLARED = _ROOT / "dags" / "streams.yaml"
_MASTER = "local[2]"
_DAG, _STREAM = "capstan_replay", "flights"
_DAYS = 4
_TASKS = ("plan", "replay", "certificate")


def scheduled(bench: Bench) -> list[Line]:
    """The lines `Airflow`, `a hop of Airflow` and `parsing a DAG file`, of real runs.

    Raises:
        Broken: `CAP-BENCH` where an app or a run does not succeed.
    """
    folder = bench.place("airflow")
    feed(folder / "lake" / "sources" / _STREAM, days=range(_DAYS))
    _submit(folder, "capture", {"stream": _STREAM})
    bench.say("starting Airflow")
    launched = launch(
        folder,
        arguments=["--lake", str(folder / "lake")],
        environment={"CAPSTAN_STREAMS": str(_DECLARED)},
    )
    try:
        launched.rest.wait_for_dag(_DAG)
        return _measured(bench, folder, launched.rest)
    finally:
        launched.stop()


def _measured(bench: Bench, folder: Path, rest: Rest) -> list[Line]:
    bare, runs, hops = [], [], []
    # The first of each rehearses: it makes what later ones find.
    for number in range(bench.options.rounds + 1):
        bare.append(_submit(folder, "replay", _request(f"bare_{number}")))
        seconds, tasks = _run(rest, _request(f"scheduled_{number}"))
        runs.append(seconds)
        hops += _hops(tasks) if number else []
        bench.say(f"a replay: {bare[-1]:.1f} s by itself, {seconds:.1f} s in Airflow")
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


def _submit(folder: Path, app: str, request: Fields) -> float:
    """Run an app as the DAGs do, without them; how many seconds it took."""
    given = submission(_MASTER, short=True)
    conf = [part for key, value in given.conf.items() for part in ("--conf", f"{key}={value}")]
    program = [str(pyspark_home() / "bin" / "spark-submit"), "--master", _MASTER, *conf]
    program += ["--driver-memory", given.memory, str(_ROOT / "spark_apps" / f"{app}.py")]
    program += ["--request", json.dumps(request), "--lake", str(folder / "lake")]
    began = time.monotonic()
    ended = subprocess.run(
        [*program, "--streams", str(_DECLARED)],
        env={**os.environ, **given.environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        last = ended.stdout.strip().rpartition("\n")[2]
        raise Broken("CAP-BENCH", f"the app {app} ended with {ended.returncode}: {last}")
    return time.monotonic() - began


def _run(rest: Rest, request: Fields) -> tuple[float, list[Fields]]:
    """Trigger a replay and wait for its end; seconds from one to the other, and its tasks."""
    began = time.time()
    run = rest.trigger(_DAG, request)
    state = rest.wait(_DAG, run)
    if state != "success":
        raise Broken("CAP-BENCH", f"the run {run} of {_DAG} is {state}")
    tasks = sorted(rest.tasks(_DAG, run), key=lambda task: _TASKS.index(str(task["task_id"])))
    return _moment(tasks[-1]["end_date"]) - began, tasks


def _hops(tasks: Sequence[Fields]) -> list[float]:
    """Seconds from the end of each task to the start of the next."""
    return [
        _moment(after["start_date"]) - _moment(before["end_date"])
        for before, after in itertools.pairwise(tasks)
    ]


def _parsed(rest: Rest) -> list[float]:
    """Seconds that Airflow took to read each DAG file, the last time it did."""
    dags = rest.call("GET", "/dags?limit=100")["dags"]
    assert isinstance(dags, list)
    files = {dag["fileloc"]: dag["last_parse_duration"] for dag in dags}
    return sorted(float(seconds) for seconds in files.values() if seconds is not None)


def _moment(value: object) -> float:
    return datetime.fromisoformat(str(value)).timestamp()
