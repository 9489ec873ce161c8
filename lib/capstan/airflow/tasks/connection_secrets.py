"""Values of Airflow connections for the source options of a capture, in its app's environment."""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from capstan.core.config import ProjectConfig
from capstan.core.config.loading.secret_references import (
    VARIABLE,
    Reference,
    references,
    unresolved,
)

_FIELDS = ("host", "login", "password", "port", "schema")


def variables_of(values: Mapping[str, str]) -> dict[str, str | None]:
    """The variable that hands connection values to an app; none without values."""
    return {VARIABLE: json.dumps(values)} if values else {}


def connection_values(config: ProjectConfig, stream: str) -> Mapping[str, str]:
    """Connection values in a stream's source, by reference without braces; Airflow masks them."""
    declared = config.streams.get(stream)
    if declared is None:
        return {}
    values = {}
    for reference in references(declared.source.options):
        if reference.kind == "conn":
            value = _value(stream, reference)
            if reference.is_secret:
                mask_secret(value)
            values[f"conn:{reference.name}"] = value
    return values


def _value(stream: str, reference: Reference) -> str:
    name, field = reference.connection
    try:
        connection = BaseHook.get_connection(name)
    except AirflowNotFoundException:
        raise unresolved(stream, reference, "but the connection does not exist") from None
    except Exception as error:
        # Without the error's text, which may quote the connection and its password.
        problem = f"but the connection cannot be read ({type(error).__name__})"
        raise unresolved(stream, reference, problem) from None
    value = _field(connection, field)
    if value in (None, ""):
        raise unresolved(stream, reference, "which is empty")
    return str(value)


def _field(connection: Connection, field: str) -> object:
    """A field of a connection, or a key of its extras."""
    return getattr(connection, field) if field in _FIELDS else connection.extra_dejson.get(field)
