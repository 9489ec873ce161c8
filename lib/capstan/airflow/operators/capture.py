"""The operator that captures a stream."""

from __future__ import annotations

from airflow.sdk import Context

from capstan.airflow.assets import CAPTURED, stream_asset
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.tasks.child_environment import inherited
from capstan.airflow.tasks.connection_secrets import connection_values, variables_of
from capstan.airflow.tasks.failures import TaskRefusedError, as_task


class CaptureOperator(CapstanSubmitOperator):
    """Submits the capture of a stream, and saves its worker labels for forms.

    Runs of a DAG capture one after the other, unless `max_active_tis_per_dag` is given.

    If the frontier has stood still for longer than declared, the task fails after its app with
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
        """Capture, check that the frontier moves, and return the app's result."""
        from capstan.airflow.lake_queries import require_moving

        self.request = {"stream": self.stream, **self._options, **self._read_request()}
        with as_task():
            secrets = connection_values(self.settings.declarations, str(self.request["stream"]))
        with inherited(variables_of(secrets)):
            result = super().execute(context)
        try:
            with as_task():
                require_moving(self.settings, str(result.get("stream")))
        except TaskRefusedError:
            context["ti"].xcom_push(key="return_value", value=result)
            raise
        return result
