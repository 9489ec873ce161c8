"""DAGs `capstan_capture__<stream>`: capture of a declared stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from airflow.sdk import DAG, Context

from capstan.airflow.assets import captured, stream_asset
from capstan.airflow.dags import docs, timetables
from capstan.airflow.dags.declaration_errors import sound
from capstan.airflow.dags.form_choices import remember_labels
from capstan.airflow.dags.task_defaults import task_defaults
from capstan.airflow.operators.failures import TaskRefusedError, as_task
from capstan.airflow.operators.submit import CapstanSubmitOperator
from capstan.airflow.settings import Settings
from capstan.core.config import Stream


class CaptureOperator(CapstanSubmitOperator):
    """Submits the capture of a stream, and saves its worker labels for forms.

    If the frontier has stood still for longer than declared, the task fails after its app with
    `CAP-STALLED`, without a retry; what had arrived is on tape nevertheless.
    """

    def __init__(self, *, setting: Settings, stream: str, **rest: object) -> None:
        """Create a task that captures a declared stream."""
        rest.setdefault("outlets", [stream_asset(stream)])
        rest.setdefault("request", {"stream": stream})
        super().__init__(app="capture", setting=setting, asset_extra=captured, **rest)  # type: ignore[arg-type]

    def execute(self, context: Context) -> dict[str, object]:  # type: ignore[override]
        """Capture, check that the frontier moves, and return the app's result."""
        from capstan.airflow.lake_queries import require_moving

        result = super().execute(context)
        try:
            with as_task():
                require_moving(self._setting, str(result.get("stream")))
        except TaskRefusedError:
            context["ti"].xcom_push(key="return_value", value=result)
            raise
        return result

    def tell_assets(self, context: Context, result: Mapping[str, object]) -> None:
        """Emit the event of the stream's asset, with the new frontier."""
        from capstan.airflow.lake_queries import worker_labels

        super().tell_assets(context, result)
        stream = str(result.get("stream"))
        remember_labels(self._setting, stream, worker_labels(self._setting, stream))


def capture_dags(setting: Settings) -> Iterator[DAG]:
    """A DAG for each declared stream; without a schedule, it is triggered by hand."""
    for stream in setting.declarations.streams.values():
        yield from sound(partial(_dag, setting, stream))


def _dag(setting: Settings, stream: Stream) -> DAG:
    about = docs.CAPTURE.format(stream=stream.name, description=stream.description)
    with DAG(
        f"capstan_capture__{stream.name}",
        description=f"Capture {stream.name}: {stream.description}".rstrip(": "),
        doc_md=about + docs.FAILURES,
        schedule=timetables.of_stream(setting, stream),
        start_date=timetables.BEGINNING,
        catchup=False,
        # Only one capture of a stream can run at a time.
        max_active_runs=1,
        tags=["capstan", "capture"],
    ) as dag:
        CaptureOperator(
            task_id="capture",
            setting=setting,
            stream=stream.name,
            doc_md=docs.TASKS["capture"],
            **task_defaults(setting, stream.notify, ("streams", stream.name, "notify")),
        )
    return dag
