"""An Airflow of a user's own, started by `airflow standalone` in another virtual environment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.airflow_api import Rest, until

PATIENCE = 600.0
"""Seconds until Airflow is ready: its first start creates the database."""
_LOOPBACK = "127.0.0.1"


@contextmanager
def standalone(
    folder: Path, programs: Path, dags: Path, environment: Mapping[str, str]
) -> Iterator[Rest]:
    """Run `airflow standalone` in a home of its own; yields its API.

    Args:
        folder: The folder of its home and its log, `standalone.log`.
        programs: The folder of programs of its virtual environment.
        dags: The folder of its DAG files.
        environment: All other variables of its components.
    """
    home, port = folder / "airflow", _free_port()
    url = f"http://{_LOOPBACK}:{port}"
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__API__HOST": _LOOPBACK,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    log = folder / "standalone.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(programs / "airflow"), "standalone"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environment, **settings},
            start_new_session=True,
        )
    try:
        yield until(lambda: _ready(process, home, url, log), PATIENCE)
    finally:
        _stop(process)


def _ready(process: subprocess.Popen[bytes], home: Path, url: str, log: Path) -> Rest | None:
    """Its API, once it answers."""
    if process.poll() is not None:
        raise AssertionError(f"Airflow has ended:\n{log.read_text(errors='replace')[-6000:]}")
    passwords = home / "simple_auth_manager_passwords.json.generated"
    try:
        rest = Rest(url, str(json.loads(passwords.read_text())["admin"]))
        rest.call("GET", "/version")
    except (OSError, ValueError):
        return None
    return rest


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End all its processes, which share one session; a component may start another meanwhile."""
    for number, patience in ((signal.SIGINT, 60.0), (signal.SIGKILL, 30.0)):
        for pid in _session(process.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        try:
            until(
                lambda: (process.poll() is not None and not _session(process.pid)) or None, patience
            )
        except AssertionError:
            continue
        return
    raise AssertionError(f"processes of Airflow are left: {_session(process.pid)}")


def _session(leader: int) -> list[int]:
    """The processes of a session."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if _session_of(pid) == leader]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_LOOPBACK, 0))
        return int(listener.getsockname()[1])
