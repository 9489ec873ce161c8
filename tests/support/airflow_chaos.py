"""Airflow in the chaos test: it schedules work on a lake, and tasks are killed while jobs run.

Interrupted work is not resumed by hand. A killed task must be retried by the worker that supervised
it, or by the scheduler once its heartbeat is overdue. Before that, nothing of its job may be left.
All rounds share one Airflow: work left by an interrupted round continues in the next one.
"""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import yaml
from psutil import Process

from capstan.airflow.local import processes
from capstan.airflow.local.home import Home
from capstan.airflow.local.processes import find, runs, send
from capstan.spark.project_home import project_home
from capstan.storage.lake import Lake, is_stored, is_table, list_files
from tests.support import small_stream
from tests.support.airflow_api import Refused, Rest, until
from tests.support.live_airflow import Launched, command_of, is_of_job, launch
from tests.support.sample_streams import HOUR, START

WAYS = ("task", "worker", "job")
"""Parts of a running task to kill, each once per round: the task's process, the LocalExecutor
process that supervises it, its Spark job."""

_PATIENCE = 1800.0
_INTERVAL = 6 * HOUR
_ENVIRONMENT = {
    "CAPSTAN_DRIVER_MEMORY": "1g",
    # A task without its worker sends no heartbeat. By default the scheduler waits for 5 minutes.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    # On a busy machine, a slow answer must not use up a retry: the default is 5 seconds.
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    # A task that plans a replay imports its pipeline, which is one of `tests`.
    "PYTHONPATH": str(project_home()),
}
_CAPTURE = f"capstan_capture__{small_stream.NAME}"
_FILL, _COPY, _MAINTAIN = "capstan_backfill__filled", "capstan_replay", "capstan_maintain"
# Number of commits per task; by default those of a replay.
_COMMITS = {_CAPTURE: 4, _MAINTAIN: 1}
_TITLE = "airflow worker -- "
# The process that submits a job contains its file name too, but not as its own name.
_PYTHON = re.compile(r"\S+ \S+/spark_apps/")


@dataclass(frozen=True, slots=True)
class AtWork:
    """A task that waits for its Spark job.

    Attributes:
        dag, run, task, attempt: Identity of the task and its attempt.
        process: Its process.
        worker: The LocalExecutor process that supervises it.
        job: Processes of its job: the JVM and its Python.
    """

    dag: str
    run: str
    task: str
    attempt: int
    process: Process
    worker: Process
    job: tuple[Process, ...]

    def parts(self, way: str) -> tuple[Process, ...]:
        """The processes to kill, for one of `WAYS`."""
        return {"task": (self.process,), "worker": (self.worker,), "job": self.job}[way]

    @property
    def jvm(self) -> list[Process]:
        """The JVM of its job, which holds everything else of it."""
        return [process for process in self.job if "deploy.SparkSubmit" in command_of(process)]


class Scheduled:
    """An Airflow in a folder, and the lake of its DAGs.

    Args:
        folder: Folder of Airflow, with the declarations of its DAGs.
        lake: The lake.
        source: Folder of the lake's source.
        followed: Requests of following replays; each is declared under the name of its target.
    """

    def __init__(
        self, folder: Path, lake: str, source: Path, followed: Sequence[Mapping[str, object]]
    ) -> None:
        self._folder = folder
        self._lake = Lake.at(lake)
        self._source = source
        self._followed = {str(request["into"]): dict(request) for request in followed}
        self._dags = [
            *(_CAPTURE, _FILL, _COPY, _MAINTAIN),
            *(f"capstan_follow__{name}" for name in self._followed),
        ]

    def kill_tasks(self, log: Path, chance: random.Random) -> int:
        """Let Airflow do all its work once, two DAGs at a time, and kill some of its tasks.

        Args:
            log: Folder for the launcher's output, and the list of kills; created here.
            chance: Selects the work, the moments, and the processes to kill.

        Returns:
            The number of kills: one for each of `WAYS`, if there was work to kill.

        Raises:
            AssertionError: A killed task left something, or was not retried; or a run has not
                succeeded in the end.
        """
        log.mkdir(parents=True)
        left = chance.sample(WAYS, k=len(WAYS))
        killed: dict[str, AtWork] = {}
        with self._airflow(log) as airflow:
            self._resume(airflow.rest)
            for dags in self._scenes(chance):
                for dag in dags:
                    self._begin(airflow.rest, dag)
                at_work = self._kill(airflow, chance, dags, left[0]) if left else None
                if at_work is not None:
                    killed[left.pop(0)] = at_work
                    (log / "killed.json").write_text(json.dumps(killed, default=str))
                _require_success(airflow.rest, dags)
                for task in killed.values():
                    _require_tried_again(airflow.rest, task)
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
            environment={**_ENVIRONMENT, "CAPSTAN_CONFIG": str(self._declarations)},
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
        """Write the declarations of the small stream to a file, with those of the DAGs."""
        declared = yaml.safe_load(small_stream.declaration_text(self._source))
        hourly = small_stream.declarations(self._source).transforms["hourly"]
        declared["transforms"] = {
            hourly.name: {"sql": hourly.sql, "time": hourly.time, "grain": "1 hour",
                          "worker": hourly.worker}
        }  # fmt: skip
        # Bounds in the past: it is backfilled, and starts nothing by itself.
        bounds = {"since": START.isoformat(), "until": (START + timedelta(days=360)).isoformat()}
        declared["replays"]["filled"] |= {**bounds, "schedule": "0 */6 * * *"}
        for name, request in self._followed.items():
            fields = {key: value for key, value in request.items() if key != "into"}
            declared["replays"][name] = {"stream": small_stream.NAME, "target": name, **fields}
        self._declarations.write_text(yaml.safe_dump(declared), encoding="utf-8")

    def _resume(self, rest: Rest) -> None:
        """Wait until the work left by an interrupted round has ended by itself."""
        for dag in self._dags:
            rest.wait_for_dag(dag)
        _require_success(rest, self._dags)

    def _scenes(self, chance: random.Random) -> Iterator[Sequence[str]]:
        """DAGs to start together: first a capture, then DAGs that play complete times."""
        has_tape = is_table(self._lake.stream(small_stream.NAME).events)
        early = chance.choice([dag for dag in self._dags if dag not in (_CAPTURE, _FILL, _COPY)])
        later = [dag for dag in self._dags if dag != _CAPTURE and (dag != early or not has_tape)]
        chance.shuffle(later)
        yield (_CAPTURE, early) if has_tape else (_CAPTURE,)
        for first in range(0, len(later), 2):
            yield later[first : first + 2]

    def _begin(self, rest: Rest, dag: str) -> None:
        """Start a DAG in Airflow: over a range, up to the newest complete interval."""
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
        """Kill a task after part of its work; None if all tasks had ended before."""
        dag, after = chance.choice(dags), chance.uniform(0, 2)
        target = self._commits() + chance.randint(0, _COMMITS.get(dag, 6))
        begun = until(
            lambda: next(_at_work(airflow, dag), None) or _rests(airflow.rest, dag), _PATIENCE, 1
        )
        if not isinstance(begun, AtWork):
            return None
        while self._commits() < target and runs(begun.process):
            time.sleep(0.2)
        time.sleep(after)
        # Stopped, so that it does not end during the look-up.
        _send(begun.job, signal.SIGSTOP)
        candidates = (task for task in _at_work(airflow, dag) if task.process == begun.process)
        victim = next(candidates, None)
        # The kernel itself would end a stopped process group whose parent dies.
        _send(begun.job, signal.SIGCONT)
        if victim is None:
            return None
        _send(victim.parts(way), signal.SIGKILL)
        until(lambda: not any(map(runs, victim.parts(way))) or None, 240, every=0.01)
        # From now on the job cannot end by itself: its supervisor has to end it.
        _send(victim.jvm, signal.SIGSTOP)
        gone = (victim.process, *victim.job)
        ended = processes.wait_until(lambda: not any(map(runs, gone)), 240)
        assert ended, f"the {way} was killed, but part of it still runs: {victim}"
        return victim

    def _commits(self) -> int:
        if is_stored(self._lake.root):
            files = [info.path for info in list_files(self._lake.root)]
        else:
            # It passes over folders that vanish meanwhile.
            files = list(map(str, Path(self._lake.root).glob("**/_delta_log/*.json")))
        return sum(file.endswith(".json") and "/_delta_log/" in file for file in files)


def _send(to: Iterable[Process], number: signal.Signals) -> None:
    for process in to:
        send(process, number)


def _at_work(airflow: Launched, dag: str) -> Iterator[AtWork]:
    """The tasks of a DAG whose Spark job runs: a JVM that has started its Python."""
    running = {str(row["id"]): row for row in airflow.rest.running(dag)}
    for process in airflow.home.left():
        row = running.get(command_of(process).removeprefix(_TITLE).strip())
        if row is None:
            continue
        try:
            started = psutil.Process(process.pid).children(recursive=True)
            worker = find(psutil.Process(process.pid).ppid())
        except psutil.NoSuchProcess:
            continue
        children = [child for c in started if (child := find(c.pid)) is not None]
        job = tuple(child for child in children if is_of_job(child))
        if worker is not None and any(_PYTHON.match(command_of(child)) for child in job):
            run, task = str(row["dag_run_id"]), str(row["task_id"])
            yield AtWork(dag, run, task, int(str(row["try_number"])), process, worker, job)


def _backfill(rest: Rest, dag: str, since: str, last: str) -> None:
    """Backfill the intervals without a run; Airflow allows one backfill at a time."""

    def begun() -> int | None:
        try:
            return rest.backfill(dag, since, last, max_active_runs=2)
        except Refused as refused:
            # It notices the end of the previous backfill only after a while.
            if refused.status != 409:
                raise
            return None

    until(begun, 240, every=5)


def _rests(rest: Rest, dag: str) -> bool | None:
    """Whether all runs of a DAG have ended."""
    return all(run["state"] in ("success", "failed") for run in rest.runs(dag)) or None


def _require_success(rest: Rest, dags: Sequence[str]) -> None:
    """Wait until all runs of DAGs have ended, and check that all have succeeded."""
    for dag in dags:
        for run in rest.runs(dag):
            rest.require(dag, str(run["dag_run_id"]), _PATIENCE)


def _require_tried_again(rest: Rest, at_work: AtWork) -> None:
    """Check that a killed task has succeeded in a later attempt."""
    actual = rest.task(at_work.dag, at_work.run, at_work.task)
    assert int(str(actual["try_number"])) > at_work.attempt, (at_work, actual)


def _kill_launcher(home: Home) -> None:
    """Kill the launcher of an interrupted round; the next launcher ends its processes."""
    try:
        launcher = find(int((home.folder / "lock").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return
    if launcher is not None and str(home.folder) in command_of(launcher):
        processes.end(lambda: [launcher] if runs(launcher) else [])
