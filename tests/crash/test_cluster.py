"""The main job over a real Spark standalone cluster, of which an executor dies in the middle."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capstan.airflow.local.processes import send
from capstan.core.config import load_config
from capstan.storage.lake import Lake
from capstan.storage.ledger.runs import read_histories
from tests.support import lake_contents, small_stream
from tests.support.airflow_api import until
from tests.support.spark_cluster import Cluster, cluster, run_cli, submit

if TYPE_CHECKING:
    from collections.abc import Iterator

JOBS = Path(__file__).parents[2] / "spark_apps"
PATIENCE = 1200.0

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster") / "cluster") as actual:
        yield actual


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A file of the declarations that other drivers of these tests make in Python."""
    path = tmp_path_factory.mktemp("declared") / "streams.yaml"
    path.write_text(small_stream.declaration_text(source), encoding="utf-8")
    actual, meant = load_config(path, lake="/lake"), small_stream.declarations(source)
    assert actual.streams == meant.streams
    assert actual.pipelines["places"] == meant.pipelines["places"]
    return path


@pytest.fixture(scope="module")
def lake(at: Cluster, streams: Path) -> Lake:
    """A lake whose stream a job has captured that was submitted to the cluster."""
    actual, log = Lake.at(at.folder.parent / "lake"), at.folder.parent / "capture.log"
    where = ["--lake", actual.root, "--config", str(streams)]
    requested = ["--request", json.dumps({"stream": small_stream.NAME})]
    process = submit(at, JOBS / "capture.py", [*requested, *where], log)
    assert process.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")[-5000:]
    return actual


def test_what_a_cluster_captures_is_what_one_machine_captures(
    lake: Lake, undisturbed: dict[str, list[str]]
) -> None:
    assert lake_contents.tape(lake) == undisturbed


def test_a_killed_executor_does_not_change_a_replay(
    at: Cluster, lake: Lake, streams: Path, whole: dict[str, dict[str, object]]
) -> None:
    """By the command line, through a pipeline: its operators run in Python on the executors."""
    requested = small_stream.REQUESTS["piped"]
    options = [part for key, value in requested.items() for part in (f"--{key}", str(value))]
    log = at.folder.parent / "replay.log"
    where = ["--lake", lake.root, "--config", str(streams)]
    process = run_cli(at, [*where, "replay", small_stream.NAME, *options], log, CAPSTAN_LOG="json")
    try:
        _kill_one(at, lake)
        assert process.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")[-5000:]
    finally:
        process.kill()
    [run] = read_histories(lake)
    assert lake_contents.table(lake, "piped") == whole["piped"]
    lake_contents.require_published_once(lake, run)
    certificate = read_histories(lake)[run].certificate
    assert certificate.audit["passed"]
    assert certificate.attempt == 1
    _require_logged(log, run)
    # The master gave the job another executor for the one that was killed.
    started = re.findall(r"Launching executor (app-\S+)/(\d+)", at.log())
    assert max(int(number) for job, number in started if job == started[-1][0]) >= 2


def _kill_one(at: Cluster, lake: Lake) -> None:
    """Kill an executor while tasks write what is staged: both are held, one does not come back."""

    def staging() -> bool | None:
        return True if any(Path(lake.table("piped")).rglob("*.parquet")) else None

    until(staging, PATIENCE, every=0.02)
    executors = at.executors()
    for executor in executors:
        send(executor, signal.SIGSTOP)
    assert len(executors) == 2
    assert not Path(lake.table("piped")).exists() or lake_contents.rows(lake.table("piped")) == []
    send(executors[0], signal.SIGKILL)
    send(executors[1], signal.SIGCONT)


def _require_logged(log: Path, run: str) -> None:
    """Check that the log has the points of the run, and Spark's complaint as one of it."""
    lines = log.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    about = {"run": run, "attempt": 1, "stream": small_stream.NAME}
    for event in ("replay.claim", "replay.publish", "replay.certificate"):
        [row] = [row for row in rows if row["event"] == event]
        assert {key: row[key] for key in about} == about
    lost = [row for row in rows if "Lost executor" in row["event"]]
    assert lost, lines
    assert {key: lost[0][key] for key in about} == about
    assert (lost[0]["level"], lost[0]["logger"].split(".")[-1]) == ("error", "TaskSchedulerImpl")
