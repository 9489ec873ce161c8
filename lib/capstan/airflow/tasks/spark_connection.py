"""The Spark connection, checked here because Airflow's own hook falls back to YARN."""

from __future__ import annotations

import importlib.util
import os
import re

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from capstan.errors import InvalidRequestError

_MASTER = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|yarn|(spark|k8s)://.+")


def spark_master(name: str) -> str:
    """The Spark master of a connection, which must be one for jobs in client mode."""
    connection = _read(name)
    master = _master(connection)
    if not _MASTER.fullmatch(master):
        raise _error(name, f"names no Spark master: {master!r}")
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise _error(name, "names yarn, but neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set")
    if master.startswith("k8s://") and not _has_kubernetes():
        package = "apache-airflow-providers-cncf-kubernetes"
        raise _error(name, f"names Kubernetes, but the package {package} is not installed")
    if connection.extra_dejson.get("deploy-mode", "client") != "client":
        raise _error(name, "has a deploy mode other than client, which leaves no result here")
    return master


def _has_kubernetes() -> bool:
    try:
        return importlib.util.find_spec("airflow.providers.cncf.kubernetes") is not None
    except ModuleNotFoundError:
        return False


def _read(name: str) -> Connection:
    try:
        return BaseHook.get_connection(name)
    except AirflowNotFoundException:
        # Airflow ignores a malformed connection as if it did not exist.
        written = os.environ.get(f"AIRFLOW_CONN_{name.upper()}")
        raise _error(name, "cannot be read" if written else "does not exist") from None
    except Exception as error:
        # Without the error's text, which may quote the connection and its password.
        raise _error(name, f"cannot be read ({type(error).__name__})") from None


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
