"""A real Airflow for the tests, started by the launcher with the project's own DAG files."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import deltalake
import pytest

from capstan.airflow.local import processes
from capstan.airflow.local.database import Postgres
from capstan.demo.flights import feed
from capstan.storage.lake import Lake
from tests.support import lake_contents
from tests.support.airflow_api import Rest, until
from tests.support.browser import browsing, require_browser
from tests.support.live_airflow import Launched, launch
from tests.support.postgres import find_programs, server
from tests.support.small_spark import SUBMITTED

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
CAPTURE, REPLAY, BACKFILL = (
    "capstan_capture__flights",
    "capstan_replay",
    "capstan_backfill__flights_by_day",
)
STREAM = "flights"
SINCE, UNTIL = "2013-01-01", "2013-01-04"
"""Three days, complete once the source is captured."""
DAYS = 9
"""Days of flights in the source; once they are captured, the last one is not complete."""


SLEEPER = """
from airflow.sdk import dag, task


@dag(schedule=None, is_paused_upon_creation=False)
def sleeper():
    @task
    def sleep():
        # In its own session, like a program that nothing would end.
        import subprocess
        subprocess.run(["sleep", "987"], check=True, start_new_session=True)

    sleep()


sleeper()
"""
"""A DAG besides the project's own, whose task lasts longer than any test."""

HASTY = """
import datetime

from airflow.sdk import DAG, Param

from capstan.airflow.settings import read_settings
from capstan.airflow.operators.submit import CapstanSubmitOperator

with DAG(
    "hasty",
    schedule=None,
    is_paused_upon_creation=False,
    params={"until": Param(type="string")},
    render_template_as_native_obj=True,
):
    CapstanSubmitOperator(
        task_id="replay",
        app="replay",
        settings=read_settings(__file__),
        request={"stream": "flights", "into": "hasty", "until": "{{ params.until }}"},
        wait=datetime.timedelta(seconds=45),
    )
"""
"""A user's DAG that requests times from the job without waiting for them."""

DETACHED = """
import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from capstan.airflow import PlanOperator, ResultOperator

with DAG("detached", schedule=None, is_paused_upon_creation=False):
    plan = PlanOperator(
        task_id="plan", stream="flights", target="detached", until="2013-01-03T00:00:00Z"
    )
    program = (
        "until [ -e $CAPSTAN_LAKE/go ]; do sleep 0.1; done; exec python -m capstan.jobs replay "
        f"--lake $CAPSTAN_LAKE --attempt {plan.attempt}"
    )
    job = BashOperator(
        task_id="job",
        bash_command=f"setsid sh -c '{program}' > $CAPSTAN_LAKE/job.log 2>&1 < /dev/null &",
        cwd="/",
    )
    result = ResultOperator(
        task_id="result",
        attempt=plan.attempt,
        deferrable=True,
        wait=datetime.timedelta(seconds=2),
    )
    plan >> job >> result
"""
"""A user's DAG that starts a job and does not wait for it; the job begins once a file is there."""

HASTE = """
import datetime


def task_policy(task):
    if task.retry_delay > datetime.timedelta(seconds=10):
        task.retry_delay = datetime.timedelta(seconds=10)
"""
"""A policy that an administrator of Airflow may set for all tasks: short delays between tries."""

_ENVIRONMENT = {
    **SUBMITTED,
    "CAPSTAN_CONFIG": str(ROOT / "dags" / "streams.yaml"),
    "CAPSTAN_DRIVER_MEMORY": "1g",
    # Unchanged files are not parsed all the time, which would take an eighth of a core.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
}


@dataclass
class World:
    """A real Airflow, and the lake that its DAGs work on.

    Attributes:
        folder: Folder of its home and its output.
        lake: The lake.
        launched: The running launcher.
        database: URL of an existing PostgreSQL; None for the launcher's own.
    """

    folder: Path
    lake: Lake
    launched: Launched
    database: str | None = None

    def launch_again(self, output: str) -> None:
        """Start another launcher in the home of one that was killed."""
        self.launched = _launch(self.folder, self.lake, output, self.database)

    @property
    def rest(self) -> Rest:
        return self.launched.rest

    def capture(self) -> None:
        """Let the scheduler capture the source, as soon as it may, and wait until it has."""
        self.rest.wait_for_dag(CAPTURE)
        self.rest.unpause(CAPTURE)
        run = until(lambda: next(iter(self.rest.runs(CAPTURE)), None), 240)
        assert run["run_type"] == "scheduled"
        self.rest.require(CAPTURE, str(run["dag_run_id"]))
        self.rest.wait_for_dag(REPLAY)

    def capture_more(self, days: int) -> None:
        """Add a number of days to the source, and capture them."""
        source = Path(self.lake.root) / "sources" / "flights"
        feed(source, days=range(len(list(source.glob("*.parquet"))) + days))
        self.rest.run(CAPTURE)

    def replay(self, **asked: object) -> dict[str, object]:
        """Replay by `capstan_replay`, and wait until it has succeeded.

        Its certificate, and as `dag_run` the name of the run in Airflow.
        """
        return self.certificate(self.rest.run(REPLAY, {"stream": STREAM, **asked}))

    def certificate(self, run: str) -> dict[str, object]:
        """The certificate of a run of `capstan_replay`; `dag_run` is its name in Airflow."""
        certificate = self.rest.xcom(REPLAY, run, "replay")
        assert isinstance(certificate, dict)
        return {**certificate, "dag_run": run}

    def waiting(self, run: str) -> dict[str, object]:
        """Wait until a run of `capstan_replay` waits for approval; returns its replay's result."""

        def asked() -> bool | None:
            state = self.rest.task(REPLAY, run, "approve")["state"]
            assert state not in ("failed", "success", "skipped", "upstream_failed")
            return True if state in ("awaiting_input", "deferred") else None

        until(asked, 900)
        # A task that continues before the scheduler has noted its pause is taken for a lost one,
        # and asks again; no person decides that fast.
        until(lambda: self._noted(run, "approve") or None, 60)
        reported = self.rest.xcom(REPLAY, run, "replay")
        assert isinstance(reported, dict)
        return reported

    def _noted(self, run: str, task: str) -> bool:
        """Whether the scheduler knows that the process of a task has ended."""
        log = self.launched.home.logs / "scheduler.log"
        printed = log.read_text(encoding="utf-8", errors="replace")
        noted = [line for line in printed.splitlines() if "Received executor event" in line]
        return any(f"task_id='{task}', run_id='{run}'" in line for line in noted)

    def approve(self, run: str) -> None:
        """Approve over REST a run of `capstan_replay` that waits for a person."""
        self.rest.call(
            "PATCH",
            f"/dags/{REPLAY}/dagRuns/{quote(run)}/taskInstances/approve/-1/hitlDetails",
            {"chosen_options": ["Approve"], "params_input": {"reason": "as agreed"}},
        )

    def last_line(self, dag: str, run: str, task: str, attempt: int | None = None) -> str:
        """The last line of a failed task's log that Airflow's page shows as one.

        Airflow stores a task's state before it calls the callbacks that log the error, so the line
        may follow the state.
        """

        def logged() -> str | None:
            printed = self.rest.log(dag, run, task, attempt).strip().splitlines()
            shown = [line for line in printed if line.strip() and not line.startswith("::")]
            # What to do follows on a line of its own.
            if shown and shown[-1].startswith("What to do: "):
                shown.pop()
            return shown[-1] if shown and shown[-1].startswith("CAP-") else None

        return until(logged, 60)

    def rows(self, table: str) -> list[str]:
        return lake_contents.rows(self.lake.table(table))

    def versions(self) -> dict[str, int]:
        """The version of every Delta table of the lake."""
        root = Path(self.lake.root)
        places = [log.parent for log in root.rglob("_delta_log")]
        return {
            str(place.relative_to(root)): deltalake.DeltaTable(place).version() for place in places
        }


def _launch(folder: Path, lake: Lake, output: str, database: str | None) -> Launched:
    return launch(
        folder,
        arguments=[
            *("--lake", lake.root, "--dags", str(folder / "dags")),
            *(("--database", database) if database else ()),
        ],
        environment=_ENVIRONMENT,
        output=output,
    )


@contextmanager
def _world(folder: Path, database: str | None) -> Iterator[World]:
    """See `world`; with an existing PostgreSQL if there is one, else the launcher's own."""
    settings = folder / "home" / "config"
    settings.mkdir(parents=True)
    (settings / "airflow_local_settings.py").write_text(HASTE, encoding="utf-8")
    shutil.copytree(ROOT / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in {"sleeper": SLEEPER, "hasty": HASTY, "detached": DETACHED}.items():
        (folder / "dags" / f"{name}.py").write_text(text, encoding="utf-8")
    lake = Lake.at(folder / "lake")
    feed(folder / "lake" / "sources" / "flights", days=range(DAYS))
    made = World(folder, lake, _launch(folder, lake, "launcher.log", database), database)
    try:
        yield made
        assert made.launched.stop(signal.SIGINT) < 30
        require_nothing_left(made.launched)
    finally:
        processes.end(made.launched.home.left)
        if made.launched.process.poll() is None:
            made.launched.kill()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An Airflow over a lake with a source and nothing on tape.

    It is stopped as by Ctrl-C while a Spark job runs, and must leave no process.
    """
    # An empty database on an existing server, for all these tests.
    database = os.environ.get("CAPSTAN_TEST_DATABASE")
    with _world(tmp_path_factory.mktemp("airflow").resolve(), database) as made:
        yield made
        begin_job(made)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """URL of an empty database on a server from the system's packages."""
    programs = find_programs()
    if programs is None:
        message = "there is no PostgreSQL of the system's: run tests/install-postgres"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with server(programs) as url:
        yield url


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, database: str) -> Iterator[World]:
    """An Airflow over that database that sends OpenLineage events to `events.jsonl` in its folder.

    Other Airflows send none, because that makes each task slower.
    """
    folder = tmp_path_factory.mktemp("told").resolve()
    place = {"type": "file", "log_file_path": str(folder / "events.jsonl"), "append": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(place))
        patch.setenv("AIRFLOW__LOGGING__NAMESPACE_LEVELS", "airflow.providers.openlineage=WARNING")
        patch.setenv("OPENLINEAGE_CLIENT_LOGGING", "WARNING")
        with _world(folder, database) as made:
            yield made


def begin_job(world: World) -> None:
    """Start a Spark job, and do not wait for its end."""
    world.rest.wait_for_dag(CAPTURE)
    world.rest.unpause(CAPTURE)
    world.rest.trigger(CAPTURE)
    until(lambda: world.launched.spark() or None, 240)


def require_nothing_left(launched: Launched) -> None:
    """Check that a stopped launcher has left no process, not even of jobs that were running."""
    assert launched.printed().endswith("stopping\nstopped: nothing is left running\n")
    assert launched.home.left() == []
    assert list(launched.home.temporary.iterdir()) == []
    assert not Postgres(launched.home.folder / "postgres", Path()).socket.exists()


@pytest.fixture(scope="session")
def captured(world: World) -> World:
    """The same, once the scheduler has captured its source."""
    world.capture()
    return world


@dataclass(frozen=True)
class Cut:
    """State while a replay whose job was killed waited for its next try.

    Attributes:
        run: The run in Airflow.
        last_line: The last line of the log of its first try.
        rows: What readers saw of its target.
    """

    run: str
    last_line: str
    rows: list[str]


@pytest.fixture(scope="session")
def cut(captured: World) -> Cut:
    """A replay by day over three days into the table `whole`; its job is killed halfway."""
    requested = {"transform": "flights_by_day", "since": SINCE, "until": UNTIL, "into": "whole"}
    run = captured.rest.trigger(REPLAY, {"stream": STREAM, **requested})

    def staged() -> bool:
        return any(Path(captured.lake.table("whole")).rglob("*.parquet"))

    def waits() -> bool | None:
        return captured.rest.task(REPLAY, run, "replay")["state"] == "up_for_retry" or None

    with captured.launched.frozen(staged) as jobs:
        for job in jobs:
            processes.send(job, signal.SIGKILL)
        until(waits, 240, every=0.1)
        rows = captured.rows("whole")
    return Cut(run, captured.last_line(REPLAY, run, "replay", 1), rows)


@pytest.fixture(scope="session")
def whole(captured: World, cut: Cut) -> dict[str, object]:
    """The certificate of that replay, once Airflow has retried it."""
    captured.rest.require(REPLAY, cut.run)
    return captured.certificate(cut.run)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing(require_browser()) as actual:
        yield actual


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Folder for screenshots of pages: `CAPSTAN_SCREENSHOTS`, or else a temporary one."""
    folder = Path(os.environ.get("CAPSTAN_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
