"""An Airflow for these tests: a home in a temporary folder, a new SQLite database, no scheduler.

Airflow reads its configuration when it is imported, which is when tests are collected; so its file
is written here, and the environment is as before when the tests of other folders run.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.small_spark import SUBMITTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "dags"
_HOME = Path(tempfile.mkdtemp(prefix="capstan-tests-airflow-"))
_CONFIG = f"""
[core]
dags_folder = {DAGS}
load_examples = False
unit_test_mode = False
[database]
sql_alchemy_conn = sqlite:///{_HOME}/airflow.db
load_default_connections = False
[logging]
base_log_folder = {_HOME}/logs
[api_auth]
jwt_secret = only-for-tests
"""
_OWN = {"AIRFLOW_HOME": str(_HOME), "AIRFLOW_CONFIG": str(_HOME / "airflow.cfg")}

atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
(_HOME / "airflow.cfg").write_text(_CONFIG, encoding="utf-8")


def _use_own(patch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AIRFLOW", "CAPSTAN_")):
            patch.delenv(name)
    for name, value in _OWN.items():
        patch.setenv(name, value)


with pytest.MonkeyPatch.context() as _patch:
    _use_own(_patch)
    import airflow.configuration
    import airflow.sdk.configuration  # noqa: F401

STREAMS = """
streams:
  little:
    description: Rows of three places
    source:
      format: parquet
      path: "{lake}/source"
      options: {maxFilesPerTrigger: 1}
      schema: "id BIGINT, place STRING, at TIMESTAMP, amount INT, note STRING"
    workers: {by: column, column: place}
    time: {domain: event, column: at, every: 1 hour, lateness: 2 hours}
    schedule: "@hourly"
transforms:
  by_day:
    description: Sums by day
    sql: >-
      SELECT _worker, date_trunc('DAY', _time.event) AS day, count(*) AS seen
      FROM records GROUP BY _worker, date_trunc('DAY', _time.event)
    time: day
    grain: 1 day
    worker: _worker
targets:
  by_day: {time: day}
pipelines:
  places: tests.support.pipeline_samples:places
replays:
  by_day:
    stream: little
    transform: by_day
    target: by_day
    since: 2024-05-01
    until: 2024-05-06
    schedule: "@daily"
"""
"""Declarations of a stream whose source `tests.support.sample_streams` writes."""


@pytest.fixture(scope="package", autouse=True)
def _airflow() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        _use_own(patch)
        from airflow.utils.db import initdb

        initdb()
        # Airflow makes loggers log everything; this one still logs after the output is closed.
        logging.getLogger("py4j").setLevel(logging.WARNING)
        yield


@dataclass(frozen=True, slots=True)
class Place:
    """A lake, its declarations, and the DAG files that use them."""

    root: Path

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def streams(self) -> Path:
        return self.root / "streams.yaml"

    def bag(self, dags: Path = DAGS) -> DagBag:
        """Parse the DAG files of a folder, or one of the project's."""
        from airflow.dag_processing.dagbag import DagBag

        folder = dags if dags.is_dir() else dags.parent
        return DagBag(dag_folder=dags, bundle_path=folder, bundle_name="dags-folder")

    def run(
        self, dag_id: str, conf: Mapping[str, object] | None = None, date: object = None
    ) -> DagRun:
        """Run a DAG to its end in this process."""
        from airflow.dag_processing import dagbag

        file = DAGS / "capstan_dags.py"
        more = {} if date is None else {"logical_date": date}
        with pytest.MonkeyPatch.context() as patch:
            # The run would parse all files beside that of its DAG again.
            patch.setattr(dagbag, "BundleDagBag", lambda **_: self.bag(file))
            dag = self.bag(file).dags[dag_id]
            return dag.test(run_conf=dict(conf) if conf else None, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="package")
def placed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str], AbstractContextManager[Place]]:
    """Makes a lake with declarations, which the DAG files use inside the `with` block."""

    @contextmanager
    def make(name: str, streams: str) -> Iterator[Place]:
        place = Place(tmp_path_factory.mktemp(name))
        place.lake.mkdir()
        place.streams.write_text(streams, encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            use(place, patch)
            yield place

    return make


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A lake for one test, with nothing on tape."""
    actual = Place(tmp_path)
    actual.lake.mkdir()
    actual.streams.write_text(STREAMS, encoding="utf-8")
    use(actual, monkeypatch)
    return actual


def use(place: Place, patch: pytest.MonkeyPatch) -> None:
    """Make the DAG files use `place`, and local Spark."""
    spark = {"conn_type": "spark", "host": "local[2]"}
    patch.setenv("CAPSTAN_LAKE", str(place.lake))
    patch.setenv("CAPSTAN_CONFIG", str(place.streams))
    patch.setenv("CAPSTAN_WORK", str(place.work))
    patch.setenv("CAPSTAN_DRIVER_MEMORY", "1g")
    patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    for name, value in SUBMITTED.items():
        patch.setenv(name, value)


@pytest.fixture(scope="package")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DAG]:
    """The DAGs of declarations that no test changes."""
    place = Place(tmp_path_factory.mktemp("declared"))
    place.streams.write_text(STREAMS, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        use(place, patch)
        bag = place.bag()
    assert bag.import_errors == {}
    return dict(bag.dags)


_FAKE = """#!{python}
import json, os, sys, time
from pathlib import Path
told = json.loads(Path({told!r}).read_text())
arguments = sys.argv[1:]
lake = arguments.index("--lake")
given, result = Path(arguments[lake - 1]), None
if "--attempt" in arguments:
    attempt = arguments[arguments.index("--attempt") + 1]
    given = Path(arguments[lake + 1], "jobs", attempt, "request.json")
else:
    result = Path(arguments[arguments.index("--result") + 1])
with Path({seen!r}).open("a") as file:
    file.write(json.dumps({{"arguments": arguments, "environment": dict(os.environ),
        "request": json.loads(given.read_text())}}))
    file.write("\\n")
answer = told.get("answers", [told])[-1]
seen = len(Path({seen!r}).read_text().splitlines())
if "answers" in told:
    answer = told["answers"][min(seen, len(told["answers"])) - 1]
if result and answer.get("result") is not None:
    text = answer["result"]
    result.write_text(text if isinstance(text, str) else json.dumps(text))
for line in answer.get("lines", []):
    print(line, flush=True)
if answer.get("child"):
    import subprocess
    subprocess.Popen(["sleep", "300"])
    # Written atomically: the file is read as soon as it exists.
    written = Path({seen!r}).with_name("starting")
    written.write_text(str(os.getpid()))
    written.rename(written.with_name("started"))
    time.sleep(300)
if answer.get("signal"):
    os.kill(os.getpid(), answer["signal"])
sys.exit(answer.get("exit", 0))
"""


@dataclass(frozen=True, slots=True)
class FakeSubmit:
    """A fake `spark-submit`: it starts nothing, gives prepared answers, and records its calls."""

    folder: Path

    def answers(self, *answers: Mapping[str, object]) -> None:
        """The answers to the next calls: `exit`, `result`, `lines`, `signal`, `child`."""
        reported = json.dumps({"answers": list(answers)})
        (self.folder / "told.json").write_text(reported, encoding="utf-8")

    @property
    def calls(self) -> list[dict[str, object]]:
        """The calls so far: `arguments`, `environment`, `request` and, apart, its `made_by`."""
        seen = self.folder / "seen"
        lines = seen.read_text(encoding="utf-8").splitlines() if seen.exists() else []
        calls = [json.loads(line) for line in lines]
        return [{**call, "made_by": call["request"].pop("made_by")} for call in calls]

    @property
    def started(self) -> Path:
        """The file with the process id of a call that has started a child."""
        return self.folder / "started"


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSubmit:
    """A fake `spark-submit`, first on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = FakeSubmit(folder)
    program = folder / "spark-submit"
    text = _FAKE.format(
        python=sys.executable, told=str(folder / "told.json"), seen=str(folder / "seen")
    )
    program.write_text(text, encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    fake.answers({"exit": 0, "result": {}})
    return fake


class Event:
    """An asset event: its `extra`; for an alias, the assets added to it, with their extras."""

    def __init__(self) -> None:
        self.extra: object = None
        self.added: list[tuple[Any, Any]] = []

    def add(self, asset: object, extra: object) -> None:
        self.added.append((asset, extra))


class Events(dict[object, Any]):
    """The asset events of a context, each created on first access."""

    def __missing__(self, key: object) -> Any:
        self[key] = Event()
        return self[key]


class Task:
    """A running task instance, as far as operators use it."""

    dag_id, run_id, task_id, map_index, try_number = "d", "r:1+0", "t", -1, 1

    def __init__(self) -> None:
        self.pushed: dict[str, object] = {}
        self.since: object = None
        self.states: dict[str, str] = {}

    def xcom_push(self, key: str, value: object) -> None:
        self.pushed[key] = value

    def get_task_states(self, *, run_ids: list[str], **_: object) -> dict[str, dict[str, str]]:
        return {run: dict(self.states) for run in run_ids}

    def get_first_reschedule_date(self, _: object) -> object:
        return self.since


@pytest.fixture
def context() -> Callable[[], dict[str, Any]]:
    """Makes the context of a running task, as far as operators use it."""
    return lambda: {"ti": Task(), "outlet_events": Events(), "task_state_store": None}


@pytest.fixture
def execute() -> Callable[[Any, Any], Any]:
    """Calls an operator as a task does, the only way that Airflow allows."""
    from airflow.sdk.bases.operator import ExecutorSafeguard

    def call(task: Any, where: Any) -> Any:
        token = ExecutorSafeguard.tracker.set(task)
        try:
            return task.execute(where)
        finally:
            ExecutorSafeguard.tracker.reset(token)

    return call


@pytest.fixture(scope="package")
def taped(placed: Callable[[str, str], AbstractContextManager[Place]]) -> Iterator[Place]:
    """A lake with a tape like that of `captured`, with two commits, written without a JVM."""
    from capstan.storage.lake import Lake
    from tests.support import recorded_tapes
    from tests.support.jvmless_lake import go_on, lay_tape
    from tests.support.sample_streams import START

    begin, hour = int(START.timestamp()) * 10**6, 3_600_000_000
    times = [(begin + n * 3 * hour // 2,) for n in range(48)]
    with placed("taped", STREAMS) as place:
        lake = Lake.at(place.lake)
        lay_tape(lake, "little", "abc", times[:24], (begin + 34 * hour,))
        go_on(lake, "little", times[24:], (begin + 69 * hour,))
        paths = lake.stream("little")
        for path, schema in (
            (paths.records, recorded_tapes._RECORDS),
            (paths.late, recorded_tapes._LATE),
        ):
            recorded_tapes.write(path, schema.empty_table())
        yield place


@pytest.fixture(scope="package")
def captured(placed: Callable[[str, str], AbstractContextManager[Place]]) -> Iterator[Place]:
    """A lake with a tape of three days, one row per half hour, captured by the DAG."""
    from tests.support.sample_streams import lay_in, rows

    with placed("captured", STREAMS) as place:
        lay_in(place.lake / "source", rows(range(144), step=timedelta(minutes=30)), 2)
        assert place.run("capstan_capture__little").state == "success"
        yield place
