"""Checks before anything starts."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

from capstan.airflow.local.settings import LOOPBACK
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.spark.project_home import packages


def free_port(wanted: int) -> int:
    """A free port on loopback: `wanted`, or any for 0.

    Raises:
        InvalidRequestError: `CAP-PORT` when the port is taken or invalid.
    """
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


def require_airflow() -> None:
    """Check that Airflow is installed.

    Raises:
        SystemFailureError: `CAP-AIRFLOW` when it is not.
    """
    if importlib.util.find_spec("airflow") is None:
        raise SystemFailureError("CAP-AIRFLOW", "Airflow is not installed", packages("airflow"))


def require_folder(dags: Path) -> None:
    """Check that the folder of DAG files exists.

    Raises:
        InvalidRequestError: `CAP-DAGS` when it does not.
    """
    if not dags.is_dir():
        hint = "give --dags an existing folder"
        raise InvalidRequestError("CAP-DAGS", f"there is no folder {dags}", hint, field="dags")


def whole_lake(lake: str) -> str:
    """The lake as an absolute path or a URI."""
    return lake if "://" in lake else str(Path(lake).absolute())


def is_there(lake: str) -> bool:
    """Whether a lake in a folder exists; always true for a URI."""
    return "://" in lake or Path(lake).is_dir()
