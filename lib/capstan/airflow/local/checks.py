"""What is checked before anything is started."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

from capstan.airflow.local.settings import LOOPBACK
from capstan.errors import InvalidRequestError, SystemFailureError


def free_port(wanted: int) -> int:
    """A port of loopback on which nothing listens: the one that is wanted, any for 0.

    Raises:
        InvalidRequestError: `CAP-PORT` when the port is taken, or none.
    """
    try:
        with socket.socket() as probe:
            # As the server will: a connection that is ending does not keep a port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, wanted))
            port: int = probe.getsockname()[1]
            return port
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequestError(
            "CAP-PORT",
            f"port {wanted} of {LOOPBACK} cannot be had: {reason}",
            "give another one with --port; 0 takes one that is free",
            field="port",
        ) from error


def require_airflow() -> None:
    """Check that Airflow is installed.

    Raises:
        SystemFailureError: `CAP-AIRFLOW` when it is not.
    """
    if importlib.util.find_spec("airflow") is None:
        raise SystemFailureError("CAP-AIRFLOW", "Airflow is not installed", "run `make setup`")


def require_folder(dags: Path) -> None:
    """Check that the folder of DAG files is there.

    Raises:
        InvalidRequestError: `CAP-DAGS` when it is not.
    """
    if not dags.is_dir():
        hint = "give --dags a folder"
        raise InvalidRequestError("CAP-DAGS", f"there is no folder {dags}", hint, field="dags")


def whole_lake(lake: str) -> str:
    """A lake by a path that means the same in every process, or by its URI."""
    return lake if "://" in lake else str(Path(lake).absolute())


def is_there(lake: str) -> bool:
    """Whether a lake that is a folder has been made; a URI is not looked at."""
    return "://" in lake or Path(lake).is_dir()
