"""Airflow's connections, and credentials of S3 from the one that `CAPSTAN_AWS_CONNECTION` names.

Tasks, DAG files and pages read that one when they use S3. Its values are masked in logs. They
reach Spark's driver in the environment of its process only, and are not stored or rendered.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from capstan.errors import CapstanError, InvalidRequestError
from capstan.spark.aws_chain import KEYS
from capstan.storage import s3_access

if TYPE_CHECKING:
    from airflow.sdk import Connection

VARIABLE = "CAPSTAN_AWS_CONNECTION"
# Pages run for months: a changed connection counts after this time.
_FRESH_SECONDS = 300.0
_TYPES = ("aws", "s3", "generic")
_EXTRAS = {
    "aws_session_token": "AWS_SESSION_TOKEN",
    "region_name": "AWS_REGION",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "profile_name": "AWS_PROFILE",
}
# Ways to get credentials that Amazon's provider of Airflow has, and this module has not.
_UNKNOWN = ("role_arn", "assume_role_method", "assume_role_kwargs", "session_kwargs",
            "s3_config_file", "config_kwargs")  # fmt: skip

_lock = threading.Lock()
_read: tuple[str, float, s3_access.Variables] | None = None


def use() -> None:
    """Take the values of the connection, if one is named, where S3 is used in this process."""
    s3_access.take_from(connection_variables)


def connection_variables() -> s3_access.Variables:
    """The connection's values as `AWS_*` variables; empty if no connection is named."""
    global _read  # noqa: PLW0603
    name = os.environ.get(VARIABLE)
    if not name:
        return {}
    with _lock:
        if _read is None or _read[0] != name or time.monotonic() - _read[1] > _FRESH_SECONDS:
            _read = name, time.monotonic(), _variables(name)
        return _read[2]


def read_connection(name: str, wrong: Callable[[str], CapstanError]) -> Connection:
    """A connection; `wrong` makes the error of what is wrong with it."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(name)
    except AirflowNotFoundException:
        # Airflow ignores a malformed connection as if it did not exist.
        malformed = os.environ.get(f"AIRFLOW_CONN_{name.upper()}")
        raise wrong("cannot be read" if malformed else "does not exist") from None
    except Exception as error:
        # Without the error's text, which may quote the connection and its password.
        raise wrong(f"cannot be read ({type(error).__name__})") from None


def _variables(name: str) -> s3_access.Variables:
    from airflow.sdk.log import mask_secret

    connection = read_connection(name, partial(_error, name))
    if connection.conn_type not in _TYPES:
        raise _error(name, f"is of type {connection.conn_type}, not aws")
    extras: dict[str, Any] = connection.extra_dejson
    other = next((key for key in _UNKNOWN if extras.get(key)), None)
    if other is not None:
        raise _error(name, f"has {other}, which Capstan does not use")
    if bool(connection.login) != bool(connection.password):
        raise _error(name, "has one of the two keys")
    values = {variable: str(extras[key]) for key, variable in _EXTRAS.items() if extras.get(key)}
    endpoint = extras.get("service_config", {}).get("s3", {}).get("endpoint_url")
    if endpoint:
        values["AWS_ENDPOINT_URL"] = str(endpoint)
    if connection.login:
        values["AWS_ACCESS_KEY_ID"] = str(connection.login)
        values["AWS_SECRET_ACCESS_KEY"] = str(connection.password)
    if values.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        values["AWS_ALLOW_HTTP"] = "true"
    for secret in KEYS:
        if secret in values:
            mask_secret(values[secret])
    return values


def _error(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-CONNECTION",
        f"connection {name} of {VARIABLE} {problem}",
        "give it the type aws, with an access key as login and a secret key as password; or remove "
        f"{VARIABLE}, and give the processes AWS_* variables or a role",
        connection=name,
    )
