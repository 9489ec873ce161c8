"""What a task gives the program that it starts: folder of the try, Spark's master, variables."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import psutil
from airflow.sdk import Connection, Context

from capstan.airflow.connections import read_connection
from capstan.core.json_object import Json
from capstan.errors import InvalidRequestError

_MASTER = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|yarn|(spark|k8s)://.+")


@dataclass(frozen=True, slots=True)
class TryFolder:
    """The folder of one try of a task, on the machine that runs it."""

    path: Path

    @property
    def request(self) -> Path:
        """The request, as JSON."""
        return self.path / "request.json"

    @property
    def result(self) -> Path:
        """The job's result, as JSON, written atomically."""
        return self.path / "result.json"

    def prepare(self, request: Json) -> None:
        """Create the folder anew, with the request in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        self.request.write_text(json.dumps(request), encoding="utf-8")

    def read_result(self) -> dict[str, object] | None:
        """The job's result; None if it left none."""
        try:
            result = json.loads(self.result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return result if isinstance(result, dict) else None

    def remove(self) -> None:
        """Delete the folder, and parent folders that are empty."""
        shutil.rmtree(self.path, ignore_errors=True)
        for parent in list(self.path.parents)[:3]:
            try:
                parent.rmdir()
            except OSError:
                return


def try_folder(work: Path, context: Context) -> TryFolder:
    """The folder of the current try, by DAG, run, task and try number."""
    ti = context["ti"]
    mapped = ti.map_index is not None and ti.map_index >= 0
    task = f"{ti.task_id}.{ti.map_index}" if mapped else ti.task_id
    parts = (ti.dag_id, ti.run_id, task, str(ti.try_number))
    return TryFolder(work.joinpath("tries", *(quote(part, safe=" :+") for part in parts)))


def spark_master(name: str, deploy_mode: str | None = None) -> tuple[str, bool]:
    """The Spark master of a connection, and whether drivers run on its cluster.

    Args:
        name: The connection.
        deploy_mode: The deploy mode, if not that of the connection.
    """
    # It is checked here because Airflow's own hook falls back to YARN.
    connection = read_connection(name, partial(_error, name))
    master = _master(connection)
    if not _MASTER.fullmatch(master):
        raise _error(name, f"names no Spark master: {master!r}")
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise _error(name, "names yarn, but neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set")
    if master.startswith("k8s://") and not _has_kubernetes():
        package = "apache-airflow-providers-cncf-kubernetes"
        raise _error(name, f"names Kubernetes, but the package {package} is not installed")
    mode = deploy_mode or connection.extra_dejson.get("deploy-mode") or "client"
    if mode not in ("client", "cluster"):
        raise _error(name, f"has the deploy mode {mode!r}, which is neither client nor cluster")
    if mode == "cluster" and not master.startswith(("yarn", "k8s://")):
        raise _error(name, "has the deploy mode cluster, which Python programs have on YARN and "
                     "Kubernetes alone")  # fmt: skip
    return master, mode == "cluster"


def _has_kubernetes() -> bool:
    try:
        return importlib.util.find_spec("airflow.providers.cncf.kubernetes") is not None
    except ModuleNotFoundError:
        return False


def _master(connection: Connection) -> str:
    """The master, composed like the provider's hook does."""
    host = connection.host or ""
    if connection.conn_type == "spark" and host and ("://" in host or not connection.port):
        master = host
    else:
        master = f"{connection.conn_type}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def _error(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-CONNECTION",
        f"connection {name} {problem}",
        f"""set AIRFLOW_CONN_{name.upper()}='{{"conn_type": "spark", "host": "local[*]"}}', or """
        "a host such as spark://master:7077, in JSON; or add it in the UI under Admin, Connections",
        connection=name,
    )


@contextmanager
def inherited(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables inside the `with` block for a program that starts there; None removes one."""
    # Airflow's hook for Spark gives a program the environment of its own process, and shows all
    # that it is given itself. So the values are set in that process, which runs one task and
    # nothing else. No argument, request, rendered field or XCom has a value.
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def owners() -> Collection[int]:
    """The processes that a submitted job must not outlive: this one and its supervisor."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import CommsDecoder

    # Under `dag.test`, the parent process has nothing to do with the task.
    supervised = isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), CommsDecoder)
    return [os.getpid(), os.getppid()] if supervised else [os.getpid()]


def kill_tree(process: int) -> None:
    """Kill a process and its descendants."""
    try:
        root = psutil.Process(process)
        tree = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for member in tree:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
