"""Configuration of a local Airflow: `airflow.cfg`, its port, and its components' environment.

Secrets are in `airflow.cfg`, not in the environment: Spark apps inherit the environment, and do not
need the signing keys.
"""

from __future__ import annotations

import configparser
import io
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capstan.airflow.local.home import USER, Home
from capstan.errors import InvalidRequestError
from capstan.spark.setup.java import find_java, spark_home

LOOPBACK = "127.0.0.1"
CONNECTION = "AIRFLOW_CONN_SPARK_DEFAULT"
POOL = "CAPSTAN_POOL"
_TASKS = 4
_LOCAL_SPARK = json.dumps({"conn_type": "spark", "host": "local[*]"})


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup of one Airflow.

    Attributes:
        home: Its home folder.
        port: The port of the UI and the API, on loopback.
        dags: The folder of its DAG files.
        lake: The lake of its DAGs: an absolute path or a URI.
        database: The SQLAlchemy URL of its PostgreSQL.
    """

    home: Home
    port: int
    dags: Path
    lake: str
    database: str

    @property
    def url(self) -> str:
        """The address of the UI."""
        return f"http://{LOOPBACK}:{self.port}"


def sections(setup: Setup) -> dict[str, dict[str, str]]:
    """The settings by section and key."""
    home, secrets = setup.home, setup.home.secrets()
    return {
        "core": {
            "dags_folder": str(setup.dags),
            "load_examples": "False",
            # Scheduled DAGs start paused; DAGs without a schedule override this.
            "dags_are_paused_at_creation": "True",
            "executor": "LocalExecutor",
            "parallelism": str(_TASKS),
            "execution_api_server_url": f"{setup.url}/execution/",
            "fernet_key": secrets.fernet_key,
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": str(home.passwords),
        },
        "database": {"sql_alchemy_conn": setup.database},
        "api": {
            "host": LOOPBACK,
            "port": str(setup.port),
            "base_url": setup.url,
            "workers": "1",
            "secret_key": secrets.secret_key,
            "instance_name": "Capstan",
        },
        "api_auth": {"jwt_secret": secrets.jwt_secret},
        "scheduler": {
            # A task hop costs 0.2 s instead of 1 s; PostgreSQL can take the polling.
            "scheduler_idle_sleep_time": "0.1",
            # Tasks of a killed scheduler restart within this time instead of 5 minutes.
            "orphaned_tasks_check_interval": "30",
        },
        "dag_processor": {
            # A new file shows up in 10 s instead of 5 minutes.
            "refresh_interval": "10",
            "dag_bundle_storage_path": str(home.folder / "bundles"),
        },
        "logging": {
            "base_log_folder": str(home.logs / "tasks"),
            "dag_processor_child_process_log_directory": str(home.logs / "dags"),
            "colored_console_log": "False",
        },
    }


def apps_at_once() -> int:
    """The number of concurrent Spark apps: one per two cores, at least two."""
    return max(2, min(_TASKS, (os.cpu_count() or 1) // 2))


def config_text(setup: Setup) -> str:
    """The text of `airflow.cfg`."""
    parser = configparser.RawConfigParser()
    # Airflow interpolates values: percent signs are doubled.
    parser.read_dict(
        {
            section: {key: value.replace("%", "%%") for key, value in keys.items()}
            for section, keys in sections(setup).items()
        }
    )
    text = io.StringIO()
    text.write("# Rewritten by `python -m capstan.airflow.local` at each start.\n\n")
    parser.write(text)
    return text.getvalue()


def environment(setup: Setup, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the components, which submitted apps inherit.

    Airflow's connections, variables and settings in `given` are kept, except settings that the
    launcher makes itself: they would override its file.

    Args:
        setup: The Airflow.
        given: The base environment; that of this process by default.
    """
    kept = dict(os.environ if given is None else given)
    managed = {f"AIRFLOW__{s}__{k}".upper() for s, keys in sections(setup).items() for k in keys}
    for name in list(kept):
        # A setting can also come from a command: AIRFLOW__CORE__FERNET_KEY_CMD.
        if name in managed or name.removesuffix("_CMD").removesuffix("_SECRET") in managed:
            del kept[name]
    # Not resolved: a virtual environment is recognised by the path of its Python.
    programs = str(Path(sys.executable).absolute().parent)
    temporary = str(setup.home.temporary)
    name, mark = setup.home.mark()
    return {
        CONNECTION: _LOCAL_SPARK,
        POOL: "spark",
        **kept,
        name: mark,
        "AIRFLOW_HOME": str(setup.home.folder),
        "AIRFLOW_CONFIG": str(setup.home.folder / "airflow.cfg"),
        "CAPSTAN_LAKE": setup.lake,
        "JAVA_HOME": str(spark_home(find_java())),
        # Airflow starts the first spark-submit on the path.
        "PATH": os.pathsep.join([programs, kept.get("PATH", os.defpath)]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": temporary,
        "TMPDIR": temporary,
        **_no_proxy(kept),
    }


def _no_proxy(given: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep the components' loopback traffic off any proxy."""
    excluded = given.get("no_proxy") or given.get("NO_PROXY") or ""
    listed = ",".join(part for part in (excluded, LOOPBACK, "localhost") if part)
    return {"no_proxy": listed, "NO_PROXY": listed}


def free_port(wanted: int) -> int:
    """A free port on loopback: `wanted`, or any for 0."""
    try:
        with socket.socket() as probe:
            # Like the server: a connection in TIME_WAIT does not block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, wanted))
            port: int = probe.getsockname()[1]
            return port
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequestError(
            "CAP-PORT",
            f"port {wanted} of {LOOPBACK} is not available: {reason}",
            "choose another with --port; 0 takes a free one",
            field="port",
        ) from error


def whole_lake(lake: str) -> str:
    """The lake as an absolute path or a URI."""
    return lake if "://" in lake else str(Path(lake).absolute())


def is_there(lake: str) -> bool:
    """Whether a lake in a folder exists; always true for a URI."""
    return "://" in lake or Path(lake).is_dir()
