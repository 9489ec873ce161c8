"""Airflow in chaos: it schedules work on a lake, and tasks are killed while their apps are at it.

Nobody takes up by hand what was cut off here: a task that was killed has to be tried again, by the
worker that supervised it, or by the scheduler once it has not heard of it for long. Until then
nothing of its app may be left. All rounds have one Airflow: what a round has left that was broken
off itself goes on in the next.
"""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import yaml

from capstan.airflow.local import processes
from capstan.airflow.local.home import Home
from capstan.airflow.local.processes import Process, find, runs, send
from capstan.storage.lake import Lake, is_table
from tests.support import small_stream
from tests.support.airflow_api import Refused, Rest, until
from tests.support.live_airflow import Launched, command_of, launch
from tests.support.sample_streams import HOUR, START

WAYS = ("task", "worker", "app")
"""What of a task at work is killed, in each round once: its own process, LocalExecutor's process
that supervises it, its Spark app."""

_PATIENCE = 1800.0
_INTERVAL = 6 * HOUR
_ENVIRONMENT = {
    "CAPSTAN_DRIVER_MEMORY": "1g",
    # Whoever lost its worker is heard of no more. The scheduler waits for 5 minutes by default.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    # On a machine that others use as well no try is to be lost for a slow answer: 5 seconds else.
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
}
_CAPTURE = f"capstan_capture__{small_stream.NAME}"
_FILL, _COPY, _MAINTAIN = "capstan_backfill__filled", "capstan_replay", "capstan_maintain"
# How many commits a task makes; by default those of a replay.
_COMMITS = {_CAPTURE: 4, _MAINTAIN: 1}
_TITLE = "airflow worker -- "
# What submits an app names its file as well, but not as its own.
_PYTHON = re.compile(r"\S+ \S+/spark_apps/")


@dataclass(frozen=True, slots=True)
class AtWork:
    """A task that waits for its Spark app.

    Attributes:
        dag, run, task, attempt: Which one it is, and which of its tries.
        own: Its process.
        worker: The process of LocalExecutor that supervises it.
        app: The processes of its app: the JVM and its Python.
    """

    dag: str
    run: str
    task: str
    attempt: int
    own: Process
    worker: Process
    app: tuple[Process, ...]

    def of(self, way: str) -> tuple[Process, ...]:
        """What is killed of it, by one of `WAYS`."""
        return {"task": (self.own,), "worker": (self.worker,), "app": self.app}[way]

    @property
    def jvm(self) -> list[Process]:
        """The JVM of its app, which holds all the rest of it."""
        return [each for each in self.app if "deploy.SparkSubmit" in command_of(each)]


class Scheduled:
    """An Airflow in a folder, and the lake that its DAGs work on.

    Args:
        folder: Where Airflow lives, with the declarations of its DAGs.
        lake: The lake.
        source: The folder of its source.
        followed: Requests of replays that follow the stream; each is declared by its target's name.
    """

    def __init__(
        self, folder: Path, lake: str, source: Path, followed: Sequence[Mapping[str, object]]
    ) -> None:
        self._folder = folder
        self._lake = Lake.at(lake)
        self._source = source
        self._followed = {str(each["into"]): dict(each) for each in followed}
        self._dags = [
            *(_CAPTURE, _FILL, _COPY, _MAINTAIN),
            *(f"capstan_follow__{name}" for name in self._followed),
        ]

    def kill_tasks(self, log: Path, chance: random.Random) -> int:
        """Have Airflow do all its work once, two DAGs at a time, and kill tasks of it.

        Args:
            log: A folder for what the launcher prints, and what was killed; made here.
            chance: Chooses the work, the moments, and what is killed.

        Returns:
            How many were killed: each of `WAYS` once, where work was there to be killed.

        Raises:
            AssertionError: A task that was killed has left something, or was not tried again; or a
                run has not succeeded in the end.
        """
        log.mkdir(parents=True)
        left = chance.sample(WAYS, k=len(WAYS))
        killed: dict[str, AtWork] = {}
        with self._airflow(log) as airflow:
            self._go_on(airflow.rest)
            for dags in self._scenes(chance):
                for dag in dags:
                    self._begin(airflow.rest, dag)
                at_work = self._kill(airflow, chance, dags, left[0]) if left else None
                if at_work is not None:
                    killed[left.pop(0)] = at_work
                    (log / "killed.json").write_text(json.dumps(killed, default=asdict))
                _require_success(airflow.rest, dags)
                for each in killed.values():
                    _require_tried_again(airflow.rest, each)
            until(lambda: airflow.spark() == [] or None, _PATIENCE)
        return len(killed)

    @contextmanager
    def _airflow(self, log: Path) -> Iterator[Launched]:
        self._folder.mkdir(exist_ok=True)
        self._declare()
        home = Home((self._folder / "home").resolve())
        _kill_launcher(home)
        launched = launch(
            self._folder,
            arguments=["--lake", self._lake.root],
            environment={**_ENVIRONMENT, "CAPSTAN_STREAMS": str(self._declarations)},
            output=str(log / "launcher.log"),
            patience=_PATIENCE,
        )
        try:
            yield launched
            launched.stop(patience=180)
            assert home.left() == []
        finally:
            if launched.process.poll() is None:
                launched.kill()
            processes.end(home.left)

    @property
    def _declarations(self) -> Path:
        return self._folder / "streams.yaml"

    def _declare(self) -> None:
        """Write what `little.declarations` has as a file, with what has a DAG in it."""
        declared = yaml.safe_load(small_stream.declaration_text(self._source))
        hourly = small_stream.declarations(self._source).transforms["hourly"]
        declared["transforms"] = {
            hourly.name: {"sql": hourly.sql, "time": hourly.time, "grain": "1 hour",
                          "worker": hourly.worker}
        }  # fmt: skip
        # Over bounds in the past: it is backfilled, and starts nothing by itself.
        bounds = {"since": START.isoformat(), "until": (START + timedelta(days=360)).isoformat()}
        declared["replays"]["filled"] |= {**bounds, "schedule": "0 */6 * * *"}
        for name, request in self._followed.items():
            fields = {key: value for key, value in request.items() if key != "into"}
            declared["replays"][name] = {"stream": small_stream.NAME, "target": name, **fields}
        self._declarations.write_text(yaml.safe_dump(declared), encoding="utf-8")

    def _go_on(self, rest: Rest) -> None:
        """Wait until what a round that was broken off has left has come to its end, by itself."""
        for dag in self._dags:
            rest.wait_for_dag(dag)
        _require_success(rest, self._dags)

    def _scenes(self, chance: random.Random) -> Iterator[Sequence[str]]:
        """DAGs that are begun together: a capture first, of which others play what is complete."""
        there = is_table(self._lake.stream(small_stream.NAME).events)
        early = chance.choice([dag for dag in self._dags if dag not in (_CAPTURE, _FILL, _COPY)])
        rest = [dag for dag in self._dags if dag != _CAPTURE and (dag != early or not there)]
        chance.shuffle(rest)
        yield (_CAPTURE, early) if there else (_CAPTURE,)
        for first in range(0, len(rest), 2):
            yield rest[first : first + 2]

    def _begin(self, rest: Rest, dag: str) -> None:
        """Have Airflow run a DAG: over a range, up to the newest interval that is complete."""
        rest.unpause(dag)
        newest = START + (2 * len(list(self._source.glob("*.parquet"))) - 2) * _INTERVAL
        if dag == _FILL:
            _backfill(rest, dag, START.isoformat(), newest.isoformat())
        elif dag == _COPY:
            bounds = {"since": newest.isoformat(), "until": (newest + _INTERVAL).isoformat()}
            rest.trigger(dag, {"stream": small_stream.NAME, "into": "copied", **bounds})
        else:
            rest.trigger(dag)

    def _kill(
        self, airflow: Launched, chance: random.Random, dags: Sequence[str], way: str
    ) -> AtWork | None:
        """Kill a task, once it has done part of its work; None where all had ended before."""
        dag, after = chance.choice(dags), chance.uniform(0, 2)
        wanted = self._commits() + chance.randint(0, _COMMITS.get(dag, 6))
        begun = until(
            lambda: next(_at_work(airflow, dag), None) or _rests(airflow.rest, dag), _PATIENCE, 1
        )
        if not isinstance(begun, AtWork):
            return None
        while self._commits() < wanted and runs(begun.own):
            time.sleep(0.2)
        time.sleep(after)
        # It does not end while it is looked at.
        _send(begun.app, signal.SIGSTOP)
        there = (each for each in _at_work(airflow, dag) if each.own == begun.own)
        found = next(there, None)
        # What stands still as its group loses its parent is ended by the kernel itself.
        _send(begun.app, signal.SIGCONT)
        if found is None:
            return None
        _send(found.of(way), signal.SIGKILL)
        until(lambda: not any(map(runs, found.of(way))) or None, 240, every=0.01)
        # From here on the app cannot come to its own end: who looks after it has to end it.
        _send(found.jvm, signal.SIGSTOP)
        gone = (found.own, *found.app)
        ended = processes.wait_until(lambda: not any(map(runs, gone)), 240)
        assert ended, f"the {way} was killed, and something of it runs on: {found}"
        return found

    def _commits(self) -> int:
        return sum(1 for _ in Path(self._lake.root).glob("**/_delta_log/*.json"))


def _send(to: Iterable[Process], number: signal.Signals) -> None:
    for each in to:
        send(each, number)


def _at_work(airflow: Launched, dag: str) -> Iterator[AtWork]:
    """The tasks of a DAG whose Spark app runs: a JVM that has started its Python."""
    running = {str(each["id"]): each for each in airflow.rest.running(dag)}
    for own in airflow.home.left():
        of = running.get(command_of(own).removeprefix(_TITLE).strip())
        if of is None:
            continue
        try:
            started = psutil.Process(own.pid).children(recursive=True)
            worker = find(psutil.Process(own.pid).ppid())
        except psutil.NoSuchProcess:
            continue
        below = [found for each in started if (found := find(each.pid)) is not None]
        app = tuple(each for each in below if "spark" in command_of(each))
        if worker is not None and any(_PYTHON.match(command_of(each)) for each in app):
            run, task = str(of["dag_run_id"]), str(of["task_id"])
            yield AtWork(dag, run, task, int(str(of["try_number"])), own, worker, app)


def _backfill(rest: Rest, dag: str, since: str, last: str) -> None:
    """Backfill those intervals that no run was over; Airflow allows one backfill at a time."""

    def begun() -> int | None:
        try:
            return rest.backfill(dag, since, last, max_active_runs=2)
        except Refused as refused:
            # It takes note only now and then that the last one has ended.
            if refused.status != 409:
                raise
            return None

    until(begun, 240, every=5)


def _rests(rest: Rest, dag: str) -> bool | None:
    """Whether no run of a DAG is left to do."""
    return all(run["state"] in ("success", "failed") for run in rest.runs(dag)) or None


def _require_success(rest: Rest, dags: Sequence[str]) -> None:
    """Wait until all runs of DAGs have ended, and check that all have succeeded."""
    for dag in dags:
        for run in rest.runs(dag):
            rest.require(dag, str(run["dag_run_id"]), _PATIENCE)


def _require_tried_again(rest: Rest, at_work: AtWork) -> None:
    """Check that a task that was killed has succeeded by another try."""
    found = rest.task(at_work.dag, at_work.run, at_work.task)
    assert int(str(found["try_number"])) > at_work.attempt, (at_work, found)


def _kill_launcher(home: Home) -> None:
    """Kill the launcher of a round that was broken off; what it has left, the next one ends."""
    try:
        launcher = find(int((home.folder / "lock").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return
    if launcher is not None and str(home.folder) in command_of(launcher):
        processes.end(lambda: [launcher] if runs(launcher) else [])
