"""The operator that captures a stream, whose source may take values of Airflow's connections."""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow.sdk import BaseHook, Connection, Context
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from capstan.airflow.assets import CAPTURED, stream_asset
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.tasks.child_environment import inherited
from capstan.airflow.tasks.failures import TaskRefusedError, as_task
from capstan.core.config import ProjectConfig
from capstan.core.config.loading.secret_references import (
    VARIABLE,
    Reference,
    references,
    unresolved,
)

_FIELDS = ("host", "login", "password", "port", "schema")


class CaptureOperator(CapstanSubmitOperator):
    """Submits the capture of a stream, and saves its worker labels for forms.

    Runs of a DAG capture one after the other, unless `max_active_tis_per_dag` is given.

    If the frontier has stood still for longer than declared, the task fails after its job with
    `CAP-STALLED`, without a retry; what had arrived is on tape nevertheless.
    """

    template_fields = ("stream", *CapstanSubmitOperator.template_fields)

    def __init__(
        self, *, stream: str, reseat: bool = False, rescale: int | None = None, **rest: object
    ) -> None:
        """Create a task that captures a declared stream.

        Args:
            stream: The stream. Templated.
            reseat: Continue with a source or checkpoint that was replaced.
            rescale: Give the stream this many workers first.
            rest: Arguments of a `CapstanSubmitOperator`, such as `lake` and `config`.
        """
        rest.setdefault("outlets", [CAPTURED if "{" in stream else stream_asset(stream)])
        rest.setdefault("request", {})
        rest.setdefault("max_active_tis_per_dag", 1)
        super().__init__(app="capture", **rest)  # type: ignore[arg-type]
        self.stream = stream
        options = {"reseat": reseat, "rescale": rescale}
        self._options = {name: value for name, value in options.items() if value}

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Capture, check that the frontier moves, and return the job's result."""
        from capstan.airflow.lake_queries import require_moving

        self.request = {"stream": self.stream, **self._options, **self._read_request()}
        with as_task():
            secrets = _connection_values(self.settings.declarations, str(self.request["stream"]))
        with inherited({VARIABLE: json.dumps(secrets)} if secrets else {}):
            result = super().execute(context)
        try:
            with as_task():
                require_moving(self.settings, str(result.get("stream")))
        except TaskRefusedError:
            context["ti"].xcom_push(key="return_value", value=result)
            raise
        return result


def _connection_values(config: ProjectConfig, stream: str) -> Mapping[str, str]:
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
