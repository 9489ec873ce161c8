"""Settings of a local Airflow: its port, and its components' environment.

No secret is in the environment: Spark jobs inherit it, and need none. Airflow generates its keys
into `airflow.cfg`, and reads the URL of its database from a file.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capstan.airflow.local.home import MARK, USER, Home
from capstan.errors import InvalidRequestError
from capstan.spark.setup.java import find_java, spark_home

LOOPBACK = "127.0.0.1"
CONNECTION = "AIRFLOW_CONN_SPARK_DEFAULT"
POOL = "CAPSTAN_POOL"
_TASKS = 4
_DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"


@dataclass(frozen=True, slots=True)
class Setup:
    """One Airflow: its home, its port on loopback, its DAG files, its lake and its PostgreSQL.

    Port 0 is a free one, until it is launched; without a database, one is started.
    """

    home: Home
    port: int
    dags: Path
    lake: str
    database: str | None = None

    @property
    def url(self) -> str:
        """The address of the UI."""
        return f"http://{LOOPBACK}:{self.port}"


def settings(setup: Setup) -> dict[str, str]:
    """The settings by the variables that Airflow reads them from."""
    home = setup.home
    values = {
        "CORE__DAGS_FOLDER": str(setup.dags),
        "CORE__LOAD_EXAMPLES": "False",
        # Scheduled DAGs start paused; DAGs without a schedule override this.
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": str(_TASKS),
        "CORE__EXECUTION_API_SERVER_URL": f"{setup.url}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home.passwords),
        "DATABASE__SQL_ALCHEMY_CONN_CMD": f"cat {shlex.quote(str(home.database))}",
        "API__HOST": LOOPBACK,
        "API__PORT": str(setup.port),
        "API__BASE_URL": setup.url,
        "API__WORKERS": "1",
        "API__INSTANCE_NAME": "Capstan",
        # A task hop costs 0.2 s instead of 1 s; PostgreSQL can take the polling.
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
        # Tasks of a killed scheduler restart within this time instead of 5 minutes.
        "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        # A new file shows up in 10 s instead of 5 minutes.
        "DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(home.folder / "bundles"),
        "LOGGING__BASE_LOG_FOLDER": str(home.logs / "tasks"),
        "LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(home.logs / "dags"),
        "LOGGING__COLORED_CONSOLE_LOG": "False",
    }
    return {f"AIRFLOW__{name}": value for name, value in values.items()}


def jobs_at_once() -> int:
    """The number of concurrent Spark jobs: one per two cores, at least two."""
    return max(2, min(_TASKS, (os.cpu_count() or 1) // 2))


def environment(setup: Setup, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the components, which submitted jobs inherit.

    Airflow's connections, variables and settings in `given` are kept, except settings that the
    launcher makes itself.
    """
    # It would win over the command.
    kept = {name: value for name, value in given.items() if name != _DATABASE}
    temporary = str(setup.home.temporary)
    # Not resolved: a virtual environment is recognised by the path of its Python.
    programs = Path(sys.executable).absolute().parent
    # Loopback traffic goes through no proxy.
    excluded = given.get("no_proxy") or given.get("NO_PROXY") or ""
    direct = ",".join(part for part in (excluded, LOOPBACK, "localhost") if part)
    return {
        CONNECTION: json.dumps({"conn_type": "spark", "host": "local[*]"}),
        POOL: "spark",
        **kept,
        **settings(setup),
        MARK: str(setup.home.folder),
        "AIRFLOW_HOME": str(setup.home.folder),
        "AIRFLOW_CONFIG": str(setup.home.folder / "airflow.cfg"),
        "CAPSTAN_LAKE": setup.lake if "://" in setup.lake else str(Path(setup.lake).absolute()),
        "JAVA_HOME": str(spark_home(find_java())),
        # Airflow starts the first spark-submit on the path.
        "PATH": f"{programs}{os.pathsep}{kept.get('PATH', os.defpath)}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": temporary,
        "TMPDIR": temporary,
        "no_proxy": direct,
        "NO_PROXY": direct,
    }


def free_port(wanted: int) -> int:
    """A free port on loopback: `wanted`, or any for 0."""
    try:
        with socket.socket() as probe:
            # Like the server: a connection in TIME_WAIT does not block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, wanted))
            return int(probe.getsockname()[1])
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problem = f"port {wanted} of {LOOPBACK} is not available: {reason}"
        hint = "choose another with --port; 0 takes a free one"
        raise InvalidRequestError("CAP-PORT", problem, hint, field="port") from error
