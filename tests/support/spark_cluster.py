"""A real standalone Spark cluster on loopback: a master and its workers, as small as possible.

It has the settings that the image of `docker/` generates: participants authenticate by a secret.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psutil import Process

from capstan.airflow.local import processes
from capstan.spark.project_home import project_home
from capstan.spark.setup.java import find_java, spark_home
from capstan.spark.setup.jvm import OPTIONS
from capstan.spark.setup.local_submit import pyspark_home
from tests.support.live_airflow import command_of
from tests.support.small_spark import SHRUNK

_PATIENCE = 120.0
_LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_BACKEND = "CoarseGrainedExecutorBackend"

_SETTINGS = {
    **{key: value for key, value in SHRUNK.items() if key != OPTIONS},
    "spark.driver.memory": "1g",
    "spark.executor.extraJavaOptions": _LEAN,
    "spark.executor.memory": "512m",
}
_DEFAULTS = project_home() / "docker" / "spark-defaults"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running master and its workers.

    Attributes:
        url: Master URL for jobs.
        folder: Folder of their logs, and of the working folders of executors.
        daemons: The processes, each the leader of a session: the master, then the workers.
    """

    url: str
    folder: Path
    daemons: Sequence[subprocess.Popen[bytes]]

    def executors(self) -> list[Process]:
        """The running executors."""
        started = [process for d in self.daemons for process in processes.session_of(d.pid)]
        return [process for process in started if _BACKEND in command_of(process)]

    def log(self, name: str = "master") -> str:
        """The log of the master or a worker."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def environment(self) -> dict[str, str]:
        """Environment of a driver on the cluster."""
        return _environment(self.folder)


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a master and one-core workers on free ports; all of them end with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_settings(folder)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        daemons.append(_start(folder, "master", ["--port", "0", "--webui-port", "0"]))
        url = _wait_for_log(folder, "master", r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            work = folder / f"work-{number}"
            small = ["--cores", "1", "--memory", "600m", "--work-dir", str(work)]
            name, ports = f"worker-{number}", ["--port", "0", "--webui-port", "0"]
            daemons.append(_start(folder, name, [*ports, *small, url]))
        for number in range(workers):
            _wait_for_log(folder, f"worker-{number}", r"(Successfully registered with master)")
        yield Cluster(url, folder, tuple(daemons))
    finally:
        for daemon in reversed(daemons):
            processes.end(lambda leader=daemon.pid: processes.session_of(leader))  # type: ignore[misc]
            daemon.wait(_PATIENCE)


def submit(
    at: Cluster, job: Path, arguments: Sequence[str], output: Path
) -> subprocess.Popen[bytes]:
    """Start `spark-submit` of a job on the cluster; what it prints goes to `output`."""
    from capstan.spark.submit_options import submission

    given = submission(at.url, short=True)
    command = [str(pyspark_home() / "bin" / "spark-submit"), "--master", at.url]
    command += ["--jars", given.jars]
    for key, value in given.conf.items():
        command += ["--conf", f"{key}={value}"]
    return _begun(
        [*command, str(job), *arguments], output, {**at.environment(), **given.environment}
    )


def run_cli(
    at: Cluster, arguments: Sequence[str], output: Path, **environment: str
) -> subprocess.Popen[bytes]:
    """Start the command line with a driver on the cluster."""
    code = "import sys; from capstan.cli import main; sys.exit(main())"
    return _begun(
        [sys.executable, "-c", code, *arguments],
        output,
        {
            **at.environment(),
            "CAPSTAN_MASTER": at.url,
            "CAPSTAN_DRIVER_MEMORY": "1g",
            **environment,
        },
    )


def _begun(
    command: Sequence[str], output: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with output.open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=output.parent,
            env=environment,
            start_new_session=True,
        )


def _start(folder: Path, name: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    # A Capstan installed on a machine of the cluster is not used: the driver's code is.
    other = folder / "other" / "capstan"
    other.mkdir(parents=True, exist_ok=True)
    (other / "__init__.py").write_text("raise ImportError('not the code of the driver')\n")
    # Pipelines of tests are installed nowhere.
    path = os.pathsep.join([str(other.parent), str(project_home())])
    kind = name.partition("-")[0].capitalize()
    program = [str(pyspark_home() / "bin" / "spark-class")]
    program.append(f"org.apache.spark.deploy.{kind.lower()}.{kind}")
    return _begun(
        [*program, "--host", "127.0.0.1", *arguments],
        folder / f"{name}.log",
        {**_environment(folder), "PYTHONPATH": path},
    )


def _write_settings(folder: Path) -> None:
    """Write `spark-defaults.conf` as a container does, with settings that keep it small."""
    (folder / "spark_secret").write_text(secrets.token_urlsafe(32), encoding="utf-8")
    given = {**os.environ, "CAPSTAN_SECRETS": str(folder)}
    done = subprocess.run([_DEFAULTS], env=given, capture_output=True, text=True, check=True)
    small = "".join(f"{key} {value}\n" for key, value in _SETTINGS.items())
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(done.stdout + small, encoding="utf-8")


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(spark_home(find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(pyspark_home()),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": f"{_LEAN} -Dspark.master.rest.enabled=false",
    }


def _wait_for_log(folder: Path, name: str, pattern: str) -> str:
    """Wait until a daemon's log matches a pattern; returns its first group."""
    path, end = folder / f"{name}.log", time.monotonic() + _PATIENCE
    while True:
        text = path.read_text(encoding="utf-8", errors="replace")
        match = re.search(pattern, text)
        if match is not None:
            return match.group(1)
        if time.monotonic() > end:
            raise AssertionError(f"the {name} did not log {pattern!r}:\n{text}")
        time.sleep(0.1)
